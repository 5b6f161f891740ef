"""Compute the vector in float64, for models that need more precision than float32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tollgate.features.definition import FeatureSpec
from tollgate.features.entries import MISSING
from tollgate.schema import AMOUNT, plain_numbers

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def exact_features(
    spec: FeatureSpec, features: F32, *, cents: I64, fields: Mapping[str, I64]
) -> F64:
    """
    Return vectors with each number of the request as it was sent.

    The feature step, offline training and the replay of a record compute it from the
    same three inputs, which a record has: so all get the same bits.

    Args:
        spec: The features.
        features: As rules and records have them; float32 [N, F].
        cents: Amounts; int64 [N].
        fields: Declared fields that were sent; int64 [N] each.

    Returns:
        float64 [N, F]: the amount and declared numbers exactly; computed values and
        defaults as in `features`.
    """
    found = features.astype(np.float64)
    for column, feature in enumerate(spec.features):
        name = feature.field
        if name == AMOUNT:
            values = cents / 100.0
        elif name is not None and name in fields:
            whole = fields[name]
            values = plain_numbers(whole, spec.field(name).decimals)
            values = np.where(whole == MISSING, found[:, column], values)
        else:
            continue
        if feature.range is not None:
            values = np.clip(values, *feature.range)
        found[:, column] = values
    return found
