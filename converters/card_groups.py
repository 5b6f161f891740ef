"""Write the card section about errors by group of a sensitive attribute."""

from __future__ import annotations

from converters.card_document import Block, Cell, Name, Section, Table, line
from converters.card_numbers import UNKNOWN, bounds, count, measure, share
from converters.group_errors import LEAST
from converters.quality_record import GroupErrors, Quality, Rate, Sensitive

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
