"""Write the card section about the model's quality, from its figures."""

from __future__ import annotations

from converters.card.card_document import (
    UNKNOWN,
    Block,
    Cell,
    Name,
    Picture,
    Section,
    Table,
    bounds,
    count,
    line,
    measure,
    share,
)
from converters.card.card_pictures import histogram, reliability
from converters.card.quality import LEAST, LEAST_OF_A_CLASS
from converters.card.quality_record import (
    Group,
    GroupErrors,
    Quality,
    Rate,
    Segment,
    Sensitive,
)

# Write the card section about errors by group of a sensitive attribute.

_FEW = "too few"
_LOW_RATIO = 0.8  # US enforcement agencies' four-fifths rule of thumb


def group_sections(quality: Quality) -> tuple[Section, ...]:
    """Show errors by sensitive attribute; list the attributes without data."""
    if not (quality.sensitive or quality.unreported):
        return ()
    first, last = quality.levels.names[0], quality.levels.names[-1]
    blocks: list[Block] = []
    if quality.sensitive:
        words = (
            "None of these is a feature. By the thresholds on the score alone, without "
            f"the policy's rules. False {last}: share of the rows of the other class "
            f"that reach {last}. False {first}: share of the positive rows that end in "
            f"{first}. Each with its 95 % interval; fewer than {LEAST} rows give no "
            "share."
        )
        blocks.append(line(words))
    for one in quality.sensitive:
        ratios = "; ratios are to ", Name(one.reference), ":"
        blocks += [line("By ", Name(one.column), *ratios), _table(one, quality)]
        blocks += _far_apart(one, first)
    if quality.unreported:
        names = [piece for one in quality.unreported for piece in (Name(one), ", ")]
        words = "The policy names as sensitive, and nobody handed in: "
        blocks.append(line(words, *names[:-1], "."))
    return (Section("Errors by sensitive attribute", tuple(blocks)),)


def _table(found: Sensitive, quality: Quality) -> Table:
    first, last = quality.levels.names[0], quality.levels.names[-1]
    head = (
        *("value", "rows", "positives", first, "95 %"),
        *("ratio", "95 %"),
        *(f"false {last}", "95 %", f"false {first}", "95 %", "AUC", "95 %"),
    )
    return Table(head=head, rows=tuple(_row(one, found) for one in found.groups))


def _row(one: GroupErrors, found: Sensitive) -> tuple[Cell, ...]:
    same = one.name == found.reference
    return (
        Name(one.name),
        count(one.rows),
        count(one.positives),
        *_rate(one.approved),
        *(("1", "") if same else _ratio(one.ratio)),
        *_rate(one.false_declines),
        *_rate(one.false_approvals),
        _FEW if one.auc is None else measure(one.auc),
        UNKNOWN if one.auc is None else bounds(one.interval),
    )


def _rate(found: Rate | None) -> tuple[str, str]:
    if found is None:
        return _FEW, UNKNOWN
    return share(found.share), f"{share(found.low)} to {share(found.high)}"


def _ratio(found: Rate | None) -> tuple[str, str]:
    if found is None:
        return _FEW, UNKNOWN
    return f"{found.share:.3f}", f"{found.low:.3f} to {found.high:.3f}"


def _far_apart(found: Sensitive, first: str) -> list[Block]:
    """List the groups whose share is far below the reference's."""
    names: list[Cell] = []
    for one in found.groups:
        if one.ratio is not None and one.ratio.share < _LOW_RATIO:
            names += [Name(one.name), ", "]
    if not names:
        return []
    words = f"With less than four fifths of the share of {first} that "
    return [line(words, Name(found.reference), " has: ", *names[:-1], ".")]


_TOO_GOOD = 0.99995  # shown as 1.0000


def is_perfect(quality: Quality) -> bool:
    """Return whether the AUC is shown as 1.0000, which real outcomes hardly allow."""
    return quality.overall.auc is not None and quality.overall.auc >= _TOO_GOOD


def quality_sections(
    quality: Quality | None, *, trained_on: bool
) -> tuple[Section, ...]:
    """Show quality overall and by segment, or that nothing could be evaluated."""
    if quality is None and trained_on:
        nothing = line(
            "The only labelled rows are those it was trained on. They say nothing "
            "about new ones, so how good it is was not measured."
        )
        return (Section("Quality", (nothing,)),)
    if quality is None:
        nothing = line(
            "No labels were handed in: how good it is was not measured. That it "
            "answers as its source says nothing about it."
        )
        return (Section("Quality", (nothing,)),)
    return (_overall(quality), *_segments(quality), *group_sections(quality))


def _overall(quality: Quality) -> Section:
    found = quality.overall
    note = quality.note or "rows that were handed in"
    left_out = (
        f" {count(quality.unanswered)} rows without a usable answer are left out."
        if quality.unanswered
        else ""
    )
    blocks: list[Block] = [
        line(f"Judged on {count(found.rows)} labelled rows: {note}.{left_out}")
    ]
    if is_perfect(quality):
        words = (
            "An AUC of 1.0000 is suspicious: outcomes are hardly ever known that well. "
            "Look for a feature that gives the outcome away, and for rows that it was "
            "trained on."
        )
        blocks.append(line(words))
    if found.reason:
        blocks.append(line(f"Its ranking cannot be evaluated: {found.reason}."))
    elif quality.positive is None:
        blocks.append(_of_many(found))
    else:
        blocks.append(_of_two(found, positive=quality.positive))
    if quality.positive is not None:
        blocks += _decisions(quality)
    if quality.bins:
        blocks += _by_score(quality)
    return Section("Quality", tuple(blocks))


def _of_two(found: Group, *, positive: int | str) -> Table:
    return Table(
        head=("measure", "value"),
        rows=(
            ("positive class", Name(str(positive))),
            ("positive rows", count(found.positives)),
            ("share of positives", share((found.positives or 0) / found.rows)),
            ("AUC", measure(found.auc)),
            ("AUC, 95 % interval (DeLong)", bounds(found.interval)),
            ("average precision", measure(found.average_precision)),
            ("Brier score", measure(found.brier)),
            ("log loss", measure(found.log_loss)),
        ),
    )


def _of_many(found: Group) -> Table:
    return Table(
        head=("measure", "value"),
        rows=(
            ("AUC, mean of each class against the rest", measure(found.auc)),
            ("log loss", measure(found.log_loss)),
        ),
    )


def _decisions(quality: Quality) -> list[Block]:
    found = quality.overall
    shares = tuple((name, share(part)) for name, part in found.decisions.items())
    tables: list[Block] = [
        Table(
            head=("decision", "share of the rows"),
            rows=shares,
            caption="By the thresholds on the score alone, without the policy's rules",
        )
    ]
    if found.at_thresholds:
        rows = tuple(
            (
                f"{one.name} (score {one.threshold:g} or above)",
                count(one.rows),
                share(one.precision),
                share(one.recall),
            )
            for one in found.at_thresholds
        )
        tables.append(Table(head=("from", "rows", "precision", "recall"), rows=rows))
    return tables


def _by_score(quality: Quality) -> list[Block]:
    rows = tuple(
        (
            f"{one.low:g} to {one.high:g}",
            count(one.rows),
            count(one.positives),
            share(one.positives / one.rows) if one.rows else UNKNOWN,
            measure(one.mean_score),
        )
        for one in quality.bins
    )
    return [
        Picture(
            svgs=(histogram(quality), reliability(quality)),
            caption="Left: rows per tenth of the score, the positive class in orange, "
            "thresholds dashed. Right: how many of the rows of each tenth are "
            "positive, with its 95 % interval; on the diagonal a score is a "
            "probability.",
        ),
        Table(
            head=("score", "rows", "positives", "share", "mean score"),
            rows=rows,
            folded=True,
            caption="Rows, positives and mean score by tenth of the score",
        ),
    ]


def _segments(quality: Quality) -> tuple[Section, ...]:
    if not quality.segments:
        return ()
    blocks: list[Block] = [
        line(
            f"A segment with fewer than {LEAST_OF_A_CLASS} rows of a class gives no "
            "figure: chance would make it."
        )
    ]
    for one in quality.segments:
        blocks.append(line("By ", Name(one.column), ":"))
        many = quality.positive is None
        blocks.append(_segment_of_many(one) if many else _segment_of_two(one, quality))
    return (Section("Quality by segment", tuple(blocks)),)


def _segment_of_two(segment: Segment, quality: Quality) -> Table:
    last = len(quality.levels.thresholds) - 1
    top = quality.levels.names[-1]
    rows: list[tuple[Cell, ...]] = []
    for one in segment.groups:
        at = one.at_thresholds[last] if one.at_thresholds else None
        rows.append(
            (
                Name(one.name),
                count(one.rows),
                count(one.positives),
                *(share(one.decisions[name]) for name in quality.levels.names[1:]),
                measure(one.auc) if not one.reason else "too few",
                bounds(one.interval),
                share(at.precision) if at else UNKNOWN,
                share(at.recall) if at else UNKNOWN,
            )
        )
    head = (
        *("value", "rows", "positives", *quality.levels.names[1:], "AUC", "95 %"),
        *(f"precision at {top}", f"recall at {top}"),
    )
    return Table(head=head, rows=tuple(rows))


def _segment_of_many(segment: Segment) -> Table:
    rows = tuple(
        (
            Name(one.name),
            count(one.rows),
            measure(one.auc) if not one.reason else "too few",
            measure(one.log_loss),
        )
        for one in segment.groups
    )
    return Table(head=("value", "rows", "mean AUC", "log loss"), rows=rows)
