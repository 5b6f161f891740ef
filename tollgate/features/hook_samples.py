"""Generate synthetic columns to test a hook: values of its product, and extremes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.features.definition import Feature, FeatureSpec, Field, Hook
from tollgate.features.derived import LARGEST
from tollgate.features.fields import MISSING_CODE, UNSEEN_CODE
from tollgate.features.hook_run import HookColumns, sealed
from tollgate.schema import AMOUNT, EVENT_TIME, MAX_CENTS, MIN_EVENT_TIME_US

Draw = np.random.Generator
Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

_LAST_US = 4_102_444_800_000_000  # 2100-01-01T00:00:00Z
_DAY_US = 86_400_000_000
_ROUNDED = 0.25  # share of values that are extreme, zero or missing
_COUNTS = ("count", "flagged", "distinct")


def sample(spec: FeatureSpec, hook: Hook, *, rows: int, seed: int) -> HookColumns:
    """
    Generate the columns that a hook reads.

    The first rows are all minimal, all maximal, all zero, and with all optional values
    missing; the others are mixed.

    Args:
        spec: The spec that contains the hook.
        hook: The hook.
        rows: Number of rows; over 4.
        seed: The same seed gives the same columns.
    """
    draw = np.random.default_rng(seed)
    request = {name: _request(spec, name, rows, draw) for name in hook.request}
    features = {
        spec.features[at].name: _feature(spec, spec.features[at], rows, draw)
        for at in hook.features
    }
    return HookColumns(
        rows=rows,
        request={name: sealed(one) for name, one in request.items()},
        features={name: sealed(one) for name, one in features.items()},
    )


def _request(spec: FeatureSpec, name: str, rows: int, draw: Draw) -> Array:
    if name == AMOUNT:
        return _whole(0, MAX_CENTS, rows, draw) / 100.0
    if name == EVENT_TIME:
        times = draw.integers(MIN_EVENT_TIME_US, _LAST_US, rows)
        midnight = draw.random(rows) < _ROUNDED
        times[midnight] -= times[midnight] % _DAY_US
        times[:2] = MIN_EVENT_TIME_US, _LAST_US
        return times
    field = spec.field(name)
    if field.type == "category":
        return _codes(field, rows, draw)
    return _lacking(_number(field, rows, draw), draw)


def _feature(spec: FeatureSpec, feature: Feature, rows: int, draw: Draw) -> F64:
    """Generate a feature that precedes the hook; NaN where it has no value."""
    if feature.calendar is not None:
        return draw.integers(0, 2, rows).astype(np.float64)
    if feature.category is not None:
        made = _codes(spec.field(feature.category), rows, draw).astype(np.float64)
        return np.where(made < 0, np.nan, made) if math.isnan(feature.default) else made
    made = _value(spec, feature, rows, draw)
    if feature.range is not None:
        made = np.clip(made, *feature.range)
    return made if feature.field == AMOUNT else _lacking(made, draw)


def _value(spec: FeatureSpec, feature: Feature, rows: int, draw: Draw) -> F64:
    if feature.aggregate in _COUNTS:
        most = spec.entities[feature.entity].cap
        return _whole(0, most, rows, draw).astype(np.float64)
    if feature.aggregate == "share":
        return _within(0.0, 1.0, rows, draw)
    if feature.aggregate == "time_since_last":
        most_us = spec.entities[feature.entity].horizon_us
        return _whole(0, most_us, rows, draw) / 1e6
    of = feature.of if feature.aggregate is not None else feature.field
    if of == AMOUNT or (of is None and feature.aggregate is not None):
        return _whole(0, MAX_CENTS, rows, draw) / 100.0
    if of is not None:
        return _number(spec.field(of), rows, draw)
    return _wide(rows, draw)  # from a table, or derived: any number


def _number(field: Field, rows: int, draw: Draw) -> F64:
    if field.decimals is None:
        found = _wide(rows, draw)
        found[:2] = field.low, field.high
        return np.clip(found, field.low, field.high)
    low, high = int(field.low), int(field.high)
    made: F64 = _whole(low, high, rows, draw) / 10.0**field.decimals
    return made


def _codes(field: Field, rows: int, draw: Draw) -> npt.NDArray[np.int64]:
    made = draw.integers(UNSEEN_CODE, len(field.vocabulary), rows)
    made[:4] = UNSEEN_CODE, len(field.vocabulary) - 1, 0, MISSING_CODE
    return made


def _whole(low: int, high: int, rows: int, draw: Draw) -> npt.NDArray[np.int64]:
    """
    Draw integers, half of them uniformly and half by magnitude; extremes included.
    """
    made = draw.integers(low, high, rows, np.int64, endpoint=True)
    small = np.rint(np.exp(draw.uniform(0, np.log(max(abs(low), abs(high)) + 1), rows)))
    small *= draw.choice((-1, 1), rows)
    half = (draw.random(rows) < 0.5) & (small >= low) & (small <= high)
    made[half] = small[half].astype(np.int64)
    zero = min(max(0, low), high)
    ends = draw.choice((low, high, zero), rows)
    at_end = draw.random(rows) < _ROUNDED
    made[at_end] = ends[at_end]
    made[:3] = low, high, zero
    return made


def _within(low: float, high: float, rows: int, draw: Draw) -> F64:
    made = draw.uniform(low, high, rows)
    made[:3] = low, high, low
    return made


def _wide(rows: int, draw: Draw) -> F64:
    made = np.exp(draw.uniform(np.log(1e-6), np.log(1e9), rows))
    made *= draw.choice((-1.0, 1.0), rows)
    ends = draw.choice((0.0, 1.0, -1.0, LARGEST, -LARGEST), rows)
    made = np.where(draw.random(rows) < _ROUNDED, ends, made)
    made[:3] = -LARGEST, LARGEST, 0.0
    return made


def _lacking(made: F64, draw: Draw) -> F64:
    """Replace some values by missing ones."""
    found: F64 = np.where(draw.random(len(made)) < _ROUNDED / 2, np.nan, made)
    found[:4] = *made[:3], np.nan
    return found
