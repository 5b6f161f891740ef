"""Track the sequence numbers of each writer: present in the journal, or missing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Span = tuple[int, int]  # first and last number, inclusive


class SequenceNumbers:
    """Sequence numbers by writer, as ascending spans that neither overlap nor touch."""

    def __init__(self) -> None:
        self._spans: dict[str, list[Span]] = {}

    def add(self, writer: str, first: int, *, last: int) -> list[Span]:
        """Add a range of numbers; return the new ones, as spans."""
        spans = self._spans.setdefault(writer, [])
        # Merge all spans that overlap or touch the new one.
        begin = bisect_left(spans, first - 1, key=lambda span: span[1])
        end = bisect_right(spans, last + 1, key=lambda span: span[0])
        touched = spans[begin:end]
        new = _without((first, last), touched)
        low = min([first, *(span[0] for span in touched)])
        high = max([last, *(span[1] for span in touched)])
        spans[begin:end] = [(low, high)]
        return new

    def new(self, writer: str, first: int, *, last: int) -> list[Span]:
        """Return the numbers of a range that are new, as spans, without adding them."""
        return _without((first, last), self._spans.get(writer, []))

    def gaps(self, writer: str, *, below: int = 0) -> list[Span]:
        """List the missing numbers up to the highest one, and below `below`."""
        spans = self._spans.get(writer, [])
        return _without((0, max(self.highest(writer), below - 1)), spans)

    def writers(self) -> list[str]:
        """List the writers that have at least one number."""
        return sorted(self._spans)

    def spans(self) -> dict[str, list[Span]]:
        """Return all spans by writer."""
        return {writer: list(self._spans[writer]) for writer in self.writers()}

    def highest(self, writer: str) -> int:
        """Return the highest number of a writer; -1 without any."""
        spans = self._spans.get(writer)
        return spans[-1][1] if spans else -1


def spans_of(numbers: Iterable[int]) -> list[Span]:
    """Join ascending numbers into spans."""
    spans: list[Span] = []
    for number in numbers:
        if spans and spans[-1][1] + 1 == number:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def count(spans: Iterable[Span]) -> int:
    """Count the numbers in spans that do not overlap."""
    return sum(last - first + 1 for first, last in spans)


def _without(whole: Span, spans: Iterable[Span]) -> list[Span]:
    """Subtract ascending spans from one span."""
    left: list[Span] = []
    at, end = whole
    for first, last in spans:
        if first > end:
            break
        if first > at:
            left.append((at, first - 1))
        at = max(at, last + 1)
    if at <= end:
        left.append((at, end))
    return left
