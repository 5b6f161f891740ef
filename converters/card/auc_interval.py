"""Compute the confidence interval of a sample's AUC."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_Z_95 = 1.959963984540054  # standard normal, two-sided 95 %


def auc_interval(
    positive: npt.NDArray[np.bool_], score: F64
) -> tuple[float, float] | None:
    """
    Return the 95 % confidence interval of an AUC; None when it cannot be computed.

    The variance is DeLong's. The interval is computed on the logit scale, so that it
    stays within 0 and 1.

    Args:
        positive: bool [N].
        score: Higher is more suspicious; [N].

    Source: DeLong, DeLong, Clarke-Pearson (1988), "Comparing the areas under two or
    more correlated receiver operating characteristic curves", Biometrics 44.
    """
    ones, zeros = np.sort(score[positive]), np.sort(score[~positive])
    if min(len(ones), len(zeros)) < 2:
        return None
    of_ones, of_zeros = _below(ones, zeros), 1 - _below(zeros, ones)
    auc = float(of_ones.mean())
    variance = of_ones.var(ddof=1) / len(ones) + of_zeros.var(ddof=1) / len(zeros)
    if not 0 < auc < 1 or variance == 0:
        return None
    half = _Z_95 * float(np.sqrt(variance)) / (auc * (1 - auc))
    logit = float(np.log(auc / (1 - auc)))
    low, high = (1 / (1 + float(np.exp(-x))) for x in (logit - half, logit + half))
    return low, high


def _below(score: F64, others: F64) -> F64:
    """Return the share of the others below each score; an equal one counts half."""
    below = np.searchsorted(others, score, side="left")
    not_above = np.searchsorted(others, score, side="right")
    share: F64 = (below + not_above) / (2 * len(others))
    return share
