"""
Test on synthetic columns that a hook's output depends on each row's own columns only.

Each row of many must get the same values alone, in batches of any size and in any
order, every time. The hook must not change its input columns, and its output columns
must have the right form.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.errors import HookError
from tollgate.features.assemble import LARGEST
from tollgate.features.fields import MISSING_CODE, UNSEEN_CODE
from tollgate.features.hook.hook_file import text_of
from tollgate.features.hook.hook_run import HookColumns, Outputs, run_hook, sealed
from tollgate.features.spec.spec_definition import Feature, FeatureSpec, Field, Hook
from tollgate.schema import AMOUNT, EVENT_TIME, MAX_CENTS, MIN_EVENT_TIME_US

# Generate synthetic columns to test a hook: values of its product, and extremes.

Draw = np.random.Generator
Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

_LAST_US = 4_102_444_800_000_000  # 2100-01-01T00:00:00Z
_DAY_US = 86_400_000_000
_ROUNDED = 0.25  # share of values that are extreme, zero or missing
_COUNTS = ("count", "flagged", "distinct", "approx_distinct", "sessions")


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
    if feature.aggregate == "std":
        return np.abs(_wide(rows, draw))
    if feature.aggregate in ("slope", "change"):
        return _wide(rows, draw)
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


I64 = npt.NDArray[np.int64]

_ROWS = 256
_SEEDS = (1, 2, 3)
_SIZES = (1, 2, 3, 5, 8, 31, 32, 33)  # batch sizes; a request has 1 to 32 rows
_ALONE = 48  # rows, in addition to the special ones of a sample


def prove(spec: FeatureSpec, hook: Hook) -> str:
    """
    Run a hook on synthetic columns of many kinds.

    Returns:
        A hash of all outputs: the same in every process.

    Raises:
        HookError: The hook failed, returned anything but columns of numbers, changed
            its input, or the output of a row depends on more than its own columns.
    """
    digest = hashlib.sha256()
    for seed in _SEEDS:
        given = sample(spec, hook, rows=_ROWS, seed=seed)
        before = _hash(given)
        whole = run_hook(hook, given)
        same = np.arange(_ROWS)
        _compare(hook, whole, run_hook(hook, given), rows=same, how="called again")
        draw = np.random.default_rng(seed)
        first = 0
        for size in (*_SIZES, *[1] * _ALONE):
            chosen = np.arange(first, first + size)
            part = run_hook(hook, given.part(chosen))
            how = f"in a batch of {size}, not {_ROWS},"
            _compare(hook, whole, part, rows=chosen, how=how)
            first += size
        order = draw.permutation(_ROWS)
        mixed = run_hook(hook, given.part(order))
        _compare(hook, whole, mixed, rows=order, how="in another order")
        if _hash(given) != before:
            raise HookError(hook.path, "changes what it is given: copy it first")
        for name in hook.columns:
            digest.update(_canonical(whole[name]).tobytes())
    return digest.hexdigest()


def _compare(hook: Hook, whole: Outputs, part: Outputs, *, rows: I64, how: str) -> None:
    """Check that rows have the same bits; NaN equals NaN."""
    for name in hook.columns:
        wanted, found = _canonical(whole[name][rows]), _canonical(part[name])
        differing = np.flatnonzero(wanted.view(np.int64) != found.view(np.int64))
        if len(differing):
            at = differing[0]
            problem = (
                f"{name!r} of a row was {wanted[at]}, and {how} is {found[at]}: it "
                "may hang on the columns of its own row alone"
            )
            line = text_of(hook).columns[name]
            raise HookError(hook.path, problem, where=f"line {line}")


def _canonical(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(np.isnan(values), np.nan, values)


def _hash(given: HookColumns) -> bytes:
    digest = hashlib.sha256()
    for columns in (given.request, given.features):
        for column in columns.values():
            digest.update(column.tobytes())
    return digest.digest()
