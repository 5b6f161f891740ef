"""Tables, columns and cells of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median_low

import msgspec

from loadtests.pages.figures import Figures
from loadtests.results.run_report import share


class Table(msgspec.Struct, frozen=True):
    """
    A table.

    Attributes:
        title: Title of the table.
        note: Explanation of the table; may be empty.
        head: Heads of the columns.
        rows: Cells as text; the first of each row names the row.
    """

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Column(msgspec.Struct, frozen=True):
    """A figure: its head, its function, digits after the point."""

    head: str
    of: Callable[[Figures], float]
    digits: int


def spread(values: Sequence[float], digits: int) -> str:
    """Format the median of several values and their range; never an average."""
    ordered = sorted(values)
    middle = f"{median_low(ordered):,.{digits}f}"
    if len(ordered) == 1:
        return middle
    return f"{middle} ({ordered[0]:,.{digits}f} … {ordered[-1]:,.{digits}f})"


def cells_of(columns: Sequence[Column], runs: Sequence[Figures]) -> tuple[str, ...]:
    """Format the median and range of each figure."""
    return tuple(spread([one.of(run) for run in runs], one.digits) for one in columns)


def worst_share(runs: Sequence[Figures], figure: Callable[[Figures], float]) -> str:
    """Format the largest share: a failure in one run counts."""
    worst = max(runs, key=figure)
    return share(round(figure(worst) * 1e9), 10**9)
