"""What tables are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median_low

import msgspec

from loadtests.pages.figures import Figures
from loadtests.report import share


class Table(msgspec.Struct, frozen=True):
    """
    A table.

    Attributes:
        title: What it shows.
        note: How to read it; may be empty.
        head: Of the columns.
        rows: Cells as text; the first of each says what the row is.
    """

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Column(msgspec.Struct, frozen=True):
    """A figure: its head, how it is found, digits after the point."""

    head: str
    of: Callable[[Figures], float]
    digits: int


def spread(values: Sequence[float], digits: int) -> str:
    """Write the middle of several values and their range; never an average."""
    ordered = sorted(values)
    middle = f"{median_low(ordered):,.{digits}f}"
    if len(ordered) == 1:
        return middle
    return f"{middle} ({ordered[0]:,.{digits}f} … {ordered[-1]:,.{digits}f})"


def cells_of(columns: Sequence[Column], runs: Sequence[Figures]) -> tuple[str, ...]:
    """Write the spread of each figure."""
    return tuple(spread([one.of(run) for run in runs], one.digits) for one in columns)


def worst_share(runs: Sequence[Figures], figure: Callable[[Figures], float]) -> str:
    """Write the largest share: what went wrong once went wrong."""
    worst = max(runs, key=figure)
    return share(round(figure(worst) * 1e9), 10**9)
