"""Exact variances and covariances of windows, against Python's integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tollgate.features.windows.window_moments import Covariance, digits, rounded

TEN_YEARS_US = 3653 * 86_400_000_000
LARGEST = 10**12


def exact(first: list[int], second: list[int]) -> float:
    """Return n² times the covariance, from its definition."""
    count = len(first)
    if not count:
        return 0.0
    middle, mean = Fraction(sum(first), count), Fraction(sum(second), count)
    pairs = zip(first, second, strict=True)
    return float(count * sum((a - middle) * (b - mean) for a, b in pairs))


def test_an_integer_of_several_digits_is_rounded_once() -> None:
    """Ties to even, signs, and integers beyond 64 bits, as Python rounds them."""
    wholes = [0, 1, -1, 2**53 + 1, -(2**53) - 1, 2**54 + 2, 2**100 + 1, -(2**110) - 3]
    levels = [
        np.array([one >> (21 * at) & (2**21 - 1) for one in wholes]) for at in range(4)
    ]
    levels.append(np.array([one >> 84 for one in wholes]))
    assert rounded(levels).tolist() == [float(one) for one in wholes]


@pytest.mark.parametrize("low", [-LARGEST, -3, 0, LARGEST - 5])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_windows_are_exact(low: int, seed: int) -> None:
    """Values and times of any size and sign, with entries that do not count."""
    source = np.random.default_rng(seed)
    high = LARGEST if low == -LARGEST else low + 9
    values = source.integers(low, high, 80, endpoint=True)
    times = np.sort(source.integers(0, TEN_YEARS_US, 80)) + 1_700_000_000_000_000
    known = source.random(80) < 0.8
    begin, end = np.triu_indices(81)
    x, t = digits(values, 2), digits(times, 3)
    found = {
        "xx": Covariance(x, None, known).windows(begin=begin, end=end),
        "tx": Covariance(t, x, known).windows(begin=begin, end=end),
        "tt": Covariance(t, None, known).windows(begin=begin, end=end),
    }
    for at in range(0, len(begin), 7):
        own = [n for n in range(begin[at], end[at]) if known[n]]
        window = {
            "x": [int(values[n]) for n in own],
            "t": [int(times[n]) for n in own],
        }
        for name, one in found.items():
            assert one[at] == exact(window[name[0]], window[name[1]])


@pytest.mark.parametrize("pattern", ["halves", "alternating"])
def test_the_largest_window_is_exact(pattern: str) -> None:
    """1,024 entries of the largest values, ten years apart."""
    places = np.arange(1024)
    upper = places >= 512 if pattern == "halves" else places % 2 == 1
    values = np.where(upper, LARGEST, -LARGEST)
    times = np.where(places >= 512, TEN_YEARS_US, 0) + 1_700_000_000_000_000
    known = np.ones(1024, np.bool_)
    begin, end = np.array([0]), np.array([1024])
    x, t = digits(values, 2), digits(times, 3)
    for first, second, wanted in (
        (x, None, exact(values.tolist(), values.tolist())),
        (t, x, exact(times.tolist(), values.tolist())),
        (t, None, exact(times.tolist(), times.tolist())),
    ):
        covariance = Covariance(first, second, known)
        assert covariance.windows(begin=begin, end=end).tolist() == [wanted]
