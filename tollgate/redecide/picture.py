"""Draw the effect of a changed policy on past decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tollgate.redecide.outcome import PolicyComparison, names
from tollgate.schema import Decision

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = ("tab:green", "tab:orange", "tab:red")
_LEVELS = tuple(Decision)


def draw(outcome: PolicyComparison, path: Path) -> None:
    """Write a PNG: changes of decisions, shares by segment, and use of rules."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tallest = max(len(outcome.segments) * 2, len(outcome.rules), 4)
    figure = Figure(figsize=(15, 2.5 + 0.4 * tallest), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    moves, segments, rules = figure.subplots(1, 3)
    _draw_moves(outcome, moves)
    _draw_segments(outcome, segments)
    _draw_rules(outcome, rules)
    figure.suptitle(
        f"{outcome.changed:,} of {outcome.rows:,} purchases decided differently; "
        f"declines: {outcome.more(Decision.DECLINE):+,} rows, "
        f"{outcome.more_cents(Decision.DECLINE) / 100:+,.2f} in money"
    )
    figure.savefig(path)


def _draw_moves(outcome: PolicyComparison, axes: Axes) -> None:
    shares = np.array(outcome.matrix) / max(outcome.rows, 1)
    axes.imshow(np.sqrt(shares), cmap="Blues", vmin=0, vmax=1)
    for before in range(len(_LEVELS)):
        for after in range(len(_LEVELS)):
            rows = outcome.matrix[before][after]
            money = outcome.cents[before][after] / 100
            text = f"{rows:,}\n{money:,.2f}" if rows else "0"
            dark = shares[before, after] > 0.4
            axes.text(
                *(after, before, text),
                ha="center",
                va="center",
                color="white" if dark else "black",
                weight="normal" if before == after else "bold",
            )
    axes.set_xticks(range(len(_LEVELS)), names(_LEVELS))
    axes.set_yticks(range(len(_LEVELS)), names(_LEVELS))
    axes.set(xlabel="after", ylabel="before", title="rows and their amounts")


def _draw_segments(outcome: PolicyComparison, axes: Axes) -> None:
    labels = []
    for place, part in enumerate(outcome.segments):
        for shift, counts, when in (
            (0, part.before, "before"),
            (1, part.after, "after"),
        ):
            left = 0.0
            for level, count in enumerate(counts):
                width = count / max(part.rows, 1)
                axes.barh(
                    place * 3 + shift,
                    width,
                    left=left,
                    color=_COLORS[level],
                    height=0.9,
                )
                left += width
            labels.append((place * 3 + shift, f"{part.name} {when}"))
    axes.set_yticks([at for at, _ in labels], [text for _, text in labels])
    axes.invert_yaxis()
    # Most purchases are approved, so the axis shows its upper end.
    most = max(
        (1 - part.before[0] / max(part.rows, 1) for part in outcome.segments),
        default=0.0,
    )
    after = max(
        (1 - part.after[0] / max(part.rows, 1) for part in outcome.segments),
        default=0.0,
    )
    axes.set_xlim(max(0.0, 1 - 1.5 * max(most, after, 0.02)), 1)
    axes.set(xlabel="share of the segment's rows", title="by segment")
    for level, name in enumerate(names(_LEVELS)):
        axes.barh(0, 0, color=_COLORS[level], label=name)
    _legend(axes)


def _draw_rules(outcome: PolicyComparison, axes: Axes) -> None:
    places = np.arange(len(outcome.rules))
    before = [rule.before or 0 for rule in outcome.rules]
    after = [rule.after for rule in outcome.rules]
    axes.barh(places - 0.2, before, height=0.4, color="tab:gray", label="before")
    axes.barh(places + 0.2, after, height=0.4, color="tab:blue", label="after")
    axes.set_yticks(places, [rule.name for rule in outcome.rules])
    axes.invert_yaxis()
    for place, rule in enumerate(outcome.rules):
        was = "" if rule.before is None else f"{rule.before:,} → "
        axes.text(
            max(rule.after, before[place]), place, f" {was}{rule.after:,}", va="center"
        )
    axes.set_xlim(0, 1.5 * max([1, *before, *after]))
    axes.set(xlabel="rows that match the rule", title="by rule")
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Put the legend below the axes, because no position inside is always free."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
