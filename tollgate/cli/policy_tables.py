"""Format the tables of `policy simulate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from tollgate.schema import Decision

if TYPE_CHECKING:
    from tollgate.redecide import PolicyComparison

_NAMES = tuple(level.name.lower() for level in Decision)


def outcome_tables(outcome: PolicyComparison) -> Iterator[Any]:
    """Build the tables, below a line with the most important result."""
    yield (
        f"{outcome.changed:,} of {outcome.rows:,} rows decided otherwise; "
        + ", ".join(
            f"{level.name.lower()} {outcome.more(level):+,} "
            f"({outcome.more_cents(level) / 100:+,.2f})"
            for level in Decision
        )
    )
    if outcome.left_out:
        yield f"{outcome.left_out:,} rows left out: too little of them was stored"
    yield _matrix(outcome)
    if len(outcome.segments) > 1:
        yield _segments(outcome)
    yield _rules(outcome)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left")
    return table


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}"


def _matrix(outcome: PolicyComparison) -> Table:
    table = _table("before ╲ after", *_NAMES)
    for before, name in enumerate(_NAMES):
        table.add_row(
            name,
            *(
                f"{rows:,} ({_money(outcome.cents[before][after])})"
                for after, rows in enumerate(outcome.matrix[before])
            ),
        )
    return table


def _segments(outcome: PolicyComparison) -> Table:
    table = _table("segment", "rows", *_NAMES, "declined, money")
    for part in outcome.segments:
        counts = (
            f"{old:,} → {new:,}"
            for old, new in zip(part.before, part.after, strict=True)
        )
        money = [
            _money(sums[Decision.DECLINE])
            for sums in (part.cents_before, part.cents_after)
        ]
        table.add_row(escape(part.name), f"{part.rows:,}", *counts, " → ".join(money))
    return table


def _rules(outcome: PolicyComparison) -> Table:
    table = _table("rule", "owner", "held before", "holds", "of these changed", "money")
    for rule in outcome.rules:
        table.add_row(
            escape(rule.name),
            escape(rule.owner),
            "" if rule.before is None else f"{rule.before:,}",
            f"{rule.after:,}",
            f"{rule.otherwise:,}",
            _money(rule.cents),
        )
    return table
