"""
Write the card sections about proof, speed and the cost of making the model smaller.
"""

from __future__ import annotations

from converters.artifact import Artifact
from converters.card_document import Block, Cell, Name, Section, Table, line
from converters.card_numbers import UNKNOWN, count, delta, measure, share, speed
from converters.trade import Figures, Trade


def proof(artifact: Artifact) -> Section:
    """Show the difference between the converted model and its source, per runtime."""
    reports = artifact.parity
    head: tuple[Cell, ...] = ("", *(Name(one.runtime) for one in reports))
    thresholds = ", ".join(f"{one:g}" for one in reports[0].thresholds) or "none"
    titles = {
        "rows compared": [count(one.rows) for one in reports],
        f"decisions that flip, at {thresholds}": [count(one.flips) for one in reports],
        "largest difference of a probability": [delta(r.max_delta) for r in reports],
        "mean difference": [delta(one.mean_delta) for one in reports],
        "alone against in a batch": [delta(one.batch_delta) for one in reports],
        "rows asked alone as well": [
            count(one.rows if one.alone is None else one.alone) for one in reports
        ],
        "allowed difference": [delta(one.tolerance) for one in reports],
        "rows that the source itself refuses": [count(r.unanswered) for r in reports],
        "agrees": ["yes" if one.passed else "NO" for one in reports],
    }
    rows = tuple((title, *cells) for title, cells in titles.items())
    blocks: list[Block] = [
        line(_compared(artifact)),
        Table(head=head, rows=rows),
    ]
    oracle = artifact.oracle
    if oracle is not None:
        for text in oracle.lines:
            blocks.append(line(f"{text[0].upper()}{text[1:]}."))
        for text in oracle.warnings:
            blocks.append(line(f"Not covered: {text}."))
    kinds = reports[0].kinds
    if kinds:
        words = ", ".join(f"{count(rows)} {kind}" for kind, rows in kinds.items())
        blocks.append(line(f"Rows by kind: {words}."))
    if artifact.targets:
        blocks.append(
            line("Proven for Triton ", Name(", ".join(artifact.targets)), ".")
        )
    return Section("Proof", tuple(blocks))


def before_quantising(artifact: Artifact) -> bool:
    """Return whether the proof covers a model that int8 arithmetic has replaced."""
    return any(one.kind == "quantize" for one in artifact.trades)


def _compared(artifact: Artifact) -> str:
    text = "The converted model was compared with its source on the same rows."
    if any(one.kind != "quantize" for one in artifact.trades):
        text += " Its source is the model after it was made smaller."
    if before_quantising(artifact):
        text += (
            " That was before its weights were quantised: the served model is not "
            "proven, but judged under Made smaller."
        )
    return text


def timing(artifact: Artifact) -> Section:
    """Show µs per row."""
    found = artifact.us_per_row
    if not found:
        return Section("Speed", (line("It was not measured."),))
    rows = tuple(
        (count(rows), speed(us), speed(us * rows)) for rows, us in sorted(found.items())
    )
    return Section(
        "Speed",
        (
            Table(head=("rows of a batch", "µs per row", "µs per batch"), rows=rows),
            line(
                "The fastest of many runs on one thread of the machine that converted "
                "it, in onnxruntime alone. Another machine has other figures, and a "
                "server adds its own time."
            ),
        ),
    )


def trades(artifact: Artifact) -> Section | None:
    """Show the cost and gain of making the model smaller; None if it was not done."""
    if not artifact.trades:
        return None
    blocks: list[Block] = []
    for one in artifact.trades:
        blocks.append(line(Name(one.kind), ": ", Name(one.detail), _lost(one)))
        blocks.append(_before_and_after(one.before, one.after))
    text = "Before and after were measured in one run, in turns."
    allowed = artifact.allowed
    if allowed is not None:
        text += (
            f" Allowed were other decisions for {share(allowed.flips)} of the rows, an "
            f"AUC lower by {allowed.auc_loss:g} and an average precision lower by "
            f"{allowed.ap_loss:g}."
        )
    blocks.append(line(text))
    return Section("Made smaller", tuple(blocks))


def _lost(trade: Trade) -> str:
    return (
        f". On {count(trade.rows)} rows, {count(trade.flagged)} of them at or above "
        f"the lowest threshold before, {count(trade.flips)} decisions changed "
        f"({share(trade.flips / max(trade.rows, 1))} of the rows). A probability moved "
        f"by {delta(trade.max_delta)} at most, and by {delta(trade.batch_delta)} "
        "between alone and in a batch."
    )


def _before_and_after(before: Figures, after: Figures) -> Table:
    rows = [
        ("AUC", measure(before.auc), measure(after.auc), UNKNOWN),
        (
            "average precision",
            measure(before.average_precision),
            measure(after.average_precision),
            UNKNOWN,
        ),
        (
            "bytes",
            count(before.size_bytes),
            count(after.size_bytes),
            _times(after.size_bytes, before.size_bytes),
        ),
    ]
    for size in sorted(set(before.us_per_row) & set(after.us_per_row)):
        first, second = before.us_per_row[size], after.us_per_row[size]
        title = f"µs per row in batches of {size}"
        rows.append((title, speed(first), speed(second), _times(second, first)))
    return Table(head=("", "before", "after", "after / before"), rows=tuple(rows))


def _times(after: float, before: float) -> str:
    return f"{after / before:.2f}" if before else UNKNOWN
