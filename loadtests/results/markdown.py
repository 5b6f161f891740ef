"""Write the figures and tables of reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low


def markdown_table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Write the lines of a Markdown table; the first cell of each row names it."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(map(str, cells))} |" for cells in (head, rule, *rows)]


def spread(values: Sequence[float], digits: int) -> str:
    """Format the median of several values and their range; never an average."""
    ordered = sorted(values)
    middle = f"{median_low(ordered):,.{digits}f}"
    if len(ordered) == 1:
        return middle
    return f"{middle} ({ordered[0]:,.{digits}f} … {ordered[-1]:,.{digits}f})"


def share(part: int, whole: int) -> str:
    """Format a share; a share above 0 never appears as 0."""
    if not part:
        return "0"
    value = part / max(1, whole)
    return f"{value:.2%}" if value >= 1e-4 else f"{value:.1e}"
