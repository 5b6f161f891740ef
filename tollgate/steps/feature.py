"""The first step: validate rows, update and read windows, assemble features."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tollgate.errors import OutcomeUnknown, StoreError
from tollgate.features import assemble
from tollgate.features.spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.schema import (
    AMOUNT,
    CONTEXT,
    CONTEXT_VERSION,
    DEADLINE_US,
    DRY_RUN,
    EVENT_TIME,
    FEATURES,
    MAX_ID_BYTES,
    STORE_DEADLINE_PARAMETER,
    TRANSACTION_ID,
    Applied,
    Degraded,
    context_dtype,
)
from tollgate.steps import triton
from tollgate.store.events import Purchases
from tollgate.validation import check_rows

if TYPE_CHECKING:
    from tollgate.store.online import OnlineFeatures

STORE_URL_VARIABLE = "TOLLGATE_STORE_URL"
DEFAULT_STORE_DEADLINE_MS = 5.0

_WARM_ROWS = (1, 8, 32)
_NO_TIME_LEFT = f"{DEADLINE_US}: no time left"

Array = triton.Array


class Batch(msgspec.Struct, frozen=True):
    """
    The rows of all requests taken together.

    Attributes:
        ids: Id columns by field.
        cents: int64 [N]; zero for a bad row.
        time_us: int64 [N].
        errors: Row -> what is wrong with it.
        bounds: Where each request's rows begin.
        dry: Whether each request is a dry run.
    """

    ids: Mapping[str, list[bytes]]
    cents: Array
    time_us: Array
    errors: dict[int, str]
    bounds: list[int]
    dry: list[bool]


class FeatureStep:
    """`fraud_features` and its kind: rows in, `features` and `context` out."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the spec, open the store, and warm both."""
        import triton_python_backend_utils as pb

        self._pb = pb
        config = triton.step_config(args)
        self._spec = load_spec(config.directory / SPEC_FILE)
        self._dtype = context_dtype(self._spec.entity_names)
        deadline_ms = float(
            config.parameters.get(STORE_DEADLINE_PARAMETER, DEFAULT_STORE_DEADLINE_MS)
        )
        url = os.environ.get(STORE_URL_VARIABLE, "")
        self._online = _open_store(self._spec, url, deadline_s=deadline_ms / 1e3)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a dynamic batch of requests."""
        return triton.guarded(self._pb, requests, self._execute)

    def _execute(self, requests: Sequence[Any]) -> list[Any]:
        arrival_us = time.monotonic_ns() // 1000
        batch = self._gather(requests)
        features, context = self._score(batch, arrival_us=arrival_us)
        outputs = {
            FEATURES: features,
            CONTEXT: context.view(np.uint8).reshape(len(features), -1),
        }
        responses = triton.respond(self._pb, outputs, batch.bounds)
        if batch.errors:
            for position, text in _hopeless(batch):
                responses[position] = triton.refuse(self._pb, text, invalid=True)
        return responses

    def _gather(self, requests: Sequence[Any]) -> Batch:
        pb = self._pb
        fields = [TRANSACTION_ID, *(entity.key for entity in self._spec.entities)]
        ids = {
            field: triton.gather(pb, requests, field)[:, 0].tolist() for field in fields
        }
        amount = triton.gather(pb, requests, AMOUNT)[:, 0]
        time_us = triton.gather(pb, requests, EVENT_TIME)[:, 0]
        bounds = triton.row_bounds(pb, requests, AMOUNT)
        now_us = time.time_ns() // 1000
        checked = check_rows(ids, amount=amount, time_us=time_us, now_us=now_us)
        dry = []
        for position, request in enumerate(requests):
            parameters = triton.request_parameters(request)
            dry.append(parameters.get(DRY_RUN, False) is True)
            if problem := _refused(parameters):
                for row in range(bounds[position], bounds[position + 1]):
                    checked.errors.setdefault(row, problem)
        return Batch(
            ids=ids,
            cents=checked.cents,
            time_us=time_us,
            errors=checked.errors,
            bounds=bounds,
            dry=dry,
        )

    def _score(self, batch: Batch, *, arrival_us: int) -> tuple[Array, Array]:
        """Fill `features` float32 [N, F] and `context` [N] for the whole batch."""
        rows = len(batch.cents)
        features = np.zeros((rows, len(self._spec.features)), np.float32)
        context = np.zeros(rows, self._dtype)
        context["version"] = CONTEXT_VERSION
        context["spec_hash"] = self._spec.spec_hash
        context["arrival_us"] = arrival_us
        context["event_time_us"] = batch.time_us
        context["cents"] = batch.cents
        self._note_ids(batch, context)
        groups = _groups(batch, context)
        if groups:
            self._read(batch, groups, features, context)
        for row, text in batch.errors.items():
            encoded = text.encode()
            context["bad"][row] = 1
            context["error_length"][row] = len(encoded)
            context["error"][row] = encoded
        return features, context

    def _note_ids(self, batch: Batch, context: Array) -> None:
        names = ["transaction", *self._spec.entity_names]
        for name, column in zip(names, batch.ids.values(), strict=True):
            lengths = np.fromiter(map(len, column), np.int64, len(column))
            context[f"{name}_id_length"] = np.minimum(lengths, MAX_ID_BYTES)
            packed = np.array(column, dtype=f"S{MAX_ID_BYTES}")
            context[f"{name}_id"] = packed.view(f"V{MAX_ID_BYTES}")

    def _read(
        self, batch: Batch, groups: list[Array], features: Array, context: Array
    ) -> None:
        """Get the vectors of the good rows, in one round trip."""
        purchases = [_pick(batch, rows) for rows in groups]
        write = [not context["dry_run"][rows[0]] for rows in groups]
        try:
            if self._online is None:
                raise StoreError(f"{STORE_URL_VARIABLE} is not set")
            answers = self._online.score(purchases, write=write)
        except StoreError as exc:
            triton.log.warning("%s", exc)
            unknown = isinstance(exc, OutcomeUnknown)
            for rows, group in zip(groups, purchases, strict=True):
                features[rows] = assemble.defaults(
                    self._spec, cents=group.cents, time_us=group.event_time_us
                )
                context["degraded"][rows] = Degraded.STORE_UNAVAILABLE
                context["applied"][rows] = Applied.UNKNOWN if unknown else Applied.NO
            return
        for rows, vectors in zip(groups, answers, strict=True):
            features[rows] = vectors.features
            context["degraded"][rows] = vectors.degraded
            context["applied"][rows] = vectors.applied


def _open_store(
    spec: FeatureSpec, url: str, *, deadline_s: float
) -> OnlineFeatures | None:
    """Open the store and run the whole path dry, so that no caller pays for it."""
    if not url:
        triton.log.warning("%s is not set: every row is degraded", STORE_URL_VARIABLE)
        return None
    from tollgate.store.online import OnlineFeatures
    from tollgate.store.redis import RedisStore

    online = OnlineFeatures(spec, RedisStore(url, deadline_s=deadline_s))
    for count in _WARM_ROWS:
        names = [b"warm-up-%d" % row for row in range(count)]
        purchases = Purchases(
            transaction_id=names,
            entity_id=[names for _ in spec.entities],
            event_time_us=np.full(count, time.time_ns() // 1000, np.int64),
            cents=np.full(count, 1000, np.int64),
        )
        try:
            online.score([purchases], write=[False])
        except StoreError as exc:
            # The store may come up later; until then rows are answered degraded.
            triton.log.warning("warm-up: %s", exc)
    return online


def _groups(batch: Batch, context: Array) -> list[Array]:
    """
    Split the good rows into those that write, and each dry request by itself.

    What a dry run applies must be seen by no other request.
    """
    good = np.ones(len(batch.cents), np.bool_)
    good[list(batch.errors)] = False
    if not any(batch.dry):
        rows = np.flatnonzero(good)
        return [rows] if len(rows) else []
    wet, groups = good.copy(), []
    for position, dry in enumerate(batch.dry):
        if dry:
            span = slice(batch.bounds[position], batch.bounds[position + 1])
            context["dry_run"][span] = 1
            wet[span] = False
            groups.append(span.start + np.flatnonzero(good[span]))
    return [rows for rows in (np.flatnonzero(wet), *groups) if len(rows)]


def _pick(batch: Batch, rows: Array) -> Purchases:
    if len(rows) == len(batch.cents):
        transaction, *entities = batch.ids.values()
    else:
        index = rows.tolist()
        transaction, *entities = (
            [column[row] for row in index] for column in batch.ids.values()
        )
    return Purchases(
        transaction_id=transaction,
        entity_id=entities,
        event_time_us=batch.time_us[rows],
        cents=batch.cents[rows],
    )


def _refused(parameters: Mapping[str, Any]) -> str:
    """
    Say what is wrong with a request's parameters; empty when nothing is.

    A malformed one is its own request's fault: it must not raise, for the batch holds
    the requests of other callers too.
    """
    dry, left_us = parameters.get(DRY_RUN, False), parameters.get(DEADLINE_US, 1)
    if not isinstance(dry, bool):
        return f"{DRY_RUN}: {dry!r:.40}: is neither true nor false"
    if isinstance(left_us, bool) or not isinstance(left_us, int):
        return f"{DEADLINE_US}: {left_us!r:.40}: is not whole microseconds"
    return _NO_TIME_LEFT if left_us <= 0 else ""


def _hopeless(batch: Batch) -> list[tuple[int, str]]:
    """Name the requests of which every row is bad, with the words for them."""
    found = []
    for position, start in enumerate(batch.bounds[:-1]):
        rows = range(start, batch.bounds[position + 1])
        if all(row in batch.errors for row in rows):
            words = [f"row {row - start}: {batch.errors[row]}" for row in rows]
            found.append((position, "\n".join(words)))
    return found
