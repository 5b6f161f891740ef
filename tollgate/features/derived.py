"""Compute features from two other features: ratio, difference, rate of change."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tollgate.features.definition import Feature

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LARGEST = float(np.finfo(np.float32).max)


def derive(
    feature: Feature, column: int, features: F64, *, unknown: Mapping[int, Bool]
) -> Bool:
    """
    Fill the column of a derived feature; with a the first input, b the second:

    * difference: a - b
    * ratio: a / b
    * rate of change: (a / b) · (long window / short window)

    Args:
        feature: The feature.
        column: Its index.
        features: The vectors, filled up to here; float64 [N, F].
        unknown: Per column, the rows in which a default stands for its value.

    Returns:
        Rows without a value: an input has none, or b is 0; bool [N].
    """
    first, second = feature.inputs or (0, 0)
    a, b = features[:, first], features[:, second]
    lost = np.zeros(len(features), np.bool_)
    for at in (first, second):
        if at in unknown:
            lost |= unknown[at]
    if feature.derived == "difference":
        made = a - b
    else:
        lost |= b == 0.0
        # Over a chain of ratios a double can overflow; it is clipped with the rest
        # below.
        with np.errstate(over="ignore"):
            made = a / np.where(b == 0.0, 1.0, b) * (feature.scale or 1.0)
    # A value beyond the served float32 is clipped to the largest float32.
    features[:, column] = np.clip(made, -LARGEST, LARGEST)
    return lost
