"""Smallest, largest and newest of windows, against slices of Python."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.features.windows.window_values import extremes, latest

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 64, 65])
def test_every_window_of_every_length_equals_a_slice(count: int, largest: bool) -> None:
    """All begins and ends, with values that do not count, at powers of two too."""
    source = np.random.default_rng(count)
    values = source.integers(-(10**12), 10**12, count)
    known = source.random(count) < 0.7
    begin, end = np.triu_indices(count + 1)
    got = extremes(values, known, begin=begin, end=end, largest=largest)
    pick, nothing = (max, LEAST) if largest else (min, MOST)
    wanted = [
        pick((int(values[n]) for n in range(a, b) if known[n]), default=nothing)
        for a, b in zip(begin.tolist(), end.tolist(), strict=True)
    ]
    assert got.tolist() == wanted


def test_newest_known_entry_within_the_window() -> None:
    """Its place; -1 when the newest known one lies before the window, or none is."""
    known = np.array([False, True, False, True, False])
    begin = np.array([0, 0, 0, 2, 4, 1, 5])
    end = np.array([0, 1, 3, 3, 5, 5, 5])
    got = latest(known, begin=begin, end=end)
    assert got.tolist() == [-1, -1, 1, -1, -1, 3, -1]
