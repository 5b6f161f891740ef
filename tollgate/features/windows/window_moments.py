"""
Compute variances, covariances and weighted sums of windows from exact integers.

For numbers a and b of the n entries of a window, n · Σab - Σa · Σb is an integer:
n² times their covariance. It is found exactly and rounded to a float64 once, so it
depends neither on the order of the entries nor on the other rows of a batch. Weights
are integers, too.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.features.windows.entity_entries import running

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

DIGIT_BITS = 21
_DIGIT = 1 << DIGIT_BITS


def digits(values: I64, count: int) -> list[I64]:
    """
    Split integers into digits of 21 bits, the lowest first; the last has the sign.
    """
    lower = [(values >> (DIGIT_BITS * at)) & (_DIGIT - 1) for at in range(count - 1)]
    return [*lower, values >> (DIGIT_BITS * (count - 1))]


def rounded(levels: Sequence[I64]) -> F64:
    """
    Return Σ levels[k] · 2^(21 · k), exact and then rounded to a float64 once; [R].
    """
    lowest, *higher = [one.tolist() for one in levels]
    whole = lowest
    for at, level in enumerate(higher, 1):
        shift = DIGIT_BITS * at
        whole = [low + (high << shift) for low, high in zip(whole, level, strict=True)]
    return np.array([float(one) for one in whole], np.float64)


MOST_ENTRIES = 1024  # of a window of which Covariance is exact


class Covariance:
    """
    Compute n · Σab - Σa · Σb over the known entries of windows.

    Each number is split into digits of 21 bits, and the products of digits are summed
    modulo 2^64. In a window of 1,024 entries (`MOST_ENTRIES`), n · Σab - Σa · Σb of two
    digits is at most n² / 4 · 2^42 = 2^60, so it is exact; the sums need not be.

    Args:
        first: Digits of a; int64 [E] each.
        second: Digits of b; None for a itself.
        known: True for the entries that count; bool [E].
    """

    def __init__(
        self, first: Sequence[I64], second: Sequence[I64] | None, known: Bool
    ) -> None:
        a = [np.where(known, digit, 0) for digit in first]
        b = a if second is None else [np.where(known, digit, 0) for digit in second]
        self._count = running(known)
        self._a = [running(digit) for digit in a]
        self._b = self._a if second is None else [running(digit) for digit in b]
        # With itself, the products of two digits occur twice.
        self._products = [
            (i, j, 1 if second is not None or i == j else 2, running(a[i] * b[j]))
            for i in range(len(a))
            for j in range(len(b))
            if second is not None or i <= j
        ]

    def windows(self, *, begin: I64, end: I64) -> F64:
        """Return n · Σab - Σa · Σb of each window, rounded once; float64 [R]."""
        count = self._count[end] - self._count[begin]
        a = [sums[end] - sums[begin] for sums in self._a]
        b = a if self._b is self._a else [one[end] - one[begin] for one in self._b]
        levels = [np.zeros(begin.shape, np.int64) for _ in range(len(a) + len(b) - 1)]
        for i, j, times, sums in self._products:
            level: I64 = count * (sums[end] - sums[begin]) - a[i] * b[j]
            levels[i + j] += times * level
        return rounded(levels)


_DIGITS = 3  # of any integer of 64 bits
Part = tuple[I64, int]  # numbers, and the power of two by which each is multiplied


def product_parts(a: I64, b: I64 | None = None) -> list[Part]:
    """
    Split the products of integers into parts of at most 25 bits; [E] each.

    Args:
        a: int64 [E].
        b: int64 [E]; None for a alone.
    """
    if b is None:
        return [(one, DIGIT_BITS * at) for at, one in enumerate(digits(a, _DIGITS))]
    levels = [np.zeros(len(a), np.int64) for _ in range(2 * _DIGITS)]
    for i, one in enumerate(digits(a, _DIGITS)):
        for j, other in enumerate(digits(b, _DIGITS)):
            levels[i + j] += one * other
    for at in range(len(levels) - 1):
        levels[at + 1] += levels[at] >> DIGIT_BITS
        levels[at] &= _DIGIT - 1
    return [(level, DIGIT_BITS * at) for at, level in enumerate(levels)]


class WideSum:
    """
    Sum integers of more than 64 bits over windows of any number of entries, exactly.

    Args:
        parts: The integers: each is the sum of its parts. A part has at most 32 bits,
            so 2^31 of them can be summed in 64 bits.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = [(running(one), shift) for one, shift in parts if one.any()]

    def windows(self, *, begin: I64, end: I64) -> list[int]:
        """Return the sum of each window; [R]."""
        total = [0] * len(begin)
        for sums, shift in self._parts:
            part = (sums[end] - sums[begin]).tolist()
            total = [a + (b << shift) for a, b in zip(total, part, strict=True)]
        return total


VALUE_DIGITS = 2  # of a value within ±10^12
_WEIGHT_BITS = 30  # of the newest value's weight
_STEPS = 64  # of a half-life, with an exact power of two each
_LN2 = 0.6931471805599453
_VALUES_AT_ONCE = 1 << 16  # of all windows together: bounds memory


@functools.cache
def _powers() -> F64:
    """Return 2^(30 - k / 64), each rounded once; the same on every processor."""
    two = decimal.Decimal(2)
    steps = (decimal.Decimal(step) / _STEPS for step in range(_STEPS))
    return np.array([float(two ** (_WEIGHT_BITS - step)) for step in steps])


def half_life_weights(age_us: I64, half_life_us: int) -> I64:
    """
    Return 2^30 · 2^(-age / half-life), rounded to integers; [K].

    Only additions, products and quotients of float64 are used, which are the same on
    every processor; `np.exp2` is not. The error before the rounding is below 10^-6.
    """
    halvings, rest_us = np.divmod(age_us, half_life_us)
    part = rest_us / half_life_us
    step = np.floor(part * _STEPS)
    y = (part - step / _STEPS) * _LN2
    series = np.ones(len(y))  # of exp(-y), y < 0.011, to the term y^6
    for term in range(6, 0, -1):
        series = 1.0 - y / term * series
    size = _powers()[step.astype(np.int64)] * series
    size = np.ldexp(size, -np.minimum(halvings, 64))
    weights: I64 = np.rint(size).astype(np.int64)
    return weights


def weighted_sums(
    values: I64,
    time_us: I64,
    known: Bool,
    *,
    half_life_us: int,
    begin: I64,
    end: I64,
) -> tuple[F64, I64]:
    """
    Sum the known values of each window, each halved per half-life of its age.

    The newest known value of a window has the age 0 and the weight 2^30.

    Args:
        values: Within ±10^12; int64 [E].
        time_us: Their times, ascending within a window; int64 [E].
        known: True for the entries that count; bool [E].
        half_life_us: Age at which a weight is half.
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].

    Returns:
        Σ weight · value, exact and then rounded once, float64 [R]; and Σ weight, 0 for
        a window without values, int64 [R].
    """
    (places,) = known.nonzero()
    before = running(known)
    low, high = before[begin], before[end]
    newest_us = time_us[places[np.maximum(high - 1, 0)]] if len(places) else low
    parts = digits(values[places], VALUE_DIGITS)
    at_us = time_us[places]
    lengths = high - low
    upto = running(lengths)
    sums = np.zeros((1 + VALUE_DIGITS, len(low)), np.int64)
    first = 0
    while first < len(low):
        most = upto[first] + _VALUES_AT_ONCE
        last = max(int(upto.searchsorted(most, "right")) - 1, first + 1)
        rows = slice(first, last)
        ends = upto[first : last + 1] - upto[first]
        # Position of each value of each window among the known entries.
        at = np.arange(ends[-1]) + (low[rows] - ends[:-1]).repeat(lengths[rows])
        age_us = newest_us[rows].repeat(lengths[rows]) - at_us[at]
        weight = half_life_weights(age_us, half_life_us)
        for sum_, factor in zip(sums, (None, *parts), strict=True):
            added = running(weight if factor is None else weight * factor[at])
            sum_[rows] = added[ends[1:]] - added[ends[:-1]]
        first = last
    return rounded(list(sums[1:])), sums[0]
