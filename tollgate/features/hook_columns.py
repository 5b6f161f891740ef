"""Collect the columns that a hook reads: request columns and earlier features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.features.definition import FeatureSpec, Hook
from tollgate.features.fields import Fields, codes, field_values
from tollgate.features.hook_run import HookColumns, sealed
from tollgate.schema import AMOUNT, EVENT_TIME, plain_numbers

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def hook_columns(
    spec: FeatureSpec,
    hook: Hook,
    *,
    cents: I64,
    time_us: I64,
    fields: Fields,
    features: F64,
    unknown: Mapping[int, Bool],
) -> HookColumns:
    """
    Collect the columns that a hook reads of N purchases, and nothing else.

    Args:
        spec: The spec that contains the hook.
        hook: The hook.
        cents: Amounts; int64 [N].
        time_us: Event times; int64 [N].
        fields: Declared fields that were sent; int64 [N] each.
        features: The vectors, filled up to the hook's first; float64 [N, F].
        unknown: Per column, the rows in which a default stands for its value.
    """
    rows = len(cents)
    request: dict[str, npt.NDArray[Any]] = {}
    for name in hook.request:
        if name == AMOUNT:
            column: npt.NDArray[Any] = cents / 100.0
        elif name == EVENT_TIME:
            column = time_us
        else:
            column = _field(spec, name, field_values(fields, name, rows))
        request[name] = sealed(column)
    before = {}
    for at in hook.features:
        column = features[:, at]
        if at in unknown:
            column = np.where(unknown[at], np.nan, column)
        before[spec.features[at].name] = sealed(column)
    return HookColumns(rows=rows, request=request, features=before)


def _field(spec: FeatureSpec, name: str, values: I64) -> npt.NDArray[Any]:
    """Convert a declared field to numbers, NaN where there is none, or to codes."""
    field = spec.field(name)
    if field.type == "category":
        return codes(values, field)
    return plain_numbers(values, field.decimals)
