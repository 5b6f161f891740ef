"""The last step: probabilities and policy in, decisions with reasons out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from tollgate.imports import gently, import_gently
from tollgate.journal.rows import Heading
from tollgate.policy import POLICY_FILE, RowFacts, decide, load_policy
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
    Decision,
    context_dtype,
    read_fields,
)
from tollgate.steps import triton
from tollgate.steps.canary import read_canary
from tollgate.steps.decision_metrics import DecisionMetrics
from tollgate.steps.journal import open_journal
from tollgate.steps.kept import KeptTensors
from tollgate.steps.tracing import open_traces
from tollgate.store.decided import read_decided

_WORDS = np.array([level.name.lower().encode() for level in Decision], np.object_)

Array = triton.Array


class DecisionStep:
    """`fraud_decision` and its kind: the answer's columns come from here."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Compile the policy; what the release says comes as parameters."""
        import triton_python_backend_utils as pb

        import_gently("redis", "hiredis")
        self._pb = pb
        config = triton.step_config(args)
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
        self._fields = tuple(field.name for field in fields)
        self._dtype = context_dtype(entities, self._fields)
        heading = Heading(
            product=self._policy.product,
            release=parameters[RELEASE_PARAMETER],
            spec_hash=self._spec_hash,
            entities=entities,
            fields=self._fields,
        )
        labels = triton.metric_labels(args, product=self._policy.product)
        told = dict(labels)
        self._traces = open_traces(
            product=self._policy.product, model=args["model_name"]
        )
        window_s = self._policy.idempotency_s
        self._journal = open_journal(pb, heading, window_s=window_s, labels=labels)
        self._canary = read_canary(parameters, entities)
        self._canary_journal = None
        if self._canary is not None:
            heading = structs.replace(heading, release=self._canary.release)
            labels["version"] += "-canary"
            self._canary_journal = open_journal(
                pb, heading, window_s=window_s, labels=labels
            )
        names = ("decision", "reason_codes", "degraded", "release")
        self._kept = KeptTensors(pb, names=names, empty=("error",))
        releases = [parameters[RELEASE_PARAMETER]]
        releases += [self._canary.release] if self._canary is not None else []
        self._metrics = DecisionMetrics(
            pb, labels=told, releases=tuple(releases), spec_hash=self._spec_hash
        )
        triton.settle()

    def finalize(self) -> None:
        """Leave no decision without its record."""
        for journal in (self._journal, self._canary_journal):
            if journal is not None:
                journal.close()
        self._metrics.close()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a dynamic batch of requests."""
        return triton.guarded(self._pb, requests, self._execute)

    def _execute(self, requests: Sequence[Any]) -> list[Any]:
        began_us = time.monotonic_ns() // 1000
        if self._traces is not None:
            self._traces.begin(began_us)
        inputs = triton.inputs_of(requests)
        packed = np.ascontiguousarray(triton.gather(inputs, CONTEXT))
        context = packed.view(self._dtype)[:, 0]
        foreign = context["spec_hash"] != self._spec_hash
        probabilities, bounds = triton.gather_rows(inputs, PROBABILITIES)
        chosen = None
        if self._canary is not None:
            chosen = self._canary.rows(context)
            theirs = triton.gather(inputs, CHALLENGER_PROBABILITIES)
            probabilities = np.where(chosen[:, None], theirs, probabilities)
        outputs = self._decide(
            context,
            probabilities,
            triton.gather(inputs, FEATURES),
            chosen=chosen,
            began_us=began_us,
        )
        responses = self._kept.respond(outputs, bounds)
        if foreign.any():
            for position in range(len(responses)):
                if foreign[bounds[position] : bounds[position + 1]].any():
                    responses[position] = self._mixed(context, bounds[position])
        if self._traces is not None:
            self._traces.decided(
                requests, context, outputs=outputs, bounds=bounds, began_us=began_us
            )
        return responses

    def _decide(
        self,
        context: Array,
        probabilities: Array,
        features: Array,
        *,
        chosen: Array | None,
        began_us: int,
    ) -> dict[str, Array]:
        """Fill the answer's columns, [N, 1] each; keep what was decided."""
        facts = RowFacts(
            probabilities=probabilities,
            features=features,
            cents=context["cents"],
            degraded=context["degraded"],
            event_time_us=context["event_time_us"],
            list_hits=context["list_hits"],
            fields={name: context[f"field_{name}"] for name in self._fields},
        )
        decided = decide(facts, policy=self._policy)
        if self._traces is not None:
            self._traces.part("policy")
        for journal, left_out in (
            (self._journal, chosen),
            (self._canary_journal, None if chosen is None else ~chosen),
        ):
            if journal is not None:
                journal.keep(
                    context,
                    decided,
                    features=features,
                    probabilities=probabilities,
                    began_us=began_us,
                    left_out=left_out,
                )
        self._metrics.batch(context, decided, chosen=chosen, began_us=began_us)
        if self._traces is not None:
            self._traces.part("journal")
        columns = {
            "decision": _WORDS[decided.decision],
            "score": decided.score,
            "reason_codes": decided.reason_codes,
            "degraded": decided.degraded,
            "error": np.full(len(context), b"", np.object_),
            "release": np.full(len(context), self._release, np.object_),
        }
        if self._canary is not None:
            columns["release"][chosen] = self._canary.release.encode()
        made = np.flatnonzero(context["earlier_length"])
        if len(made):
            earlier = read_decided(context["earlier"][made])
            columns["decision"][made] = _WORDS[earlier.decision]
            for name in ("score", "reason_codes", "degraded", "release"):
                columns[name][made] = getattr(earlier, name)
        bad = np.flatnonzero(context["bad"])
        if len(bad):
            columns["decision"][bad] = b""
            columns["score"][bad] = np.nan
            columns["reason_codes"][bad] = b""
            columns["degraded"][bad] = 0
            for row in bad.tolist():
                length = int(context["error_length"][row])
                columns["error"][row] = context["error"][row].tobytes()[:length]
        return {name: column[:, None] for name, column in columns.items()}

    def _mixed(self, context: Array, row: int) -> Any:
        found, wanted = int(context["spec_hash"][row]), self._spec_hash
        text = f"features of spec {found:016x}, but the release is of {wanted:016x}"
        return triton.refuse(self._pb, text, invalid=False)
