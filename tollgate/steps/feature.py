"""The first step: validate rows, update and read windows, assemble features."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tollgate.errors import InputError
from tollgate.features.spec import SPEC_FILE, load_spec
from tollgate.repair.spool import open_spool
from tollgate.schema import (
    CONTEXT,
    CONTEXT_VERSION,
    FEATURES,
    LAST_KNOWN_AGE_PARAMETER,
    LAST_KNOWN_SIZE_PARAMETER,
    MAX_ID_BYTES,
    STORE_DEADLINE_PARAMETER,
    STORE_PROBE_PARAMETER,
    UPDATES,
    UPDATES_PARAMETER,
    context_dtype,
)
from tollgate.steps import triton
from tollgate.steps.batch import Batch, Group, dry_spans, gather, groups, hopeless
from tollgate.steps.metrics import StepMetrics
from tollgate.store.opening import StoreSettings, open_ladder

STORE_URL_VARIABLE = "TOLLGATE_STORE_URL"
SPOOL_VARIABLE = "TOLLGATE_SPOOL"  # folder of what the store did not apply

_MOST_MS = 2**32 - 1
# Parameter of the step's configuration -> its unit in seconds or bytes.
_UNITS = {
    STORE_DEADLINE_PARAMETER: 1e-3,
    STORE_PROBE_PARAMETER: 1e-3,
    LAST_KNOWN_SIZE_PARAMETER: 1e6,
    LAST_KNOWN_AGE_PARAMETER: 1.0,
}

Array = triton.Array


class FeatureStep:
    """`fraud_features` and its kind: rows in, `features` and `context` out."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the spec, open the store, and warm both."""
        import triton_python_backend_utils as pb

        self._pb = pb
        config = triton.step_config(args)
        self._spec = load_spec(config.directory / SPEC_FILE)
        self._dtype = context_dtype(self._spec.entity_names)
        url = os.environ.get(STORE_URL_VARIABLE, "")
        if not url:
            text = "%s is not set: every row is degraded"
            triton.log.warning(text, STORE_URL_VARIABLE)
        settings = _store_settings(config.parameters)
        spool = os.environ.get(SPOOL_VARIABLE, "") if url else ""
        self._spool = open_spool(spool, config.directory / SPEC_FILE)
        self._ladder = open_ladder(
            self._spec, url, settings=settings, spool=self._spool
        )
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self._metrics = StepMetrics(pb, self._ladder, labels=labels)

    def finalize(self) -> None:
        """Let go of the store, and leave nothing unwritten."""
        self._ladder.close()
        if self._spool is not None:
            self._spool.close()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a dynamic batch of requests."""
        return triton.guarded(self._pb, requests, self._execute)

    def _execute(self, requests: Sequence[Any]) -> list[Any]:
        arrival_us = time.monotonic_ns() // 1000
        now_us = time.time_ns() // 1000
        batch = gather(self._pb, requests, spec=self._spec, now_us=now_us)
        features, context = self._score(batch, arrival_us=arrival_us)
        self._metrics.batch(context["degraded"])
        outputs = {
            FEATURES: features,
            CONTEXT: context.view(np.uint8).reshape(len(features), -1),
        }
        responses = triton.respond(self._pb, outputs, batch.bounds)
        if batch.errors:
            for position, text in hopeless(batch):
                responses[position] = triton.refuse(self._pb, text, invalid=True)
        return responses

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
        context["degraded"] = batch.degraded
        for span in dry_spans(batch):
            context["dry_run"][span] = 1
        found = groups(batch)
        if found:
            self._read(found, features, context)
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

    def _read(self, found: list[Group], features: Array, context: Array) -> None:
        """Get the vectors of the good rows, in one round trip at most."""
        scored = self._ladder.score(
            [group.purchases for group in found],
            write=[not group.dry for group in found],
        )
        for group, one in zip(found, scored, strict=True):
            features[group.rows] = one.features
            context["degraded"][group.rows] |= one.degraded
            context["applied"][group.rows] = one.applied
            context["age_ms"][group.rows] = np.minimum(one.age_us // 1000, _MOST_MS)


def _store_settings(parameters: Mapping[str, str]) -> StoreSettings:
    """Read how to treat the store from the step's configuration."""
    usual = StoreSettings()
    given = {name: float(value) for name, value in parameters.items() if name in _UNITS}
    told = {name: given[name] * _UNITS[name] for name in given}
    updates = parameters.get(UPDATES_PARAMETER, UPDATES[0])
    if updates not in UPDATES:
        problem = f"{updates!r} is none of {', '.join(UPDATES)}"
        raise InputError("config.pbtxt", problem, where=UPDATES_PARAMETER)
    return StoreSettings(
        deadline_s=told.get(STORE_DEADLINE_PARAMETER, usual.deadline_s),
        probe_interval_s=told.get(STORE_PROBE_PARAMETER, usual.probe_interval_s),
        last_known_bytes=round(
            told.get(LAST_KNOWN_SIZE_PARAMETER, usual.last_known_bytes)
        ),
        last_known_max_age_s=told.get(
            LAST_KNOWN_AGE_PARAMETER, usual.last_known_max_age_s
        ),
        updates=updates != "stream",
    )
