"""
Score alarms against labelled windows as the Numenta Anomaly Benchmark does.

Source: Lavin, Ahmad (2015), "Evaluating Real-time Anomaly Detection Algorithms - the
Numenta Anomaly Benchmark", section II, with the weights of its standard profile. Only
the earliest alarm in a window counts, and counts more the earlier it comes; an alarm
outside of windows costs more the farther it comes after the last window; the first
readings of a series are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

PROBATION_SHARE = 0.15  # of the readings of a series, the first
PROBATION_MOST = 750  # readings: 15 % of 5,000
_FAR = 3.0  # window lengths after a window, from which an alarm costs all of its weight


class Profile(msgspec.Struct, frozen=True):
    """
    Weights of outcomes; the defaults are the benchmark's standard profile.

    The benchmark's weight of true negatives is left out: its score does not use it.
    """

    true_positive: float = 1.0
    false_positive: float = 0.11
    false_negative: float = 1.0


STANDARD = Profile()


class SeriesScore(msgspec.Struct, frozen=True):
    """
    Score of the alarms of one series.

    Attributes:
        raw: Sum of the weights of detections, misses and false alarms.
        windows: Number of labelled windows.
        detected: Number of windows with an alarm.
        false_alarms: Number of judged alarms outside of windows.
    """

    raw: float
    windows: int
    detected: int
    false_alarms: int


def window_bounds(in_window: npt.ArrayLike) -> I64:
    """
    Find the labelled windows: the runs of readings that are in one.

    Args:
        in_window: One series in the order of time; bool [N].

    Returns:
        First and last reading of each window; int64 [W, 2].
    """
    flags = np.asarray(in_window, dtype=bool)
    edges = np.diff(flags.astype(np.int8), prepend=0, append=0)
    bounds = [np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1]
    return np.asarray(np.stack(bounds, axis=1), np.int64)


def probation(readings: int) -> int:
    """Count the first readings of a series whose alarms are not judged."""
    return min(int(PROBATION_SHARE * readings), PROBATION_MOST)


def position_weight(position: npt.ArrayLike) -> F64:
    """
    Weigh positions: 2 / (1 + e^(5 y)) - 1, and -1 beyond three window lengths.

    Args:
        position: -1 at a window's begin, 0 at its end, 1 a window's length later.
    """
    y = np.asarray(position, dtype=np.float64)
    weight = 2.0 / (1.0 + np.exp(5.0 * np.minimum(y, _FAR))) - 1.0
    return np.where(y > _FAR, -1.0, weight)


def series_score(
    in_window: npt.ArrayLike, onsets: npt.ArrayLike, *, profile: Profile = STANDARD
) -> SeriesScore:
    """
    Score the alarms of one series.

    A detection at the first reading of a window has the whole weight of a true
    positive.

    Args:
        in_window: Labels of the readings in the order of time; bool [N].
        onsets: Positions of the readings at which alarms begin; int [A].

    Raises:
        InputError: An onset is no position of a reading.
    """
    flags = np.asarray(in_window, dtype=bool)
    at = np.unique(np.asarray(onsets, dtype=np.int64))
    if len(at) and not 0 <= at[0] <= at[-1] < len(flags):
        problem = f"{at[0]} … {at[-1]} are not within 0 … {len(flags) - 1}"
        raise InputError("onsets", problem)
    bounds = window_bounds(flags)
    at = at[at >= probation(len(flags))]
    before = np.searchsorted(bounds[:, 0], at, "right") - 1  # window at or before it
    first, last = bounds[np.maximum(before, 0)].T if len(bounds) else (at, at)
    inside = flags[at]

    found, earliest = np.unique(before[inside], return_index=True)
    width = (last - first + 1)[inside][earliest]
    position = -(last[inside][earliest] - at[inside][earliest] + 1) / width
    gained = position_weight(position) / position_weight(-1.0)

    alarms, window = at[~inside], before[~inside]
    after = (alarms - last[~inside]) / np.maximum((last - first)[~inside], 1)
    lost = np.where(window < 0, -1.0, position_weight(after))

    missed = len(bounds) - len(found)
    raw = (
        profile.true_positive * float(gained.sum())
        - profile.false_negative * missed
        + profile.false_positive * float(lost.sum())
    )
    return SeriesScore(
        raw=raw, windows=len(bounds), detected=len(found), false_alarms=len(alarms)
    )


def nab_score(scores: Sequence[SeriesScore], *, profile: Profile = STANDARD) -> float:
    """
    Normalise the scores of series: 100 for a perfect detector, 0 without any alarm.

    Raises:
        InputError: No series has a labelled window.
    """
    windows = sum(one.windows for one in scores)
    if not windows:
        raise InputError("in_window", "no series has a labelled window")
    perfect = profile.true_positive * windows
    null = -profile.false_negative * windows
    return 100.0 * (sum(one.raw for one in scores) - null) / (perfect - null)
