"""
Compute the variance and the covariance of windows from exact integers.

For numbers a and b of the n entries of a window, n · Σab - Σa · Σb is an integer:
n² times their covariance. It is found exactly and rounded to a float64 once, so it
depends neither on the order of the entries nor on the other rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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


def running(values: npt.NDArray[np.generic]) -> I64:
    """
    Add up values of entries: a window's sum is the difference between its ends.

    Returns:
        The sum of the values before each position, modulo 2^64; int64 [E + 1].
    """
    sums = np.zeros(len(values) + 1, np.int64)
    np.add.accumulate(values, dtype=np.int64, out=sums[1:])
    return sums


class Covariance:
    """
    Compute n · Σab - Σa · Σb over the known entries of windows.

    Each number is split into digits of 21 bits, and the products of digits are summed
    modulo 2^64. In a window of 1,024 entries, n · Σab - Σa · Σb of two digits is at
    most n² / 4 · 2^42 = 2^60, so it is exact; the sums themselves need not be.

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
