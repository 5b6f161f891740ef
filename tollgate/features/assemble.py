"""Put the features of a batch together from request fields and window sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.features.spec import Feature, FeatureSpec
from tollgate.features.windows import Sums

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
_LAST_NIGHT_HOUR = 6  # an hour of 0 … 6 is night


def assemble(
    spec: FeatureSpec, *, cents: I64, time_us: I64, sums: Sequence[Sums]
) -> F64:
    """
    Compute the feature vectors of N purchases.

    Args:
        spec: Which features, in which order.
        cents: Amounts; int64 [N].
        time_us: Event times, µs since the epoch, UTC; int64 [N].
        sums: Window sums per entity of the spec.

    Returns:
        float64 [N, F]; the served vector is its one cast to float32.
    """
    features = np.empty((len(cents), len(spec.features)), np.float64)
    for column, feature in enumerate(spec.features):
        if feature.aggregate is not None:
            features[:, column] = _aggregate(feature, sums[feature.entity])
        elif feature.calendar is not None:
            features[:, column] = _calendar(feature.calendar, time_us)
        else:
            features[:, column] = cents / 100.0
    return features


def defaults(spec: FeatureSpec, *, cents: I64, time_us: I64) -> F64:
    """
    Compute the vectors to use when the store has no answer.

    Returns:
        float64 [N, F]: what the request itself tells, and the declared defaults.
    """
    features = np.empty((len(cents), len(spec.features)), np.float64)
    for column, feature in enumerate(spec.features):
        if feature.aggregate is not None:
            features[:, column] = feature.default
        elif feature.calendar is not None:
            features[:, column] = _calendar(feature.calendar, time_us)
        else:
            features[:, column] = cents / 100.0
    return features


def _aggregate(feature: Feature, sums: Sums) -> F64 | I64:
    count = sums.count[:, feature.window]
    if feature.aggregate == "count":
        return count
    if feature.aggregate == "sum":
        return sums.cents[:, feature.window] / 100.0
    if feature.aggregate == "flagged":
        return sums.fraud[:, feature.window]
    if feature.aggregate == "mean":
        # One division: cents are exact, so the mean is rounded once.
        return _ratio(sums.cents[:, feature.window], count * 100)
    return _ratio(sums.fraud[:, feature.window], count)


def _ratio(part: I64, whole: I64) -> F64:
    return np.divide(part, whole, out=np.zeros(len(part), np.float64), where=whole != 0)


def _calendar(calendar: str, time_us: I64) -> npt.NDArray[np.bool_]:
    if calendar == "weekend":
        # The epoch was a Thursday; Saturday and Sunday are days 5 and 6 from Monday.
        weekend: npt.NDArray[np.bool_] = (time_us // _DAY_US + 3) % 7 >= 5
        return weekend
    night: npt.NDArray[np.bool_] = time_us % _DAY_US // _HOUR_US <= _LAST_NIGHT_HOUR
    return night
