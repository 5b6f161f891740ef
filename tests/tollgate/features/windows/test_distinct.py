"""Different values of windows, against sets of Python."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.features.plain_sketch import approximate_count
from tollgate.features.windows.distinct_values import (
    STANDARD_ERROR,
    distinct,
    estimate,
    previous,
    registers_of,
    row_order,
    sketch_windows,
)
from tollgate.schema import hash_words

I64 = npt.NDArray[np.int64]


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


def test_a_register_holds_the_highest_rank() -> None:
    """By hand: the lowest seven bits, and the zeros before the first one."""
    hashes = np.array([5, 1 << 62 | 127, -1, 1 << 49 | 128, 1 << 50], np.int64)
    registers, ranks = registers_of(hashes)
    assert registers.tolist() == [5, 127, 127, 0, 0]
    assert ranks.tolist() == [15, 2, 1, 15, 14]


def estimated(values: I64) -> float:
    """Estimate the different values of one window with these hashes."""
    ends = np.array([0, len(values)])
    found = sketch_windows(
        values,
        np.ones(len(values), np.bool_),
        starts=ends,
        begin=ends[:1],
        end=ends[1:],
        order=slice(None),
    )
    return float(estimate(found)[0])


@pytest.mark.parametrize("count", [0, 1, 2, 100, 1_000, 50_000])
def test_an_estimate_is_that_of_the_definition(count: int) -> None:
    """Texts that come twice count once."""
    words = [f"device-{one}" for one in range(count)]
    values = hash_words([one.encode() for one in [*words, *words[:9]]])
    assert estimated(values) == approximate_count(words)


@pytest.mark.parametrize(
    ("count", "sets"),
    [(10, 300), (40, 300), (150, 300), (320, 300), (2_500, 200), (500_000, 30)],
)
def test_the_error_is_as_stated(count: int, sets: int) -> None:
    """The root mean square over many sets of random hashes; nearly no bias."""
    source = np.random.default_rng(count)
    found = [
        estimated(source.integers(-(2**63), 2**63 - 1, count)) for _ in range(sets)
    ]
    errors = np.array(found) / count - 1
    assert np.sqrt(np.mean(errors**2)) < 1.25 * STANDARD_ERROR
    assert abs(np.mean(errors)) < 0.5 * STANDARD_ERROR
