"""The feature step: validate rows, update and read windows, assemble features."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from tollgate.engine.feature_stage import FeatureStage
from tollgate.engine.row_batches import (
    Batch,
    DryShare,
    one_request,
    rejected_requests,
    rows_except,
)
from tollgate.features.assemble import exact_features
from tollgate.features.hook.hook_proof import prove
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.imports import gently, import_gently
from tollgate.repair.event_spool import open_spool
from tollgate.schema import (
    CONTEXT,
    DRY_SHARE_PARAMETER,
    EXACT_FEATURES,
    FEATURES,
    LISTS_PARAMETER,
    STORE_URL_VARIABLE,
)
from tollgate.steps import triton
from tollgate.steps.context_mac import DIRECT, ContextSigner, read_key
from tollgate.steps.feature_metrics import StepMetrics
from tollgate.steps.loops import LoopMetrics
from tollgate.steps.refusals import Refusals, refusal_error
from tollgate.steps.request_batch import read_batch
from tollgate.steps.second_lookup import PendingRequest, SecondLookup
from tollgate.steps.step_tracing import open_traces
from tollgate.steps.store_parameters import store_settings
from tollgate.steps.triton import Array
from tollgate.store.id_lists import read_lists
from tollgate.store.store_opening import open_fallback_chain
from tollgate.tracing.batches import open_batches

SPOOL_VARIABLE = "TOLLGATE_SPOOL"  # folder of purchases that the store did not apply

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
        share_ms = float(config.parameters.get(DRY_SHARE_PARAMETER, _DRY_SHARE_MS))
        self._share = DryShare(share_ms * 1e-3)
        name = triton.step_name(args)
        self._traces = open_traces(product=self._spec.product, model=name)
        timed = self._traces.timed if self._traces is not None else None
        self._stage = FeatureStage(
            self._spec,
            self._chain,
            share=self._share,
            observe=partial(timed, "store") if timed is not None else None,
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
            score=self._stage.score,
            respond=self._answer_later,
            deadline_s=settings.deadline_s,
            limit_s=settings.deadline_limit_s if url else 0.0,
        )
        labels = triton.metric_labels(args, product=self._spec.product)
        self._metrics = StepMetrics(
            pb, self._chain, self._share, self._second, labels=labels
        )
        self._refusals = Refusals(pb, labels=labels)
        self._loops = LoopMetrics(pb, labels=labels)
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
        inputs = self._inputs_of(requests)
        if direct := triton.direct_calls(inputs):
            self._refusals.note([DIRECT] * len(direct))
            errors = dict.fromkeys(direct, refusal_error(DIRECT))
            return triton.refuse_some(self._pb, requests, errors, answer=self.execute)
        if self._traces is not None:
            self._traces.begin(arrival_us)
        batch = read_batch(requests, inputs, spec=self._spec, now_us=now_us)
        batch, features, context = self._score(batch, arrival_us=arrival_us)
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

    def _score(self, batch: Batch, *, arrival_us: int) -> tuple[Batch, Array, Array]:
        """Return a batch, its features [N, F] and contexts [N]."""
        features, context = self._stage.score(batch, arrival_us=arrival_us)
        return batch, features, context

    def _inputs_of(self, requests: Sequence[Any]) -> triton.Inputs:
        """Index the inputs of a dynamic batch by name."""
        return triton.inputs_of(requests)

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

    def _signed(self, outputs: Mapping[str, Array]) -> Array:
        """Return what the tag covers besides the context; [N, ...]."""
        return outputs[FEATURES]

    def _respond(
        self, batch: Batch, features: Array, context: Array
    ) -> tuple[list[Any], dict[int, str]]:
        """
        Write the response to each request of a batch; also return the refused ones.
        """
        outputs = self._outputs(batch, features, context)
        # Into the context, which its tensor shares.
        self._signer.sign(self._signed(outputs), context, bounds=batch.bounds)
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
