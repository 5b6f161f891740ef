"""
Read the rows of a dynamic batch from Triton's requests, check them and group them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tollgate.features.fields import lacks_fields
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import (
    AMOUNT,
    ARRIVED_HEADER,
    DEADLINE_US,
    DRY_RUN,
    EVENT_TIME,
    STORE_DEADLINE_MS,
    Degraded,
)
from tollgate.steps import triton
from tollgate.store.store_events import Purchases
from tollgate.validation import check_fields, check_rows

_FIELD_MISSING = np.uint32(Degraded.FIELD_MISSING)
_LONGEST_WAIT_US = 10_000_000  # a longer wait means that a clock is wrong
_NO_TIME_LEFT = f"{DEADLINE_US}: no time left"

Array = triton.Array


class Batch(msgspec.Struct, frozen=True):
    """
    Hold the rows of all requests of a dynamic batch.

    Attributes:
        ids: Id columns by field.
        cents: int64 [N]; zero for a bad row.
        time_us: int64 [N].
        errors: Row -> its error.
        bounds: First row of each request, then the end of the last.
        dry: Per request, True for a dry run.
        degraded: Degraded bits that the request itself causes; uint32 [N], or one
            number for every row.
        fields: Declared fields that at least one request had; int64 [N] each.
        store_deadline_ms: Per request, the store deadline that it allows, ms; 0 for a
            request without one. Empty when no request has one.
    """

    ids: Mapping[str, list[bytes]]
    cents: Array
    time_us: Array
    errors: dict[int, str]
    bounds: list[int]
    dry: list[bool]
    degraded: Array | int = 0
    fields: Mapping[str, Array] = {}
    store_deadline_ms: Sequence[int] = ()


class Group(msgspec.Struct, frozen=True):
    """
    Hold good rows of a batch that go to the store together.

    Attributes:
        rows: Their positions in the batch; int64 [M].
        purchases: Their contents.
        dry: True if nothing of them may be stored.
    """

    rows: Array
    purchases: Purchases
    dry: bool


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
    checked = check_rows(ids, amount=amount, time_us=time_us, now_us=now_us)
    fields, degraded = _fields(inputs, spec, bounds, errors=checked.errors)
    dry = []
    store_deadlines: dict[int, int] = {}
    for position, request in enumerate(requests):
        parameters = triton.request_parameters(request)
        dry.append(parameters.get(DRY_RUN, False) is True)
        if parameters and (problem := _parameter_error(parameters, now_us)):
            for row in range(bounds[position], bounds[position + 1]):
                checked.errors.setdefault(row, problem)
        elif STORE_DEADLINE_MS in parameters:
            store_deadlines[position] = parameters[STORE_DEADLINE_MS]
    return Batch(
        ids=ids,
        cents=checked.cents,
        time_us=time_us,
        errors=checked.errors,
        bounds=bounds,
        dry=dry,
        degraded=degraded,
        fields=fields,
        store_deadline_ms=[store_deadlines.get(at, 0) for at in range(len(dry))]
        if store_deadlines
        else (),
    )


def one_request(batch: Batch, position: int) -> Batch:
    """Copy one request out of a batch; the copy uses none of Triton's memory."""
    start, stop = batch.bounds[position : position + 2]
    degraded = batch.degraded
    return Batch(
        ids={name: column[start:stop] for name, column in batch.ids.items()},
        cents=batch.cents[start:stop].copy(),
        time_us=batch.time_us[start:stop].copy(),
        errors={
            row - start: text
            for row, text in batch.errors.items()
            if start <= row < stop
        },
        bounds=[0, stop - start],
        dry=[batch.dry[position]],
        degraded=degraded if isinstance(degraded, int) else degraded[start:stop].copy(),
        fields={name: one[start:stop].copy() for name, one in batch.fields.items()},
    )


def rows_except(batch: Batch, positions: Collection[int]) -> Array | slice:
    """Return the rows of all requests except the given ones."""
    if not positions:
        return slice(None)
    chosen = np.ones(batch.bounds[-1], np.bool_)
    for position in positions:
        chosen[slice(*batch.bounds[position : position + 2])] = False
    return chosen


def _fields(
    inputs: triton.Inputs,
    spec: FeatureSpec,
    bounds: list[int],
    *,
    errors: dict[int, str],
) -> tuple[Mapping[str, Array], Array | int]:
    """Read the declared fields, and mark the rows that lack one; adds to `errors`."""
    if not spec.fields:
        return {}, 0
    sent = {}
    for field in spec.fields:
        absent = np.nan if field.type == "number" else b""
        column = triton.gather_optional(
            inputs, field.name, bounds=bounds, absent=absent
        )
        if column is not None:
            sent[field.name] = column
    fields, wrong = check_fields(spec.fields, sent)
    for row, text in wrong.items():
        errors.setdefault(row, text)
    missing = lacks_fields(spec, fields, bounds[-1])
    return fields, missing * _FIELD_MISSING


def dry_spans(batch: Batch) -> list[slice]:
    """Return the rows of each dry request, bad ones included."""
    return [
        slice(batch.bounds[position], batch.bounds[position + 1])
        for position, dry in enumerate(batch.dry)
        if dry
    ]


def groups(batch: Batch) -> list[Group]:
    """
    Split the good rows: one group for those that write, one per dry request.

    No other request may see the events that a dry run applies.
    """
    spans = dry_spans(batch)
    if not spans and not batch.errors:
        rows = np.arange(len(batch.cents))
        return [Group(rows=rows, purchases=_pick(batch, rows), dry=False)]
    good = np.ones(len(batch.cents), np.bool_)
    good[list(batch.errors)] = False
    wet, dry = good.copy(), []
    for span in spans:
        wet[span] = False
        dry.append(span.start + np.flatnonzero(good[span]))
    found = [(np.flatnonzero(wet), False), *((rows, True) for rows in dry)]
    return [
        Group(rows=rows, purchases=_pick(batch, rows), dry=is_dry)
        for rows, is_dry in found
        if len(rows)
    ]


def rejected_requests(batch: Batch) -> list[tuple[int, str]]:
    """
    Find the requests of which every row is bad; return their positions and errors.
    """
    found = []
    for position, start in enumerate(batch.bounds[:-1]):
        rows = range(start, batch.bounds[position + 1])
        if all(row in batch.errors for row in rows):
            words = [f"row {row - start}: {batch.errors[row]}" for row in rows]
            found.append((position, "\n".join(words)))
    return found


def _pick(batch: Batch, rows: Array) -> Purchases:
    if len(rows) == len(batch.cents):
        transaction, *entities = batch.ids.values()
        return Purchases(
            transaction_id=transaction,
            entity_id=entities,
            # It may be Triton's memory, and the purchase may be stored for later.
            event_time_us=batch.time_us.copy(),
            cents=batch.cents,
            fields=batch.fields,
        )
    index = rows.tolist()
    transaction, *entities = (
        [column[row] for row in index] for column in batch.ids.values()
    )
    return Purchases(
        transaction_id=transaction,
        entity_id=entities,
        event_time_us=batch.time_us[rows],
        cents=batch.cents[rows],
        fields={name: column[rows] for name, column in batch.fields.items()},
    )


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
