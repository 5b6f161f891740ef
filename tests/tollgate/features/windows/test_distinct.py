"""Different values of windows, against sets of Python."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.features.windows.window_values import distinct, previous, row_order


def test_previous_is_within_the_entity_and_among_known_values() -> None:
    """By hand: 7 stands at 0, 2 (not known) and 3; the second entity starts again."""
    values = np.array([7, 8, 7, 7, 7, 8])
    known = np.array([True, True, False, True, True, True])
    entity = np.array([0, 0, 0, 0, 1, 1])
    got = previous(values, known, entity=entity)
    assert got.tolist() == [-1, -1, -1, 0, -1, -1]


def test_rows_that_ascend_are_left_as_they_are() -> None:
    """Others are sorted by entity and time, then by their own place."""
    ascending = row_order(np.array([1, 1, 2]), np.array([3, 4, 4]))
    assert ascending == slice(None)
    order = row_order(np.array([2, 1, 1]), np.array([5, 4, 3]))
    assert np.asarray(order).tolist() == [2, 1, 0]


@pytest.mark.parametrize("kinds", [1, 3, 40])
def test_sliding_windows_equal_sets(kinds: int) -> None:
    """Windows whose begins and ends ascend, rows in any order, some windows empty."""
    source = np.random.default_rng(kinds)
    for _ in range(50):
        count, rows = source.integers(1, 60), source.integers(1, 40)
        values = source.integers(0, kinds, count)
        known = source.random(count) < 0.8
        end = np.sort(source.integers(0, count + 1, rows))
        begin = np.minimum(np.sort(source.integers(0, count + 1, rows)), end)
        before = previous(values, known, entity=np.zeros(count, np.int64))
        order = source.permutation(rows)
        got = distinct(before, known, begin=begin, end=end, order=order)
        for place, (a, b) in enumerate(zip(begin, end, strict=True)):
            wanted = {values[n] for n in range(a, b) if known[n]}
            assert got[order[place]] == len(wanted)
