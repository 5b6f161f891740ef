"""Spans of sequence numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tollgate.audit.worker.sequence_ranges import SequenceNumbers, count, spans_of

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 9)).map(
        lambda pair: (pair[0], pair[0] + pair[1])
    ),
    max_size=20,
)


@given(SPANS)
def test_spans_agree_with_sets(spans: list[tuple[int, int]]) -> None:
    """New, missing and highest numbers equal those of plain sets."""
    seen, whole = SequenceNumbers(), set[int]()
    for first, last in spans:
        numbers = set(range(first, last + 1))
        fresh = spans_of(sorted(numbers - whole))
        assert seen.new("w", first, last=last) == fresh
        assert seen.add("w", first, last=last) == fresh
        whole |= numbers
        missing = sorted(set(range(max(whole))) - whole)
        assert seen.gaps("w") == spans_of(missing)
        assert count(seen.gaps("w")) == len(missing)
    assert seen.highest("w") == max(whole, default=-1)


def test_writers_do_not_mix() -> None:
    """Numbers of one writer do not affect another's."""
    seen = SequenceNumbers()
    seen.add("a", 5, last=9)
    assert seen.add("b", 5, last=9) == [(5, 9)]
    assert seen.gaps("a") == [(0, 4)]
    assert seen.gaps("c") == []
