"""Bins of scores and latencies, and clusters of customers, for a trial's counts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Bins of the log odds, ln(p / (1 - p)), from -12 to 12 in steps of 0.1: most scores of
# a rare event lie within a hundredth of 0.
_MOST_ODDS, _STEPS = 12.0, 10
SCORE_BINS = int(2 * _MOST_ODDS * _STEPS) + 2
# Times in µs, eight bins per doubling: a quantile is accurate to 9 %.
_PER_DOUBLING = 8
TIME_BINS = 26 * _PER_DOUBLING + 1  # up to 67 s
TIME_EDGES_US = (0.0, *(2.0 ** (at / _PER_DOUBLING) for at in range(TIME_BINS)))
# Number of customer clusters; they show how similar the rows of one customer are.
CLUSTERS = 64

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def score_bins(score: F64) -> I64:
    """Return the bins of scores: 0 and nearly 0 in the first, 1 in the last."""
    with np.errstate(divide="ignore"):
        odds = np.log(score) - np.log1p(-score)
    place = np.floor((np.clip(odds, -99, 99) + _MOST_ODDS) * _STEPS) + 1
    bins: I64 = np.clip(place, 0, SCORE_BINS - 1).astype(np.int64)
    return bins


def score_edges() -> F64:
    """Return the scores between the bins; one fewer than bins."""
    odds = np.arange(SCORE_BINS - 1) / _STEPS - _MOST_ODDS
    edges: F64 = 1 / (1 + np.exp(-odds))
    return edges


def time_bins(took_us: I64) -> I64:
    """Return the bins of times; their edges are TIME_EDGES_US."""
    place = np.floor(np.log2(np.maximum(took_us, 0.5)) * _PER_DOUBLING) + 1
    bins: I64 = np.clip(place, 0, TIME_BINS - 1).astype(np.int64)
    return bins


def clusters(ids: Sequence[bytes]) -> I64:
    """
    Assign customers to clusters; all rows of one customer are in the same cluster.

    The hash differs from the one that chooses a canary's customers. With the same hash
    an arm would get only a few of the clusters.
    """
    return np.array([zlib.crc32(one) % CLUSTERS for one in ids], np.int64)
