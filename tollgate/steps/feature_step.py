"""The feature step: validate rows, update and read windows, assemble features."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from tollgate import compiled
from tollgate.errors import InputError
from tollgate.features.assemble import exact_features
from tollgate.features.fields import stacked
from tollgate.features.hook.hook_proof import prove
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.imports import gently, import_gently
from tollgate.repair.event_spool import open_spool
from tollgate.schema import (
    BREAKER_CALLS_PARAMETER,
    BREAKER_FAILURES_PARAMETER,
    BREAKER_SHARE_PARAMETER,
    CONTEXT,
    CONTEXT_VERSION,
    DRY_SHARE_PARAMETER,
    EXACT_FEATURES,
    FEATURES,
    LAST_KNOWN_AGE_PARAMETER,
    LAST_KNOWN_SIZE_PARAMETER,
    LISTS_PARAMETER,
    MAX_BATCH_ROWS,
    MAX_ID_BYTES,
    STORE_DEADLINE_LIMIT_PARAMETER,
    STORE_DEADLINE_PARAMETER,
    STORE_PROBE_PARAMETER,
    STORE_URL_VARIABLE,
    TABLES_SIZE_PARAMETER,
    TRANSACTION,
    TRANSACTION_ID,
    UPDATES,
    UPDATES_PARAMETER,
    Degraded,
    context_dtype,
)
from tollgate.steps import triton
from tollgate.steps.context_mac import DIRECT, ContextSigner, read_key
from tollgate.steps.feature_metrics import StepMetrics
from tollgate.steps.loops import LoopMetrics
from tollgate.steps.refusals import Refusals, refusal_error
from tollgate.steps.request_batch import (
    Batch,
    DryShare,
    Group,
    dry_spans,
    fingerprints,
    groups,
    mix_fields,
    one_request,
    read_batch,
    rejected_requests,
    rows_except,
)
from tollgate.steps.second_lookup import PendingRequest, SecondLookup
from tollgate.steps.step_tracing import open_traces
from tollgate.steps.triton import Array
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.fallback.fallback_chain import FallbackChain, Scored
from tollgate.store.id_lists import read_lists
from tollgate.store.store_opening import StoreSettings, open_fallback_chain
from tollgate.store.stored_decisions import verified_fingerprint
from tollgate.tracing.batches import open_batches
from tollgate.validation import conflict

# Match each row of a batch with its stored decision (idempotency).

_UNREAD = np.uint32(Degraded.LOOKUPS_UNREAD)


def match_stored_decisions(
    batch: Batch, groups: Sequence[Group], scored: Sequence[Scored], *, context: Array
) -> Counter[str]:
    """
    Note each row's stored decision in its context, or its conflict in the errors.

    Args:
        batch: The batch; conflicts are added to its `errors`.
        groups: Its good rows.
        scored: The results for each group.
        context: Of the batch, with its fingerprints; changed.

    Returns:
        Number of stored decisions by kind: same, conflict, corrupt.
    """
    counts: Counter[str] = Counter()
    ids = batch.ids[TRANSACTION_ID]
    for group, one in zip(groups, scored, strict=True):
        if any(one.lookups.earlier):
            for row, value in zip(
                group.rows.tolist(), one.lookups.earlier, strict=True
            ):
                if value:
                    counts[_match(batch, row, value, context=context)] += 1
        own = group.purchases.transaction_id
        if not group.dry and len(set(own)) < len(own):
            for row in _conflicting_duplicates(group, context["fingerprint"]):
                batch.errors.setdefault(row, conflict(ids[row]))
                counts["conflict"] += 1
    return counts


def _match(batch: Batch, row: int, value: bytes, *, context: Array) -> str:
    fingerprint = verified_fingerprint(value)
    if fingerprint is None:
        context["degraded"][row] |= _UNREAD
        return "corrupt"
    if fingerprint != context["fingerprint"][row]:
        batch.errors.setdefault(row, conflict(batch.ids[TRANSACTION_ID][row]))
        return "conflict"
    context["earlier_length"][row] = len(value)
    context["earlier"][row] = value
    return "same"


def _conflicting_duplicates(group: Group, fingerprints: Array) -> list[int]:
    """List rows that share their id with a row before them but differ in content."""
    ids = group.purchases.transaction_id
    first: dict[bytes, int] = {}
    return [
        row
        for row, one in zip(group.rows.tolist(), ids, strict=True)
        if fingerprints[row] != fingerprints[first.setdefault(one, row)]
    ]


# Read the feature step's store settings from its configuration.

_CONFIG = "config.pbtxt"
# Parameter of the step's configuration -> its unit in seconds or bytes, or 1.
_UNITS = {
    STORE_DEADLINE_PARAMETER: 1e-3,
    STORE_DEADLINE_LIMIT_PARAMETER: 1e-3,
    STORE_PROBE_PARAMETER: 1e-3,
    BREAKER_FAILURES_PARAMETER: 1.0,
    BREAKER_CALLS_PARAMETER: 1.0,
    BREAKER_SHARE_PARAMETER: 1.0,
    LAST_KNOWN_SIZE_PARAMETER: 1e6,
    TABLES_SIZE_PARAMETER: 1e6,
    LAST_KNOWN_AGE_PARAMETER: 1.0,
}
_COUNTS = (BREAKER_FAILURES_PARAMETER, BREAKER_CALLS_PARAMETER)


def store_settings(parameters: Mapping[str, str]) -> StoreSettings:
    """
    Read the store settings from the step's configuration.

    Raises:
        InputError: A parameter is no number, out of its range, or none of its allowed
            words.
    """
    defaults, breaker = StoreSettings(), BreakerRules()
    numbers = {
        name: _number(name, parameters[name]) * _UNITS[name]
        for name in parameters.keys() & _UNITS.keys()
    }
    updates = parameters.get(UPDATES_PARAMETER, UPDATES[0])
    if updates not in UPDATES:
        problem = f"{updates!r} is none of {', '.join(UPDATES)}"
        raise InputError(_CONFIG, problem, where=UPDATES_PARAMETER)
    return StoreSettings(
        deadline_s=numbers.get(STORE_DEADLINE_PARAMETER, defaults.deadline_s),
        deadline_limit_s=numbers.get(
            STORE_DEADLINE_LIMIT_PARAMETER, defaults.deadline_limit_s
        ),
        breaker=BreakerRules(
            failures_in_a_row=round(
                numbers.get(BREAKER_FAILURES_PARAMETER, breaker.failures_in_a_row)
            ),
            recent_calls=round(
                numbers.get(BREAKER_CALLS_PARAMETER, breaker.recent_calls)
            ),
            failed_share=numbers.get(BREAKER_SHARE_PARAMETER, breaker.failed_share),
            probe_interval_s=numbers.get(
                STORE_PROBE_PARAMETER, breaker.probe_interval_s
            ),
        ),
        last_known_bytes=round(
            numbers.get(LAST_KNOWN_SIZE_PARAMETER, defaults.last_known_bytes)
        ),
        last_known_max_age_s=numbers.get(
            LAST_KNOWN_AGE_PARAMETER, defaults.last_known_max_age_s
        ),
        tables_bytes=round(numbers.get(TABLES_SIZE_PARAMETER, defaults.tables_bytes)),
        updates=updates != "stream",
        marks=updates == "scoring",
    )


def _number(name: str, text: str) -> float:
    """Read a parameter: above zero, 1 at most for a share, an integer for a count."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(_CONFIG, f"{text!r} is no number above 0", where=name)
    if name in _COUNTS and value != round(value):
        raise InputError(_CONFIG, f"{text!r} is no whole number", where=name)
    if name == BREAKER_SHARE_PARAMETER and value > 1:
        raise InputError(_CONFIG, f"{text!r} is more than 1", where=name)
    return value


SPOOL_VARIABLE = "TOLLGATE_SPOOL"  # folder of purchases that the store did not apply

_MOST = 2**32 - 1
_DRY_SHARE_MS = "1000"


class FeatureStep:
    """
    Implement `fraud_features` and similar models: rows to `features` and `context`.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the spec, open the store, and warm both up."""
        import triton_python_backend_utils as pb

        import_gently("redis", "hiredis")
        self._pb = pb
        config = triton.step_config(args)
        try:
            self._signer = ContextSigner(read_key())
        except ValueError as error:
            raise pb.TritonModelException(str(error)) from error
        self._spec = gently(partial(load_spec, config.directory / SPEC_FILE))
        if self._spec.hook is not None:
            gently(partial(prove, self._spec, self._spec.hook))
        self._exact = EXACT_FEATURES in config.outputs
        self._dtype = context_dtype(self._spec.entity_names, self._spec.field_names)
        owners = (TRANSACTION, *self._spec.entity_names)
        self._id_fields = [(f"{one}_id_length", f"{one}_id") for one in owners]
        offsets = {name: at for name, (_, at, *_) in (self._dtype.fields or {}).items()}
        self._places = tuple(
            offsets[name]
            for name in itertools.chain(
                ("event_time_us", "cents", "fingerprint"), *self._id_fields
            )
        )
        # Copied for each batch: a copy is faster than setting each row's constants.
        self._blank = np.zeros(MAX_BATCH_ROWS, self._dtype)
        self._blank["version"] = CONTEXT_VERSION
        self._blank["spec_hash"] = self._spec.spec_hash
        url = os.environ.get(STORE_URL_VARIABLE, "")
        if not url:
            text = "%s is not set: every row is degraded"
            triton.log.warning(text, STORE_URL_VARIABLE)
        settings = store_settings(config.parameters)
        applies = bool(url and self._spec.entities)
        spool = os.environ.get(SPOOL_VARIABLE, "") if applies else ""
        path = config.directory / SPEC_FILE
        self._spool = open_spool(spool, path, product=self._spec.product)
        lists = read_lists(config.parameters.get(LISTS_PARAMETER, ""))
        self._chain = open_fallback_chain(
            self._spec, url, settings=settings, lists=lists, spool=self._spool
        )
        # Without last known values: the batch has used those already.
        longer = replace(
            settings,
            deadline_s=settings.deadline_limit_s,
            last_known_bytes=0,
            tables_bytes=0,
        )
        self._second = SecondLookup(
            pb,
            open_chain=partial(
                open_fallback_chain, self._spec, url, settings=longer, lists=lists
            ),
            score=self._score,
            respond=self._answer_later,
            deadline_s=settings.deadline_s,
            limit_s=settings.deadline_limit_s if url else 0.0,
        )
        share_ms = float(config.parameters.get(DRY_SHARE_PARAMETER, _DRY_SHARE_MS))
        self._share = DryShare(share_ms * 1e-3)
        labels = triton.metric_labels(args, product=self._spec.product)
        self._metrics = StepMetrics(
            pb, self._chain, self._share, self._second, labels=labels
        )
        self._refusals = Refusals(pb, labels=labels)
        self._loops = LoopMetrics(pb, labels=labels)
        name = triton.step_name(args)
        self._traces = open_traces(product=self._spec.product, model=name)
        self._batches = open_batches(name)
        triton.settle()

    def finalize(self) -> None:
        """Close the store, and write out all pending purchases and metrics."""
        self._second.close()
        self._metrics.close()
        self._refusals.close()
        self._loops.close()
        self._chain.close()
        if self._spool is not None:
            self._spool.close()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a dynamic batch of requests."""
        return triton.guarded(self._pb, requests, self._execute)

    def _execute(self, requests: Sequence[Any]) -> list[Any]:
        arrival_us = time.monotonic_ns() // 1000
        now_us = time.time_ns() // 1000
        inputs = triton.inputs_of(requests)
        if direct := triton.direct_calls(inputs):
            self._refusals.note([DIRECT] * len(direct))
            errors = dict.fromkeys(direct, refusal_error(DIRECT))
            return triton.refuse_some(self._pb, requests, errors, answer=self.execute)
        if self._traces is not None:
            self._traces.begin(arrival_us)
        batch = read_batch(requests, inputs, spec=self._spec, now_us=now_us)
        features, context = self._score(batch, arrival_us=arrival_us)
        degraded = context["degraded"]
        later: Mapping[int, float] = {}
        if batch.store_deadline_ms:
            later = self._second.eligible(batch, degraded)
        if np.count_nonzero(degraded):
            self._metrics.count(degraded[rows_except(batch, later)])
        responses = self._answer(
            requests, batch, features, context, arrival_us=arrival_us, later=later
        )
        for position, deadline_s in later.items():
            part = slice(*batch.bounds[position : position + 2])
            pending = PendingRequest(
                batch=one_request(batch, position),
                features=features[part],
                context=context[part],
                deadline_s=deadline_s,
                request=requests[position],
                sender=requests[position].get_response_sender(),
            )
            responses[position] = None  # the second look-up sends it later
            self._second.add(pending)
        return responses

    def _answer(
        self,
        requests: Sequence[Any],
        batch: Batch,
        features: Array,
        context: Array,
        *,
        arrival_us: int,
        later: Collection[int],
    ) -> list[Any]:
        """
        Answer the requests of a scored batch.

        Args:
            later: Positions of the requests that are answered after a second look-up;
                their answers here are not sent.
        """
        responses, refused = self._respond(batch, features, context)
        self._report(
            requests, batch, context, arrival_us=arrival_us, rejected=list(refused)
        )
        return responses

    def _report(
        self,
        requests: Sequence[Any],
        batch: Batch,
        context: Array,
        *,
        arrival_us: int,
        rejected: Sequence[int],
    ) -> None:
        """Write the spans of a scored batch; `rejected`: requests not passed on."""
        if self._traces is not None:
            self._traces.scored(
                requests,
                ids=next(iter(batch.ids.values())),
                bounds=batch.bounds,
                rejected=rejected,
                began_us=arrival_us,
                worked_us=int(context["features_us"][0]),
            )
        if self._batches is not None and self._batches.is_enabled():
            rows = len(context)
            self._batches.write(requests, rows=rows, began_us=arrival_us)

    def _outputs(
        self, batch: Batch, features: Array, context: Array
    ) -> dict[str, Array]:
        """Return the tensors for the next steps."""
        outputs = {
            FEATURES: features,
            CONTEXT: context.view(np.uint8).reshape(len(features), -1),
        }
        if self._exact:
            outputs[EXACT_FEATURES] = exact_features(
                self._spec, features, cents=batch.cents, fields=batch.fields
            )
        return outputs

    def _respond(
        self, batch: Batch, features: Array, context: Array
    ) -> tuple[list[Any], dict[int, str]]:
        """
        Write the response to each request of a batch; also return the refused ones.
        """
        self._signer.sign(features, context, bounds=batch.bounds)
        outputs = self._outputs(batch, features, context)
        responses = triton.respond(self._pb, outputs, batch.bounds)
        refused = dict(rejected_requests(batch)) if batch.errors else {}
        for position, text in refused.items():
            responses[position] = triton.refuse(self._pb, text, invalid=True)
        return responses, refused

    def _answer_later(
        self, pending: PendingRequest, features: Array, context: Array
    ) -> Any:
        """Write the response to a request after its second look-up."""
        self._metrics.count(context["degraded"])
        ((response,), _) = self._respond(pending.batch, features, context)
        return response

    def _score(
        self, batch: Batch, *, arrival_us: int, chain: FallbackChain | None = None
    ) -> tuple[Array, Array]:
        """
        Fill `features` float32 [N, F] and `context` [N] for the whole batch.

        Args:
            batch: Its rows; conflicts that the store reports join its errors.
            arrival_us: Time at which work on it started, on the monotonic clock.
            chain: The fallback chain to read; the step's own if None.
        """
        rows = len(batch.cents)
        features = np.zeros((rows, len(self._spec.features)), np.float32)
        if rows > len(self._blank):
            self._blank = np.resize(self._blank, rows)
        context = self._blank[:rows].copy()
        context["arrival_us"] = arrival_us
        if self._spec.fields:
            context["degraded"] = batch.degraded
        # Runs while the store works, or else here: once.
        fill_context = cache(partial(self._fill_context, batch, context))
        if any(batch.dry):  # sharing finds identical rows by their fingerprints
            fill_context()
        found = groups(batch)
        if found:
            scored = self._read(
                found, features, context, on_wait=fill_context, chain=chain
            )
        fill_context()
        if found:
            counts = (chain or self._chain).counts.earlier
            counts.update(match_stored_decisions(batch, found, scored, context=context))
        for row, text in batch.errors.items():
            encoded = text.encode()
            context["bad"][row] = 1
            context["error_length"][row] = len(encoded)
            context["error"][row] = encoded
        worked_us = time.monotonic_ns() // 1000 - arrival_us
        context["features_us"] = min(worked_us, _MOST)
        return features, context

    def _fill_context(self, batch: Batch, context: Array) -> None:
        """Write the values of the rows themselves into the context."""
        columns = list(batch.ids.values())
        if compiled.events is None or not compiled.events.fill_rows(
            context.view(np.uint8),
            columns,
            batch.time_us,
            batch.cents,
            mix_fields(batch.fields).view(np.int64) if batch.fields else None,
            max_id_bytes=MAX_ID_BYTES,
            places=self._places,
        ):
            context["event_time_us"] = batch.time_us
            context["cents"] = batch.cents
            self._fill_ids(batch, context)
            context["fingerprint"] = fingerprints(
                columns,
                cents=batch.cents,
                time_us=batch.time_us,
                fields=batch.fields,
            )
        if self._spec.fields:
            self._fill_fields(batch, context)
        if any(batch.dry):
            for span in dry_spans(batch):
                context["dry_run"][span] = 1

    def _fill_ids(self, batch: Batch, context: Array) -> None:
        columns = list(batch.ids.values())
        flat = list(itertools.chain.from_iterable(columns))
        lengths = np.fromiter(map(len, flat), np.int64, len(flat))
        if batch.errors:  # an id that is too long is one
            lengths = np.minimum(lengths, MAX_ID_BYTES)
        packed = np.array(flat, f"S{MAX_ID_BYTES}").view(f"V{MAX_ID_BYTES}")
        for (length_field, id_field), own, slots in zip(
            self._id_fields,
            lengths.reshape(len(columns), -1),
            packed.reshape(len(columns), -1),
            strict=True,
        ):
            context[length_field] = own
            context[id_field] = slots

    def _fill_fields(self, batch: Batch, context: Array) -> None:
        """Write all declared fields at once: they are a row's last bytes."""
        names, rows = self._spec.field_names, len(context)
        first = self._dtype.itemsize - 8 * len(names)
        packed = context.view(np.uint8).reshape(rows, -1)[:, first:].view("<i8")
        packed[:] = stacked(batch.fields, names, rows).T

    def _read(
        self,
        found: list[Group],
        features: Array,
        context: Array,
        *,
        on_wait: Callable[[], None],
        chain: FallbackChain | None,
    ) -> list[Scored]:
        """Get the vectors of the good rows, in one round trip at most."""
        look_up: Callable[[Sequence[Group]], list[Scored]]
        look_up = partial(self._look_up, chain or self._chain, on_wait=on_wait)
        if chain is not None:
            scored = look_up(found)
        else:
            if self._traces is not None:
                look_up = self._traces.timed("store", look_up)
            prints = context["fingerprint"]
            scored = self._share.score(found, fingerprints=prints, look_up=look_up)
        for group, one in zip(found, scored, strict=True):
            # Writing a slice is several times faster than writing selected rows.
            whole = len(group.rows) == len(features)
            rows = slice(None) if whole else group.rows
            features[rows] = one.features
            context["applied"][rows] = one.applied
            # The others are zero, as in a blank row, when nothing is wrong or listed.
            if np.count_nonzero(one.degraded):
                context["degraded"][rows] |= one.degraded
            if np.count_nonzero(one.age_us):
                context["age_ms"][rows] = np.minimum(one.age_us // 1000, _MOST)
            if np.count_nonzero(one.lookups.list_hits):
                context["list_hits"][rows] = one.lookups.list_hits
        return scored

    def _look_up(
        self,
        chain: FallbackChain,
        groups: Sequence[Group],
        *,
        on_wait: Callable[[], None],
    ) -> list[Scored]:
        return chain.score(
            [group.purchases for group in groups],
            write=[not group.dry for group in groups],
            on_wait=on_wait,
        )
