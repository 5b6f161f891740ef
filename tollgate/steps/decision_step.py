"""The decision step: turn probabilities into decisions and reasons by the policy."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from tollgate.errors import trace_of
from tollgate.features.share import in_share
from tollgate.imports import gently, import_gently
from tollgate.journal.journal_rows import Heading
from tollgate.policy import POLICY_FILE, RowFacts, decide, load_policy
from tollgate.policy.decide import PolicyDecisions
from tollgate.schema import (
    CANARY_PERCENT_PARAMETER,
    CANARY_SEED_PARAMETER,
    CHALLENGER_PARAMETER,
    CHALLENGER_PROBABILITIES,
    CONTEXT,
    ENTITY_NAMES_PARAMETER,
    FEATURE_NAMES_PARAMETER,
    FEATURES,
    FIELDS_PARAMETER,
    PROBABILITIES,
    RELEASE_PARAMETER,
    SPEC_HASH_PARAMETER,
    TRANSACTION,
    Decision,
    context_dtype,
    read_fields,
)
from tollgate.steps import triton
from tollgate.steps.context_mac import DIRECT, ContextVerifier, read_key
from tollgate.steps.decision_metrics import DecisionMetrics
from tollgate.steps.loops import LoopMetrics
from tollgate.steps.refusals import Refusals, refusal_error
from tollgate.steps.step_journal import (
    BAD,
    FOREIGN,
    STORED,
    open_journal,
    row_marks,
)
from tollgate.steps.step_tracing import open_traces
from tollgate.steps.triton import Array
from tollgate.store.stored_decisions import read_stored_decisions
from tollgate.tracing.batches import open_batches

# Route a share of the entities to the challenger's model inside the decision step.


class Canary(msgspec.Struct, frozen=True):
    """
    Describe the share of entities for which the challenger's model decides.

    Attributes:
        release: Release name in these answers.
        percent: Share of the ids, 0 to 100.
        seed: Seed of the hash that assigns ids to the share.
        entity: Entity whose ids are hashed: the first of the spec, or the transaction
            if the spec has no entities.
    """

    release: str
    percent: float
    seed: int
    entity: str

    def rows(self, context: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which rows of a batch the challenger answers; bool [N]."""
        name = f"{self.entity}_id"
        lengths = context[f"{name}_length"].tolist()
        raw = context[name].tobytes()
        width = context[name].dtype.itemsize
        ids = [
            raw[row * width : row * width + length]
            for row, length in enumerate(lengths)
        ]
        return in_share(ids, percent=self.percent, seed=self.seed)


def read_canary(
    parameters: Mapping[str, str], entities: Sequence[str]
) -> Canary | None:
    """Read the challenger from the release's parameters; None when there is none."""
    release = parameters.get(CHALLENGER_PARAMETER, "")
    if not release:
        return None
    return Canary(
        release=release,
        percent=float(parameters[CANARY_PERCENT_PARAMETER]),
        seed=int(parameters[CANARY_SEED_PARAMETER]),
        entity=entities[0] if entities else TRANSACTION,
    )


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
        spans = list(itertools.pairwise(bounds))
        columns = [self._split(name, array, spans) for name, array in outputs.items()]
        return [response(list(tensors)) for tensors in zip(*columns, strict=True)]

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


_WORDS = np.array([level.name.lower().encode() for level in Decision], np.object_)


class DecisionBatch(msgspec.Struct, frozen=True, eq=False):
    """
    Hold the rows of all requests of a dynamic batch.

    Attributes:
        context: Of `tollgate.schema.context_dtype`; [N], contiguous.
        features: [N, F].
        probabilities: float32 [N, K], of the model that decides each row.
        chosen: True where that model is the challenger's; bool [N], None without a
            challenger.
        bounds: First row of each request, then the end of the last.
        began_us: Time at which the step took the batch, on the monotonic clock.
    """

    context: Array
    features: Array
    probabilities: Array
    chosen: Array | None
    bounds: list[int]
    began_us: int

    def requests(self, positions: Sequence[int]) -> DecisionBatch:
        """Copy the rows of some requests, at least one."""
        spans = [np.arange(*self.bounds[at : at + 2]) for at in positions]
        rows = np.concatenate(spans)
        return DecisionBatch(
            context=self.context[rows],
            features=self.features[rows],
            probabilities=self.probabilities[rows],
            chosen=None if self.chosen is None else self.chosen[rows],
            bounds=list(itertools.accumulate(map(len, spans), initial=0)),
            began_us=self.began_us,
        )


class DecisionStep:
    """Implement `fraud_decision` and similar models: fill the columns of the answer."""

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
        self._release = parameters[RELEASE_PARAMETER].encode()
        self._usual: dict[int, tuple[Array, Array]] = {}  # columns by number of rows
        self._spec_hash = int(parameters[SPEC_HASH_PARAMETER], 16)
        fields = read_fields(parameters.get(FIELDS_PARAMETER, ""))
        self._policy = gently(
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
        conditions = {one.name for one in self._policy.tables.named}
        self._fields = tuple(name for name in field_names if name in conditions)
        self._dtype = context_dtype(entities, field_names)
        heading = Heading(
            product=self._policy.product,
            release=parameters[RELEASE_PARAMETER],
            spec_hash=self._spec_hash,
            entities=entities,
            fields=field_names,
        )
        labels = triton.metric_labels(args, product=self._policy.product)
        step_labels = dict(labels)
        self._refusals = Refusals(pb, labels=step_labels)
        self._loops = LoopMetrics(pb, labels=step_labels)
        name = triton.step_name(args)
        self._traces = open_traces(product=self._policy.product, model=name)
        self._batches = open_batches(name)
        window_s = self._policy.idempotency_s
        self._journal = open_journal(pb, heading, window_s=window_s, labels=labels)
        self.canary = read_canary(parameters, entities)
        self._canary_journal = None
        if self.canary is not None:
            heading = structs.replace(heading, release=self.canary.release)
            labels["version"] += "-canary"
            self._canary_journal = open_journal(
                pb, heading, window_s=window_s, labels=labels
            )
        names = ("decision", "reason_codes", "degraded", "release")
        self._tensors = TensorCache(pb, names=names, empty=("error",))
        releases = [parameters[RELEASE_PARAMETER]]
        releases += [self.canary.release] if self.canary is not None else []
        self._metrics = DecisionMetrics(
            pb, labels=step_labels, releases=tuple(releases), spec_hash=self._spec_hash
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
                batch.features, batch.context, bounds=batch.bounds
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
        probabilities, bounds = triton.gather_rows(inputs, PROBABILITIES)
        chosen = None
        if self.canary is not None:
            chosen = self.canary.rows(context)
            theirs = triton.gather(inputs, CHALLENGER_PROBABILITIES)
            probabilities = np.where(chosen[:, None], theirs, probabilities)
        return DecisionBatch(
            context=context,
            features=triton.gather(inputs, FEATURES),
            probabilities=probabilities,
            chosen=chosen,
            bounds=bounds,
            began_us=began_us,
        )

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
        """Apply the policy, without side effects outside the step."""
        context = batch.context
        facts = RowFacts(
            probabilities=batch.probabilities,
            features=batch.features,
            cents=context["cents"],
            degraded=context["degraded"],
            event_time_us=context["event_time_us"],
            list_hits=context["list_hits"],
            fields={name: context[f"field_{name}"] for name in self._fields},
        )
        decided = decide(facts, policy=self._policy)
        if self._traces is not None:
            self._traces.part("policy")
        return decided

    def _respond(
        self, requests: Sequence[Any], batch: DecisionBatch, decided: PolicyDecisions
    ) -> list[Any]:
        """Write the journal's records, count, and make one response per request."""
        context, bounds = batch.context, batch.bounds
        marks = row_marks(context, spec_hash=self._spec_hash)
        self._record(batch, decided, marks=marks)
        outputs = self._columns(batch, decided, marks=marks)
        responses = self._tensors.respond(outputs, bounds)
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

    def _record(
        self, batch: DecisionBatch, decided: PolicyDecisions, *, marks: Array | None
    ) -> None:
        context, chosen = batch.context, batch.chosen
        for journal, excluded in (
            (self._journal, chosen),
            (self._canary_journal, None if chosen is None else ~chosen),
        ):
            if journal is not None:
                journal.record(
                    context,
                    decided,
                    features=batch.features,
                    probabilities=batch.probabilities,
                    began_us=batch.began_us,
                    marks=marks,
                    excluded=excluded,
                )
        self._metrics.batch(context, decided, chosen=chosen, began_us=batch.began_us)
        if self._traces is not None:
            self._traces.part("journal")

    def _columns(
        self, batch: DecisionBatch, decided: PolicyDecisions, *, marks: Array | None
    ) -> dict[str, Array]:
        """Fill the answer's columns, [N, 1] each; `marks` are those of `row_marks`."""
        context = batch.context
        errors, releases = self._usual_columns(len(context))
        if marks is not None or self.canary is not None:
            errors, releases = errors.copy(), releases.copy()
        columns = {
            "decision": _WORDS[decided.decision],
            "score": decided.score,
            "reason_codes": decided.reason_codes,
            "degraded": decided.degraded,
            "error": errors,
            "release": releases,
        }
        if self.canary is not None:
            columns["release"][batch.chosen] = self.canary.release.encode()
        if marks is not None and len(stored := np.flatnonzero(marks & STORED)):
            earlier = read_stored_decisions(context["earlier"][stored])
            columns["decision"][stored] = _WORDS[earlier.decision]
            for name in ("score", "reason_codes", "degraded", "release"):
                columns[name][stored] = getattr(earlier, name)
        if marks is not None and len(bad := np.flatnonzero(marks & BAD)):
            columns["decision"][bad] = b""
            columns["score"][bad] = np.nan
            columns["reason_codes"][bad] = b""
            columns["degraded"][bad] = 0
            for row in bad.tolist():
                length = int(context["error_length"][row])
                columns["error"][row] = context["error"][row].tobytes()[:length]
        return {name: column[:, None] for name, column in columns.items()}

    def _usual_columns(self, rows: int) -> tuple[Array, Array]:
        """Return `error` and `release` of a usual batch, made once for each size."""
        found = self._usual.get(rows)
        if found is None:
            found = self._usual[rows] = (
                np.full(rows, b"", np.object_),
                np.full(rows, self._release, np.object_),
            )
        return found

    def _mixed(self, context: Array, row: int) -> Any:
        found, wanted = int(context["spec_hash"][row]), self._spec_hash
        text = f"features of spec {found:016x}, but the release is of {wanted:016x}"
        return triton.refuse(self._pb, text, invalid=False)
