"""
Estimate shares, means, quantiles and distances with 95 % confidence intervals.

All estimates are closed formulas over counts, each with its source: they need no rows
and draw no random numbers. Without rows the value is NaN, and the interval spans all
possible values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Z = 1.959963984540054  # standard normal, 97.5 %
ALPHA = 0.05
PSI_BINS = 10

_I64 = npt.NDArray[np.int64]


class Interval(msgspec.Struct, frozen=True):
    """An estimate and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def share(hits: float, rows: float) -> Interval:
    """
    Estimate a share.

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical
    inference", J. Am. Stat. Assoc. 22, 209-212.
    """
    if rows <= 0:
        return Interval(math.nan, 0.0, 1.0)
    value, z2 = hits / rows, Z * Z
    middle = (value + z2 / (2 * rows)) / (1 + z2 / rows)
    half = Z * math.sqrt(value * (1 - value) / rows + z2 / (4 * rows * rows))
    half /= 1 + z2 / rows
    # Rounding must not move an end away from exactly 0 or 1.
    low = 0.0 if hits <= 0 else max(0.0, middle - half)
    return Interval(value, low, 1.0 if hits >= rows else min(1.0, middle + half))


def design_effect(rows: Sequence[int], hits: Sequence[int]) -> float:
    """
    Estimate how many rows count as one, because rows of one customer are alike.

    The result is the variance of a share between clusters of customers, divided by the
    variance that independent rows would have.

    Returns:
        1 or more; 1 if there is too little data.

    Source: random groups, Wolter (2007), "Introduction to Variance Estimation", 2.4,
    for a ratio; the design effect of Kish (1965), "Survey Sampling", 8.2.
    """
    sizes, hit = np.asarray(rows, np.float64), np.asarray(hits, np.float64)
    total, used = float(sizes.sum()), int((sizes > 0).sum())
    value = float(hit.sum() / total) if total else 0.0
    if used < 2 or not 0 < value < 1:
        return 1.0
    between = float(((hit - value * sizes) ** 2).sum()) * used / (used - 1)
    return max(1.0, between / (total * value * (1 - value)))


def worth_share(
    hit: float,
    total: float,
    *,
    hit_squares: float,
    squares: float,
    effect: float = 1.0,
) -> Interval:
    """
    Estimate the share of a sum, such as money, that belongs to the hits.

    Args:
        hit: Sum of the values of the hits.
        total: Sum of the values of all rows; no value is below 0.
        hit_squares: Sum of the squares of the hits' values.
        squares: Sum of the squares of all values.
        effect: Design effect of the rows.

    Source: the variance of a ratio by Cochran (1977), "Sampling Techniques", 6.3;
    converted into an effective number of rows (Kish 1965, "Survey Sampling", 11.7, if
    none or all are hits), in Wilson's interval, as Dean and Pagano (2015), J. Surv.
    Stat. Methodol. 3, 484-503.
    """
    if total <= 0 or squares <= 0:
        return Interval(math.nan, 0.0, 1.0)
    value = min(1.0, hit / total)
    alike = total * total / squares
    if 0 < value < 1:
        spread = hit_squares * (1 - 2 * value) + value * value * squares
        if spread > 0:
            alike = min(alike, value * (1 - value) * total * total / spread)
    return share(value * alike / effect, alike / effect)


def difference(hits: float, rows: float, *, than: tuple[float, float]) -> Interval:
    """
    Estimate the difference of two shares of different rows.

    Args:
        than: Hits and rows of the share to subtract.

    Source: Newcombe (1998), "Interval estimation for the difference between independent
    proportions", Stat. Med. 17, 873-890, method 10.
    """
    one, other = share(hits, rows), share(*than)
    if rows <= 0 or than[1] <= 0:
        return Interval(math.nan, -1.0, 1.0)
    value = one.value - other.value
    below = math.hypot(one.value - one.low, other.high - other.value)
    above = math.hypot(one.high - one.value, other.value - other.low)
    return Interval(value, value - below, value + above)


def paired_difference(more: float, less: float, *, rows: float) -> Interval:
    """
    Estimate the difference of two shares of the same rows.

    Args:
        more: Rows that are hits in the first share only.
        less: Rows that are hits in the second share only.

    Source: Agresti and Min (2005), "Simple improved confidence intervals for comparing
    matched proportions", Stat. Med. 24, 729-740: half a row more in each of four cells.
    """
    if rows <= 0:
        return Interval(math.nan, -1.0, 1.0)
    count = rows + 2
    apart, among = more - less, more + less + 1
    half = Z * math.sqrt(among - apart * apart / count) / count
    middle = apart / count
    return Interval(apart / rows, max(-1.0, middle - half), min(1.0, middle + half))


def mean(total: float, squares: float, rows: int) -> Interval:
    """
    Estimate a mean of many rows from their sum and the sum of their squares.

    Source: the central limit theorem, with the variance of the sample.
    """
    if rows < 2:
        value = total / rows if rows else math.nan
        return Interval(value, -math.inf, math.inf)
    value = total / rows
    variance = max(0.0, squares - total * value) / (rows - 1)
    half = Z * math.sqrt(variance / rows)
    return Interval(value, value - half, value + half)


def quantile(counts: Sequence[int], edges: Sequence[float], *, at: float) -> Interval:
    """
    Estimate a quantile from a histogram; the interval ends at edges of bins.

    Args:
        edges: Edges of the bins, ascending; one more than bins.
        at: Level of the quantile, between 0 and 1.

    Source: order statistics by the binomial's normal approximation, Conover (1999),
    "Practical Nonparametric Statistics", 3.2.
    """
    rows = sum(counts)
    if rows == 0:
        return Interval(math.nan, 0.0, math.inf)
    half = Z * math.sqrt(rows * at * (1 - at))
    first, last = math.floor(rows * at - half), math.ceil(rows * at + half) + 1
    sums = np.cumsum(np.asarray(counts, np.int64))
    place = int(np.searchsorted(sums, max(1, math.ceil(rows * at))))
    low = edges[int(np.searchsorted(sums, first))] if first >= 1 else 0.0
    high = edges[int(np.searchsorted(sums, last)) + 1] if last <= rows else math.inf
    return Interval((edges[place] + edges[place + 1]) / 2, low, high)


def ks_distance(one: Sequence[int], other: Sequence[int]) -> Interval:
    """
    Estimate the largest distance of two distribution functions, on common bins.

    Source: Massart (1990), "The tight constant in the Dvoretzky-Kiefer-Wolfowitz
    inequality", Ann. Probab. 18, 1269-1283, for each of the two at half the chance.
    """
    a, b = np.asarray(one, np.int64), np.asarray(other, np.int64)
    n, m = int(a.sum()), int(b.sum())
    if n == 0 or m == 0:
        return Interval(math.nan, 0.0, 1.0)
    value = float(np.abs(np.cumsum(a) / n - np.cumsum(b) / m).max())
    within = sum(math.sqrt(math.log(4 / ALPHA) / (2 * rows)) for rows in (n, m))
    return Interval(value, max(0.0, value - within), min(1.0, value + within))


def stability_index(expected: Sequence[int], actual: Sequence[int]) -> Interval:
    """
    Estimate the population stability index of two histograms on common bins.

    The bins are joined into ten with about equal numbers of expected rows. Half a row
    is added to each, so that none is empty. Chance alone yields an index of B - 1 times
    (1/n + 1/m); the lower end is computed after subtracting it.

    Source: the index and its expectation under chance, Yurdakul and Naranjo (2020),
    "Statistical properties of the population stability index", J. Risk Model Valid.
    14(4); the variance by the delta method, plus that of chance alone.
    """
    a, b = _tenths(np.asarray(expected, np.int64), np.asarray(actual, np.int64))
    n, m, bins = int(a.sum()), int(b.sum()), len(a)
    if n == 0 or m == 0:
        return Interval(math.nan, 0.0, math.inf)
    p, q = (a + 0.5) / (n + bins / 2), (b + 0.5) / (m + bins / 2)
    log = np.log(q / p)
    value = float(((q - p) * log).sum())
    by_chance = (bins - 1) * (1 / n + 1 / m)
    variance = _spread(p, 1 - q / p - log) / n + _spread(q, 1 - p / q + log) / m
    variance += 2 * by_chance * (1 / n + 1 / m)
    half = Z * math.sqrt(variance)
    return Interval(value, max(0.0, value - by_chance - half), value + half)


def _spread(chance: npt.NDArray[np.float64], of: npt.NDArray[np.float64]) -> float:
    """Compute the variance of `of`, a value per bin, with bins drawn by `chance`."""
    return float((chance * of * of).sum() - (chance * of).sum() ** 2)


def _tenths(expected: _I64, actual: _I64) -> tuple[_I64, _I64]:
    """Join neighbouring bins into at most ten of about as many expected rows."""
    rows = max(1, int(expected.sum()))
    # Assign each bin by its middle: the neighbours of a bin that holds nearly all rows
    # are not joined to it.
    middle = 2 * np.cumsum(expected) - expected
    group = np.minimum(middle * PSI_BINS // (2 * rows), PSI_BINS - 1)
    groups = np.unique(group, return_inverse=True)[1]
    joined = [
        np.bincount(groups, weights=one).astype(np.int64) for one in (expected, actual)
    ]
    return joined[0], joined[1]


def sign_test(wins: int, losses: int) -> float:
    """
    Return the two-sided p-value of the sign test; ties are left out before.

    It is exact: twice the chance of so few heads among fair coins, at most 1.

    Source: Conover (1999), "Practical Nonparametric Statistics", 3.4.
    """
    count = wins + losses
    tail = chosen = 1
    for at in range(min(wins, losses)):
        chosen = chosen * (count - at) // (at + 1)
        tail += chosen
    # A ratio of whole numbers of any size, rounded once.
    return min(1.0, 2 * tail / (1 << count)) if count else 1.0
