"""Exact variances and covariances of windows, against Python's integers."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from tollgate.features.windows import window_moments
from tollgate.features.windows.window_moments import (
    Covariance,
    digits,
    half_life_weights,
    rounded,
    weighted_sums,
)

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


def weight(age_us: int, half_life_us: int) -> int:
    """Return the weight of an age from its definition."""
    return round(2**30 * Decimal(2) ** -(Decimal(age_us) / half_life_us))


@pytest.mark.parametrize("half_life_us", [10**6, 3_600_000_000, TEN_YEARS_US])
def test_weights_halve_with_age(half_life_us: int) -> None:
    """2^30 at age 0, half of it at each half-life, 0 beyond 31 of them."""
    source = np.random.default_rng(3)
    ages = source.integers(0, 40 * half_life_us, 2_000)
    ages[:4] = 0, half_life_us - 1, half_life_us, half_life_us + 1
    ages[4:100] = source.integers(0, half_life_us, 96)
    wanted = [weight(one, half_life_us) for one in ages.tolist()]
    assert half_life_weights(ages, half_life_us).tolist() == wanted
    assert wanted[0] == 2**30
    assert wanted[2] == 2**29
    beyond = np.array([32 * half_life_us, 2**62])
    assert half_life_weights(beyond, half_life_us).tolist() == [0, 0]


@pytest.mark.parametrize("values_at_once", [1, 50, 2**20])
def test_weighted_sums_are_exact(
    monkeypatch: pytest.MonkeyPatch, values_at_once: int
) -> None:
    """Every window of 40 entries, with ties and unknown ones, in parts of any size."""
    monkeypatch.setattr(window_moments, "_VALUES_AT_ONCE", values_at_once)
    source = np.random.default_rng(5)
    values = source.integers(-LARGEST, LARGEST, 40, endpoint=True)
    times = np.sort(source.integers(0, 90, 40)) * 10**9
    known = source.random(40) < 0.7
    begin, end = np.triu_indices(41)
    sums, weights = weighted_sums(
        values, times, known, half_life_us=7 * 10**9, begin=begin, end=end
    )
    for at in range(len(begin)):
        own = [n for n in range(begin[at], end[at]) if known[n]]
        wanted = [weight(int(times[own[-1]] - times[n]), 7 * 10**9) for n in own]
        assert weights[at] == sum(wanted)
        exact_sum = sum(w * int(values[n]) for w, n in zip(wanted, own, strict=True))
        assert sums[at] == float(exact_sum)


def test_the_largest_weighted_sum_is_exact() -> None:
    """1,024 entries of the largest value at one instant."""
    ones = np.ones(1024, np.int64)
    sums, weights = weighted_sums(
        ones * -LARGEST,
        ones,
        ones > 0,
        half_life_us=1,
        begin=np.array([0]),
        end=np.array([1024]),
    )
    assert weights.tolist() == [2**40]
    assert sums.tolist() == [float(-LARGEST * 2**40)]
