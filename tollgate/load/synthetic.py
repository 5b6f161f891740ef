"""Generate synthetic purchases, and requests of them, for a product of any kind."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.features.spec.feature_spec import all_fields, wire_inputs
from tollgate.features.spec.spec_definition import FeatureSpec, Field
from tollgate.schema import (
    AMOUNT,
    EVENT_TIME,
    MAX_CENTS,
    REQUEST_ID,
    TRANSACTION_ID,
)

_MEDIAN_CENTS, _SPREAD = 3_000, 1.0  # of amounts, lognormal
_MISSING = 0.02  # share of declared fields that are missing in a row
_OLD_S = 5.0  # age of the newest purchase: not ahead of any clock
_NO_BOUND = 1e6  # upper bound of numbers without a limit


def synthetic_purchases(
    spec: FeatureSpec, count: int, *, seed: int, first_us: int, ids: int = 1_000
) -> dict[str, Any]:
    """
    Generate synthetic purchases.

    Args:
        spec: Feature spec; says what a request of the product contains.
        count: Number of purchases; N.
        seed: The same seed, the same purchases.
        first_us: Event time of the first, µs since the epoch; the next follow at 1 ms
            intervals.
        ids: Number of ids of each entity.

    Returns:
        Input -> column of N values, as clients take them.
    """
    chance = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        TRANSACTION_ID: [f"made-up-{seed}-{first_us}-{row}" for row in range(count)]
    }
    for entity in spec.entities:
        drawn = chance.integers(ids, size=count).tolist()
        columns[entity.key] = [f"made-up-{one}" for one in drawn]
    if AMOUNT in spec.columns:
        cents = np.rint(chance.lognormal(np.log(_MEDIAN_CENTS), _SPREAD, count))
        columns[AMOUNT] = np.minimum(cents, MAX_CENTS) / 100
    columns[EVENT_TIME] = first_us + 1_000 * np.arange(count)
    return columns | {one.name: _field(one, count, chance) for one in spec.fields}


def _field(
    field: Field, count: int, chance: np.random.Generator
) -> npt.NDArray[np.float64] | list[str]:
    missing = chance.random(count) < _MISSING
    if field.type == "category":
        words = np.array(field.vocabulary or [f"made-up-{one}" for one in range(100)])
        drawn = chance.choice(words, count)
        return [str(one) for one in np.where(missing, "", drawn)]
    scale = 10 ** (field.decimals or 0)
    low = max(field.low / scale, -_NO_BOUND)
    high = min(field.high / scale, _NO_BOUND)
    numbers = chance.uniform(low, high, count)
    if field.decimals is not None:
        numbers = np.round(numbers, field.decimals)
    return np.where(missing, np.nan, numbers)


def synthetic_requests(
    spec: FeatureSpec,
    count: int,
    *,
    product: str,
    rows: int,
    seed: int,
    dry_run: bool,
    deadline_s: float,
) -> list[bytes]:
    """
    Encode requests of synthetic purchases that happened just now.

    Args:
        seed: The same seed, the same purchases, except for their times.
        dry_run: True for requests that store nothing.
        deadline_s: Deadline of each request, s.
    """
    from tollgate_client.inputs import check_columns
    from tollgate_client.wire import requests_of

    first_us = round((time.time() - _OLD_S) * 1e6) - count * rows * 1_000
    drawn = synthetic_purchases(spec, count * rows, seed=seed, first_us=first_us)
    inputs = wire_inputs(spec)
    if spec.history is not None:  # of a product that ranks
        drawn[REQUEST_ID] = drawn.pop(TRANSACTION_ID)
        inputs[REQUEST_ID] = inputs.pop(TRANSACTION_ID)
    columns = check_columns(drawn, inputs=inputs, fields=all_fields(spec))
    return list(
        requests_of(
            columns, product=product, size=rows, dry_run=dry_run, deadline_s=deadline_s
        )
    )
