"""
Find rows next to the splits of a model that shows only its predictions.

Behind a scaler or an encoder, thresholds cannot be read from the model. So this module
takes two sample rows that differ in one column and moves them together by bisection,
until they are one float32 apart and the model still predicts differently for them. That
pair marks a split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from converters.model import F32, F64
from converters.trees.tree_ensemble import Tree, smallest_right

PAIRS = 512
MADE_ROWS = 512  # generated where no sample is supplied
_STEPS = 34  # bisection steps over all float32 numbers


def boundary_rows(
    predict: Callable[[F32], F64], samples: F32, *, pairs: int = PAIRS, seed: int = 0
) -> F32:
    """
    Find neighbouring rows for which a model predicts differently.

    Args:
        samples: Sample rows, at least one; float32 [N, F].
        pairs: Number of pairs to look for.

    Returns:
        float32 [M, F], the two rows of each pair found, one after the other.
    """
    finite = samples[np.isfinite(samples).all(axis=1)]
    if not len(finite):
        return samples[:0]
    random = np.random.default_rng(seed)
    rows = finite[random.integers(0, len(finite), pairs)]
    column = np.arange(pairs) % samples.shape[1]
    each = np.arange(pairs)
    first = predict(rows)
    low = ordered(rows[each, column])
    high = ordered(finite[random.integers(0, len(finite), pairs), column])
    for _ in range(_STEPS):
        middle = (low + high) // 2
        rows[each, column] = numbered(middle)
        answer = predict(rows)
        same = (answer == first).all(axis=1)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
        # A value that the model refuses (an unknown category) leads to no split.
        valid = ~np.isnan(answer).any(axis=1)
        rows, column, low, high = rows[valid], column[valid], low[valid], high[valid]
        first, each = first[valid], np.arange(int(valid.sum()))
        if not len(each):
            return samples[:0]
    pair = np.repeat(rows, 2, axis=0)
    pair[0::2][each, column] = numbered(low)
    pair[1::2][each, column] = numbered(high)
    return pair


def made_rows(trees: list[Tree], *, columns: int, seed: int = 0) -> F32:
    """
    Generate sample rows when there are none: values between and beyond the thresholds.

    Returns:
        float32 [MADE_ROWS, F]; small and large numbers in columns without threshold.
    """
    random = np.random.default_rng(seed)
    rows = random.normal(size=(MADE_ROWS, columns)) * 10 ** random.uniform(
        -1, 3, size=(MADE_ROWS, columns)
    )
    limits = {
        (feature, limit)
        for tree in trees
        for feature, limit in zip(
            tree.feature[tree.is_split].tolist(),
            smallest_right(tree)[tree.is_split].tolist(),
            strict=True,
        )
        # Libraries write "all but missing" as a split at infinity.
        if np.isfinite(limit)
    }
    for column in range(columns):
        found = sorted({limit for of, limit in limits if of == column})
        if not found:
            continue
        reach = (found[-1] - found[0]) or max(abs(found[0]), 1.0)
        ends = [found[0] - 0.1 * reach, *found, found[-1] + 0.1 * reach]
        at = random.integers(0, len(ends) - 1, MADE_ROWS)
        share = random.random(MADE_ROWS)
        lower, upper = np.asarray(ends)[at], np.asarray(ends)[at + 1]
        rows[:, column] = lower + share * (upper - lower)
    limit = float(np.finfo(np.float32).max)
    return np.clip(rows, -limit, limit).astype(np.float32)


def with_codes(
    rows: F32, codes: Mapping[int, Sequence[float]], *, seed: int = 0
) -> F32:
    """Return the rows with only known codes in category columns."""
    random = np.random.default_rng(seed)
    found = rows.copy()
    for column, known in codes.items():
        if known:
            found[:, column] = random.choice(np.asarray(known), len(rows))
    return found


def ordered(values: F32) -> npt.NDArray[np.int64]:
    """Map float32 values to integers that keep their order; neighbours differ by 1."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def numbered(ordered: npt.NDArray[np.int64]) -> F32:
    bits = np.where(ordered >= 0, ordered, (-ordered) | 0x80000000)
    found: F32 = bits.astype(np.uint32).view(np.float32)
    return found
