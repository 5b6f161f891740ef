"""
Score readings with the usual detectors, to compare with: none looks ahead.

Each returns one number per reading, the larger the more anomalous; of several sensors
the largest. They see single readings and no windows of features.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tollgate.detection.nab_score import probation

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

GAUSSIAN_READINGS = 6_400  # window of the benchmark's windowed Gaussian detector
_FEWEST = 10  # earlier readings for a standard deviation


def three_sigma(values: F64) -> F64:
    """
    Score readings by their distance from the mean of all earlier ones.

    Args:
        values: Readings of one machine in the order of time; NaN where there is no
            value; [N, S].

    Returns:
        In standard deviations of the earlier readings; the rule gives an alarm above 3;
        float64 [N].
    """
    return _deviations(values, readings=len(values))


def windowed_gaussian(values: F64, *, readings: int = GAUSSIAN_READINGS) -> F64:
    """
    Score readings by a Gaussian fitted to the newest earlier ones.

    Its tail probability falls with the distance in standard deviations, which is
    returned: other than the probability, it does not vanish for a far reading.

    Args:
        values: As of `three_sigma`.
        readings: Number of earlier readings that the Gaussian is fitted to.
    """
    return _deviations(values, readings=readings)


def isolation_forest(values: F64, *, seed: int = 0) -> F64:
    """
    Score readings with an isolation forest of the machine's first readings.

    It is trained on those that the benchmark does not judge, which have the score 0. A
    missing value counts as the median.

    Args:
        values: As of `three_sigma`.
        seed: Of the random numbers.
    """
    from sklearn.ensemble import IsolationForest

    first = probation(len(values))
    score = np.zeros(len(values))
    if first < _FEWEST:
        return score
    known = np.isfinite(values[:first])
    middle = [
        float(np.median(column[has])) if has.any() else 0.0
        for column, has in zip(values[:first].T, known.T, strict=True)
    ]
    filled = np.where(np.isfinite(values), values, middle)
    forest = IsolationForest(n_estimators=100, random_state=seed).fit(filled[:first])
    score[first:] = -forest.score_samples(filled[first:])
    return score


def _deviations(values: F64, *, readings: int) -> F64:
    """Return the largest distance from earlier readings in standard deviations; [N]."""
    table = np.asarray(values, np.float64)
    largest = np.zeros(len(table))
    stop = np.arange(len(table))
    start = np.maximum(stop - readings, 0)
    for column in table.T:
        known = np.isfinite(column)
        if not known.any():
            continue
        # Values near 0 keep the differences of sums exact.
        own = np.where(known, column - column[known][0], 0.0)
        total, squares, count = (
            np.append(0.0, np.cumsum(one)) for one in (own, own * own, known)
        )
        rows = count[stop] - count[start]
        few = rows < _FEWEST
        rows[few] = 1
        mean = (total[stop] - total[start]) / rows
        variance = (squares[stop] - squares[start]) / rows - mean**2
        least = 1e-12 * np.maximum((squares[stop] - squares[start]) / rows, 1e-300)
        flat = variance <= least
        distance = np.abs(own - mean)
        score = distance / np.sqrt(np.where(flat, 1.0, variance))
        # After readings of one value, any other is farther than every distance.
        score[flat] = np.where(distance[flat] > np.sqrt(least[flat]), 1e6, 0.0)
        score[few | ~known] = 0.0
        largest = np.maximum(largest, score)
    return largest
