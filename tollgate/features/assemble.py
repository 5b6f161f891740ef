"""Put the features of a batch together from request fields and window sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.features.spec import Aggregate, FeatureSpec
from tollgate.features.windows import Sums

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_DAY_US = 86_400_000_000
_NIGHT_END_US = 7 * 3_600_000_000  # hours 0 … 6 are night


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
    aggregates: dict[tuple[int, str], F64 | I64] = {}
    for column, feature in enumerate(spec.features):
        if feature.aggregate is not None:
            key = (feature.entity, feature.aggregate)
            if key not in aggregates:
                aggregates[key] = _aggregate(feature.aggregate, sums[feature.entity])
            features[:, column] = aggregates[key][:, feature.window]
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


def _aggregate(aggregate: Aggregate, sums: Sums) -> F64 | I64:
    """Compute one aggregate over all windows of an entity; [N, W]."""
    if aggregate == "count":
        return sums.count
    if aggregate == "sum":
        return sums.cents / 100.0
    if aggregate == "flagged":
        return sums.fraud
    # The sums of an empty window are 0, and so is what is made of them.
    whole = np.maximum(sums.count, 1)
    # One division: cents and counts are exact, so the ratio is rounded once.
    ratio: F64 = (
        sums.cents / (whole * 100) if aggregate == "mean" else sums.fraud / whole
    )
    return ratio


def _calendar(calendar: str, time_us: I64) -> npt.NDArray[np.bool_]:
    if calendar == "weekend":
        # The epoch was a Thursday; Saturday and Sunday are days 5 and 6 from Monday.
        weekend: npt.NDArray[np.bool_] = (time_us // _DAY_US + 3) % 7 >= 5
        return weekend
    night: npt.NDArray[np.bool_] = time_us % _DAY_US < _NIGHT_END_US
    return night
