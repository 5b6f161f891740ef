"""The decision step: turn probabilities into decisions and reasons by the policy."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from tollgate.engine.decision_stage import (
    FOREIGN,
    Canary,
    DecisionBatch,
    DecisionStage,
    read_canary,
    recorded_fields,
)
from tollgate.engine.hysteresis_stage import HysteresisStage
from tollgate.errors import InputError, trace_of
from tollgate.imports import gently, import_gently
from tollgate.journal.journal_rows import Heading
from tollgate.policy import POLICY_FILE, Policy, load_policy
from tollgate.policy.decide import PolicyDecisions
from tollgate.schema import (
    CHALLENGER_PROBABILITIES,
    CONTEXT,
    ENTITY_NAMES_PARAMETER,
    FEATURE_NAMES_PARAMETER,
    FEATURES,
    FIELDS_PARAMETER,
    PROBABILITIES,
    RELEASE_PARAMETER,
    SPEC_HASH_PARAMETER,
    STORE_URL_VARIABLE,
    context_dtype,
    read_fields,
)
from tollgate.steps import triton
from tollgate.steps.context_mac import DIRECT, ContextVerifier, read_key
from tollgate.steps.decision_metrics import DecisionMetrics
from tollgate.steps.loops import LoopMetrics
from tollgate.steps.refusals import Refusals, refusal_error
from tollgate.steps.step_journal import open_journal
from tollgate.steps.step_tracing import open_traces
from tollgate.steps.store_parameters import store_settings
from tollgate.steps.triton import Array
from tollgate.store.fallback.circuit_breaker import BreakerRules, CircuitBreaker
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.redis.redis_store import NoStore, RedisStore
from tollgate.tracing.batches import open_batches

# Cache the output tensors that many responses have in common.
#
# Making tensors was a third of the decision step's Python (docs/performance-log.md).
# Triton's stub writes a tensor to shared memory when it is first sent, and counts the
# references to it there; so one tensor may be part of any number of responses.

MOST = 512  # tensors; one of 32 rows of codes takes a few KB of shared memory


class TensorCache:
    """
    Make responses, and cache tensors that are likely to occur again.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        names: Outputs with few values, decisions and codes.
        empty: Outputs of which only the empty text is cached: other values are a row's
            own.
        most: Most tensors to cache; further ones are made each time.
    """

    def __init__(
        self,
        pb: Any,
        *,
        names: Collection[str],
        empty: Collection[str] = (),
        most: int = MOST,
    ) -> None:
        self._pb = pb
        self._names = frozenset(names)
        self._empty = frozenset(empty)
        self._most = most
        self._tensors: dict[tuple[str, int], dict[Any, Any]] = {}  # by output and rows
        self._cached = 0

    def respond(self, outputs: Mapping[str, Array], bounds: Sequence[int]) -> list[Any]:
        """
        Split the outputs of a batch into one response per request.

        Args:
            outputs: By name, [N, 1] each.
            bounds: First row of each request, then the end of the last.
        """
        response = self._pb.InferenceResponse
        return [response(list(own)) for own in self.tensors(outputs, bounds)]

    def tensors(
        self, outputs: Mapping[str, Array], bounds: Sequence[int]
    ) -> Iterator[tuple[Any, ...]]:
        """Split the outputs of a batch into the tensors of each request."""
        spans = list(itertools.pairwise(bounds))
        columns = [self._split(name, array, spans) for name, array in outputs.items()]
        return zip(*columns, strict=True)

    def _split(
        self, name: str, array: Array, spans: Sequence[tuple[int, int]]
    ) -> list[Any]:
        tensor = self._pb.Tensor
        if name not in self._names and name not in self._empty:
            return [tensor(name, array[start:stop]) for start, stop in spans]
        values = array[:, 0].tolist()
        if len(values) == len(spans):  # one row each, and mostly known values
            known = list(map(self._tensors.setdefault((name, 1), {}).get, values))
            if None not in known:
                return known
        found = []
        for start, stop in spans:
            value, rows = values[start], stop - start
            alike = rows == 1 or values[start:stop].count(value) == rows
            cached = self._tensors.setdefault((name, rows), {})
            one = cached.get(value) if alike else None
            if one is None:
                cacheable = alike and (not value or name in self._names)
                if cacheable and self._cached < self._most:
                    one = cached[value] = tensor(name, array[start:stop].copy())
                    self._cached += 1
                else:
                    one = tensor(name, array[start:stop])
            found.append(one)
        return found


class DecisionStep:
    """
    Implement `fraud_decision` and similar models: fill the columns of the answer.

    Attributes:
        model_output: Input with the output of the model.
        challenger_output: Input with that of a challenger on canary.
        passed: Inputs that the first step filled, besides the context.
        metrics: Counts what the step answers.
    """

    model_output = PROBABILITIES
    challenger_output = CHALLENGER_PROBABILITIES
    passed: tuple[str, ...] = (FEATURES,)
    metrics: type[DecisionMetrics] = DecisionMetrics

    def initialize(self, args: Mapping[str, str]) -> None:
        """Compile the policy; the release's settings come as parameters."""
        import triton_python_backend_utils as pb

        import_gently("redis", "hiredis")
        self._pb = pb
        config = triton.step_config(args)
        try:
            self._verifier = ContextVerifier(read_key())
        except ValueError as error:
            raise pb.TritonModelException(str(error)) from error
        parameters = config.parameters
        missing = {
            RELEASE_PARAMETER,
            SPEC_HASH_PARAMETER,
            FEATURE_NAMES_PARAMETER,
        } - set(parameters)
        if missing:
            raise pb.TritonModelException(
                f"parameters missing: {', '.join(sorted(missing))}; they come from "
                "release.json: load the model through `tollgate up`"
            )
        self._spec_hash = int(parameters[SPEC_HASH_PARAMETER], 16)
        fields = read_fields(parameters.get(FIELDS_PARAMETER, ""))
        policy = gently(
            partial(
                load_policy,
                config.directory / POLICY_FILE,
                feature_names=parameters[FEATURE_NAMES_PARAMETER].split(","),
                fields=fields,
            )
        )
        named = parameters.get(ENTITY_NAMES_PARAMETER, "")
        entities = tuple(filter(None, named.split(",")))
        field_names = tuple(field.name for field in fields)
        self._dtype = context_dtype(entities, field_names)
        canary = read_canary(parameters, entities)
        self.stage = self._open_stage(
            policy, config, entities=entities, fields=field_names, canary=canary
        )
        heading = Heading(
            product=policy.product,
            release=parameters[RELEASE_PARAMETER],
            spec_hash=self._spec_hash,
            entities=entities,
            fields=recorded_fields(policy, field_names),
            details=policy.ranking is not None,
        )
        labels = triton.metric_labels(args, product=policy.product)
        step_labels = dict(labels)
        self._refusals = Refusals(pb, labels=step_labels)
        self._loops = LoopMetrics(pb, labels=step_labels)
        name = triton.step_name(args)
        self._traces = open_traces(product=policy.product, model=name)
        self._batches = open_batches(name)
        window_s = policy.idempotency_s
        self._journal = open_journal(pb, heading, window_s=window_s, labels=labels)
        self._canary_journal = None
        if canary is not None and not canary.interleaved:
            heading = structs.replace(heading, release=canary.release)
            labels["version"] += "-canary"
            self._canary_journal = open_journal(
                pb, heading, window_s=window_s, labels=labels
            )
        names = ("decision", "reason_codes", "degraded", "release")
        self._tensors = TensorCache(pb, names=names, empty=("error",))
        releases = [parameters[RELEASE_PARAMETER]]
        releases += [canary.release] if canary is not None else []
        self._metrics = self.metrics(
            pb,
            labels=step_labels,
            releases=tuple(releases),
            spec_hash=self._spec_hash,
            outcomes=policy.outcomes,
            hysteresis=policy.hysteresis is not None,
        )
        triton.settle()

    def finalize(self) -> None:
        """Write out all pending journal records and metrics."""
        for journal in (self._journal, self._canary_journal):
            if journal is not None:
                journal.close()
        self._metrics.close()
        self._refusals.close()
        self._loops.close()
        self.stage.close()

    def _open_stage(
        self,
        policy: Policy,
        config: triton.StepConfig,
        *,
        entities: Sequence[str],
        fields: Sequence[str],
        canary: Canary | None,
    ) -> DecisionStage:
        """Open the stage that answers."""
        return DecisionStage(
            policy,
            release=config.parameters[RELEASE_PARAMETER],
            spec_hash=self._spec_hash,
            fields=fields,
            canary=canary,
            hysteresis=self._open_hysteresis(policy, config.parameters, entities),
        )

    def _open_hysteresis(
        self, policy: Policy, parameters: Mapping[str, str], entities: Sequence[str]
    ) -> HysteresisStage | None:
        """Open the hysteresis of a policy over the store; None without it."""
        settings = policy.hysteresis
        if settings is None:
            return None
        if settings.entity not in entities:
            problem = f"hysteresis.entity: {settings.entity!r} is no entity"
            raise self._pb.TritonModelException(f"{POLICY_FILE}: {problem}")
        store, rules = self._open_store(parameters, use="hysteresis has no state")
        breaker = CircuitBreaker(time.monotonic, random.random, rules=rules)
        stage = HysteresisStage(
            settings, product=policy.product, store=store, breaker=breaker
        )
        stage.warm_up()
        return stage

    def _open_store(
        self, parameters: Mapping[str, str], *, use: str
    ) -> tuple[RedisStore, BreakerRules]:
        """Open the store with the settings of the first step; `use`: what lacks it."""
        try:
            read = store_settings(parameters)
        except InputError as error:
            raise self._pb.TritonModelException(str(error)) from error
        url = os.environ.get(STORE_URL_VARIABLE, "")
        if not url:
            triton.log.warning("%s is not set: %s", STORE_URL_VARIABLE, use)
            return NoStore(), read.breaker
        store = open_store(url, deadline_s=read.deadline_s, rules=read.breaker)
        return store, read.breaker

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a dynamic batch of requests."""
        return triton.guarded(self._pb, requests, self._execute)

    def _execute(self, requests: Sequence[Any]) -> list[Any]:
        began_us = time.monotonic_ns() // 1000
        inputs = triton.inputs_of(requests)
        reasons = dict.fromkeys(triton.direct_calls(inputs), DIRECT)
        if not reasons:
            batch = self._read(inputs, began_us=began_us)
            reasons = self._verifier.refusals(
                batch.signed, batch.context, bounds=batch.bounds
            )
            if not reasons:
                return self.answer(requests, batch)
        self._refusals.note(reasons.values())
        errors = {place: refusal_error(reason) for place, reason in reasons.items()}
        if DIRECT in reasons.values():
            answer = self.execute
        else:
            others = [at for at in range(len(requests)) if at not in reasons]
            answer = partial(self._answer_part, batch=batch, positions=others)
        return triton.refuse_some(self._pb, requests, errors, answer=answer)

    def _read(self, inputs: triton.Inputs, *, began_us: int) -> DecisionBatch:
        packed = np.ascontiguousarray(triton.gather(inputs, CONTEXT))
        context = packed.view(self._dtype)[:, 0]
        output, bounds = triton.gather_rows(inputs, self.model_output)
        chosen = rival = None
        if self.stage.canary is not None:
            theirs = partial(triton.gather, inputs, self.challenger_output)
            output, chosen, rival = self.stage.canary.divide(
                context, output, theirs=theirs
            )
        tensors = {name: triton.gather(inputs, name) for name in self.passed}
        batch = self.batch_of(
            tensors,
            context,
            output=output,
            chosen=chosen,
            bounds=bounds,
            began_us=began_us,
        )
        return batch if rival is None else structs.replace(batch, rival=rival)

    def batch_of(
        self,
        tensors: Mapping[str, Array],
        context: Array,
        *,
        output: Array,
        chosen: Array | None,
        bounds: list[int],
        began_us: int,
    ) -> DecisionBatch:
        """
        Assemble the rows of a dynamic batch.

        Args:
            tensors: Outputs of the first step by name, those of `passed` at least.
            context: Its contexts; [N].
            output: Output of the model that decides each row.
            chosen: Rows that the challenger decides; None without a challenger.
            bounds: First row of each request, then the end of the last.
            began_us: Time at which the step took the batch, on the monotonic clock.
        """
        return DecisionBatch(
            context=context,
            features=tensors[FEATURES],
            probabilities=output,
            chosen=chosen,
            bounds=bounds,
            began_us=began_us,
        )

    def needs_model(self, context: Array, tensors: Mapping[str, Array]) -> bool:
        """Return whether a row of a batch needs the output of the model."""
        return self.stage.needs_model(context, tensors[FEATURES])

    def _answer_part(
        self,
        requests: Sequence[Any],
        *,
        batch: DecisionBatch,
        positions: Sequence[int],
    ) -> list[Any]:
        """Answer some requests of a verified batch, at these positions in it."""
        return self.answer(requests, batch.requests(positions))

    def answer(self, requests: Sequence[Any], batch: DecisionBatch) -> list[Any]:
        """Decide verified requests; if that fails, decide them one by one."""
        if self._traces is not None:
            self._traces.begin(batch.began_us)
        try:
            decided = self._decide(batch)
        except Exception as exc:  # noqa: BLE001 - one of the requests may be the cause
            if len(requests) == 1:
                return triton.failed(self._pb, requests, exc)
            triton.log.error("a batch was not decided: %s", trace_of(exc))
            decided = None
        if decided is None:
            return [
                answer
                for at, one in enumerate(requests)
                for answer in self.answer([one], batch.requests([at]))
            ]
        try:
            return self._respond(requests, batch, decided)
        except Exception as exc:  # noqa: BLE001 - part of it may be in the journal
            return triton.failed(self._pb, requests, exc)

    def _decide(self, batch: DecisionBatch) -> PolicyDecisions:
        """Apply the policy; deciding a row again changes nothing."""
        decided = self.stage.decide(batch)
        if self._traces is not None:
            self._traces.part("policy")
        return decided

    def _respond(
        self, requests: Sequence[Any], batch: DecisionBatch, decided: PolicyDecisions
    ) -> list[Any]:
        """Write the journal's records, count, and make one response per request."""
        context, bounds = batch.context, batch.bounds
        marks = self.stage.marks(context)
        self._record(batch, decided, marks=marks)
        outputs = self.stage.columns(batch, decided, marks=marks)
        responses = self._responses(outputs, batch)
        if marks is not None:
            foreign = marks & FOREIGN
            for position in range(len(responses)):
                if foreign[bounds[position] : bounds[position + 1]].any():
                    responses[position] = self._mixed(context, bounds[position])
        if self._traces is not None:
            self._traces.decided(
                requests,
                context,
                outputs=outputs,
                bounds=bounds,
                began_us=batch.began_us,
            )
        if self._batches is not None and self._batches.is_enabled():
            rows = len(context)
            self._batches.write(requests, rows=rows, began_us=batch.began_us)
        return responses

    def _responses(
        self, outputs: Mapping[str, Array], batch: DecisionBatch
    ) -> list[Any]:
        """Split the outputs of a batch into one response per request."""
        return self._tensors.respond(outputs, batch.bounds)

    def _record(
        self, batch: DecisionBatch, decided: PolicyDecisions, *, marks: Array | None
    ) -> None:
        context, chosen = batch.context, batch.chosen
        probabilities = self.stage.recorded_probabilities(batch, decided)
        recorded = self.stage.recorded_context(context, decided)
        details = self.stage.details(batch, decided)
        for journal, excluded in (
            (self._journal, chosen),
            (self._canary_journal, None if chosen is None else ~chosen),
        ):
            if journal is not None:
                journal.record(
                    recorded,
                    decided,
                    features=batch.features,
                    probabilities=probabilities,
                    began_us=batch.began_us,
                    marks=marks,
                    excluded=excluded,
                    details=details,
                )
        self._metrics.batch(context, decided, chosen=chosen, began_us=batch.began_us)
        if self._traces is not None:
            self._traces.part("journal")

    def _mixed(self, context: Array, row: int) -> Any:
        found, wanted = int(context["spec_hash"][row]), self._spec_hash
        text = f"features of spec {found:016x}, but the release is of {wanted:016x}"
        return triton.refuse(self._pb, text, invalid=False)
