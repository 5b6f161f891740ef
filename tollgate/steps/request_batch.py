"""
Read the rows of a dynamic batch from Triton's requests, and check them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.engine.row_batches import (
    Batch,
    count_rule,
    declared_fields,
    excluded_ids,
)
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import (
    AMOUNT,
    ARRIVED_HEADER,
    DEADLINE_US,
    DRY_RUN,
    EVENT_TIME,
    EXCLUDE,
    LIST_SIZE,
    STORE_DEADLINE_MS,
    Degraded,
)
from tollgate.steps import triton
from tollgate.validation import check_rows

_FIELD_MISSING = np.uint32(Degraded.FIELD_MISSING)
_LONGEST_WAIT_US = 10_000_000  # a longer wait means that a clock is wrong
_NO_TIME_LEFT = f"{DEADLINE_US}: no time left"

Array = triton.Array
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


def read_batch(
    requests: Sequence[Any],
    inputs: triton.Inputs,
    *,
    spec: FeatureSpec,
    now_us: int,
) -> Batch:
    """
    Read the tensors of all requests as columns, and check every row.

    Args:
        requests: A dynamic batch of them.
        inputs: Their inputs by name.
        spec: Names the ids of a row.
        now_us: The server's clock, to detect times over a day ahead.
    """
    ids = {name: triton.gather(inputs, name)[:, 0].tolist() for name in spec.id_names}
    times, bounds = triton.gather_rows(inputs, EVENT_TIME)
    time_us = times[:, 0]
    amount = triton.gather(inputs, AMOUNT)[:, 0] if spec.amount else None
    parameters = triton.parameters_of(requests)
    checked = check_rows(ids, amount=amount, time_us=time_us, now_us=now_us)
    fields: Mapping[str, Array] = {}
    degraded: Array | int = 0
    if spec.fields:
        fields, degraded = _fields(inputs, spec, bounds, errors=checked.errors)
    excluded: Sequence[Sequence[bytes]] = ()
    counts: Sequence[int] = ()
    if spec.history is not None:
        excluded = _excluded(inputs, bounds, errors=checked.errors)
        counts = [0] * len(requests)
    dry = [False] * len(requests)
    store_deadline_ms: Sequence[int] = ()
    if parameters is not None:
        dry = [one.get(DRY_RUN, False) is True for one in parameters]
        store_deadline_ms = _note_parameters(
            parameters, bounds, errors=checked.errors, now_us=now_us
        )
        if counts:
            counts = _counts(parameters, bounds, errors=checked.errors)
    return Batch(
        ids=ids,
        cents=checked.cents,
        time_us=time_us,
        errors=checked.errors,
        bounds=bounds,
        dry=dry,
        degraded=degraded,
        fields=fields,
        store_deadline_ms=store_deadline_ms,
        excluded=excluded,
        counts=counts,
    )


def _note_parameters(
    parameters: Sequence[Mapping[str, Any]],
    bounds: list[int],
    *,
    errors: dict[int, str],
    now_us: int,
) -> Sequence[int]:
    """
    Add the rows of requests with wrong parameters to `errors`.

    Returns:
        Per request, the store deadline that it allows, ms; empty when none has one.
    """
    deadlines = [0] * len(parameters)
    for position, own in enumerate(parameters):
        if own and (problem := _parameter_error(own, now_us)):
            for row in range(bounds[position], bounds[position + 1]):
                errors.setdefault(row, problem)
        else:
            deadlines[position] = own.get(STORE_DEADLINE_MS, 0)
    return deadlines if any(deadlines) else ()


def _fields(
    inputs: triton.Inputs,
    spec: FeatureSpec,
    bounds: list[int],
    *,
    errors: dict[int, str],
) -> tuple[Mapping[str, Array], Array | int]:
    """Read the declared fields, and mark the rows that lack one; adds to `errors`."""
    sent = {}
    for field in spec.fields:
        absent = np.nan if field.type == "number" else b""
        column = triton.gather_optional(
            inputs, field.name, bounds=bounds, absent=absent
        )
        if column is not None:
            sent[field.name] = column
    return declared_fields(spec, sent, rows=bounds[-1], errors=errors)


def _excluded(
    inputs: triton.Inputs, bounds: list[int], *, errors: dict[int, str]
) -> Sequence[Sequence[bytes]]:
    """Read the items that the answer of each row must not have; adds to `errors`."""
    texts = triton.gather_optional(inputs, EXCLUDE, bounds=bounds, absent=b"")
    return () if texts is None else excluded_ids(texts.tolist(), errors=errors)


def _counts(
    parameters: Sequence[Mapping[str, Any]],
    bounds: list[int],
    *,
    errors: dict[int, str],
) -> Sequence[int]:
    """Read the number of items per request; adds rows with a wrong one to `errors`."""
    counts = [0] * len(parameters)
    for position, own in enumerate(parameters):
        count = own.get(LIST_SIZE)
        if count is None:
            continue
        if rule := count_rule(count):
            problem = f"{LIST_SIZE}: {count!r:.40}: {rule}"
            for row in range(bounds[position], bounds[position + 1]):
                errors.setdefault(row, problem)
        else:
            counts[position] = count
    return counts


def _parameter_error(parameters: Mapping[str, Any], now_us: int) -> str:
    """
    Return the error in a request's parameters; empty when there is none.

    A malformed parameter must not raise: the batch also holds requests of other
    callers, and only the request itself may fail.
    """
    dry, left_us = parameters.get(DRY_RUN, False), parameters.get(DEADLINE_US)
    if not isinstance(dry, bool):
        return f"{DRY_RUN}: {dry!r:.40}: is neither true nor false"
    store_ms = parameters.get(STORE_DEADLINE_MS, 1)
    if isinstance(store_ms, bool) or not isinstance(store_ms, int) or store_ms <= 0:
        problem = f"{store_ms!r:.40}: is not whole milliseconds above 0"
        return f"{STORE_DEADLINE_MS}: {problem}"
    if left_us is None:
        return ""
    if isinstance(left_us, bool) or not isinstance(left_us, int):
        return f"{DEADLINE_US}: {left_us!r:.40}: is not whole microseconds"
    return _NO_TIME_LEFT if left_us <= _waited_us(parameters, now_us) else ""


def _waited_us(parameters: Mapping[str, Any], now_us: int) -> float:
    """
    Return how long ago a request reached the gateway; 0 if no parameter says so.

    The gateway's clock is the server's, or close to it; a value that only a different
    clock can explain counts as 0.
    """
    try:
        waited_us = now_us - float(parameters[ARRIVED_HEADER]) * 1e6
    except (KeyError, TypeError, ValueError):
        return 0.0
    return waited_us if 0 < waited_us < _LONGEST_WAIT_US else 0.0
