"""
Run the three steps of a product as one Triton model: the fused form.

The model has the name and the tensors of the product's ensemble. Its steps are the
library's own, so it answers with the same bits; it needs no message between two steps,
no signature of their tensors, and no delay in which a batch forms again.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from tollgate.engine.onnx_session import open_model
from tollgate.engine.row_batches import Batch, rejected_requests
from tollgate.engine.scoring_model import ScoringModel
from tollgate.errors import RepositoryError
from tollgate.imports import gently, import_gently
from tollgate.schema import (
    EXACT_FEATURES,
    FEATURES,
    FUSED_PARAMETER,
    public_name,
)
from tollgate.server.triton.fused_parts import FusedPart, FusedParts
from tollgate.steps import triton
from tollgate.steps.candidate_step import CandidateStep
from tollgate.steps.decision_step import DecisionStep
from tollgate.steps.feature_step import FeatureStep
from tollgate.steps.ranking_step import RankingStep
from tollgate.steps.second_lookup import PendingRequest
from tollgate.steps.triton import Array
from tollgate.tracing.batches import open_batches


class FusedForm(FeatureStep):
    """
    A first step, continued by the model and the last step in one process.

    Attributes:
        first: Class of the step that fills features and context.
        last: Class of the step that answers.
    """

    first: ClassVar[type[FeatureStep]]
    last: ClassVar[type[DecisionStep]]

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the steps of the release and the model between them."""
        import triton_python_backend_utils as pb

        import_gently("redis", "hiredis", "onnxruntime")
        config = json.loads(args["model_config"])
        text = config["parameters"][FUSED_PARAMETER]["string_value"]
        parts = msgspec.json.decode(text, type=FusedParts)
        folder = Path(args["model_repository"]).parent
        try:
            for part, base in (
                (parts.features, self.first),
                (parts.decision, self.last),
            ):
                _require_plain(folder / part.step / str(part.slot), base)
            opened = partial(_open_model, parts.model, folder)
            self._model = gently(partial(opened, slot=parts.model.slot))
            self._challenger = None
            if parts.challenger_slot:
                slot = parts.challenger_slot
                self._challenger = gently(partial(opened, slot=slot))
        except RepositoryError as error:
            raise pb.TritonModelException(public_name(str(error))) from None
        outputs = json.loads(parts.model.config)["output"]
        (self._width,) = _shape(outputs, self._model.output)
        self._renamed = parts.inputs
        self._prefix = f"in ensemble '{parts.product}', "
        self._model_batches = open_batches(parts.model.step)
        self._deciding = threading.Lock()
        super().initialize(parts.features.arguments(folder))
        self._decision = self.last()
        self._decision.initialize(parts.decision.arguments(folder))

    def finalize(self) -> None:
        """Close the steps, and write out all pending purchases, records and metrics."""
        super().finalize()
        self._decision.finalize()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a dynamic batch of requests."""
        return [self._as_ensemble(one) for one in super().execute(requests)]

    def _inputs_of(self, requests: Sequence[Any]) -> triton.Inputs:
        """Index the inputs by the names of the first step, as an ensemble maps them."""
        inputs = super()._inputs_of(requests)
        if not self._renamed:
            return inputs
        return {self._renamed.get(name, name): one for name, one in inputs.items()}

    def _as_ensemble(self, response: Any) -> Any:
        """Start the text of an error as Triton does for a step of an ensemble."""
        if response is None or not response.has_error():
            return response
        error = response.error()
        text = self._prefix + error.message()
        return self._pb.InferenceResponse(
            error=self._pb.TritonError(text, error.code())
        )

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
        rejected = dict(rejected_requests(batch)) if batch.errors else {}
        tensors = self._outputs(batch, features, context)
        self._report(
            requests, batch, context, arrival_us=arrival_us, rejected=list(rejected)
        )
        scored = _ScoredRequests(requests, batch.bounds, context, tensors)
        if not rejected and not later:
            with self._deciding:
                return self._decide(scored)
        responses: list[Any] = [None] * len(requests)
        for position, text in rejected.items():
            responses[position] = triton.refuse(self._pb, text, invalid=True)
        rest = [
            at for at in range(len(requests)) if at not in rejected and at not in later
        ]
        if rest:
            with self._deciding:
                answers = self._decide(scored.only(rest))
            for position, answer in zip(rest, answers, strict=True):
                responses[position] = answer
        return responses

    def _answer_later(
        self, pending: PendingRequest, features: Array, context: Array
    ) -> Any:
        """Decide a request after its second look-up, in the thread that did it."""
        self._metrics.count(context["degraded"])
        tensors = self._outputs(pending.batch, features, context)
        requests, bounds = [pending.request], pending.batch.bounds
        with self._deciding:
            (response,) = self._decide(
                _ScoredRequests(requests, bounds, context, tensors)
            )
        return self._as_ensemble(response)

    def _decide(self, scored: _ScoredRequests) -> list[Any]:
        """Run model and decision; a request that the model refuses fails alone."""
        began_us = time.monotonic_ns() // 1000
        try:
            output, chosen, rival = self._run_model(scored)
        except Exception as error:  # noqa: BLE001 - onnxruntime's errors share no base
            if len(scored.requests) == 1:
                text = f"onnxruntime: {' '.join(str(error).split())}"
                return [triton.refuse(self._pb, text, invalid=True)]
            alone = [scored.only([at]) for at in range(len(scored.requests))]
            return [answer for one in alone for answer in self._decide(one)]
        if self._model_batches is not None and self._model_batches.is_enabled():
            rows = len(scored.context)
            self._model_batches.write(scored.requests, rows=rows, began_us=began_us)
        batch = self._decision.batch_of(
            scored.tensors,
            scored.context,
            output=output,
            chosen=chosen,
            bounds=scored.bounds,
            began_us=time.monotonic_ns() // 1000,
        )
        if rival is not None:
            batch = msgspec.structs.replace(batch, rival=rival)
        return self._decision.answer(scored.requests, batch)

    def _run_model(
        self, scored: _ScoredRequests
    ) -> tuple[Array, Array | None, Array | None]:
        """
        Run the models; return what `Canary.divide` does.

        A batch in which no row needs any skips the models.
        """
        context, tensors = scored.context, scored.tensors
        canary, challenger = self._decision.stage.canary, self._challenger
        if self._decision.needs_model(context, tensors):
            output = self._model.probabilities(_vectors(self._model, tensors))
        else:
            output = np.zeros((len(context), self._width), np.float32)
            challenger = None
        if canary is None:
            return output, None, None

        def theirs() -> Array:
            if challenger is None:
                return output
            return challenger.probabilities(_vectors(challenger, tensors))

        return canary.divide(context, output, theirs=theirs)


class FusedStep(FusedForm):
    """The steps of a product that decides."""

    first = FeatureStep
    last = DecisionStep


class FusedRankingStep(FusedForm, CandidateStep):
    """The steps of a product that ranks."""

    first = CandidateStep
    last = RankingStep

    def _run_model(
        self, scored: _ScoredRequests
    ) -> tuple[Array, Array | None, Array | None]:
        """Run the models for the rows whose relevance was not prepared."""
        step = self._decision
        assert isinstance(step, RankingStep)
        needed = step.rows_to_score(scored.context, scored.tensors)
        if needed.all() or not needed.any():
            return super()._run_model(scored)
        shape = (len(needed), self._width)
        output, rival = np.zeros(shape, np.float32), None
        output[needed], chosen, theirs = super()._run_model(scored.rows(needed))
        if theirs is not None:
            rival = np.full(shape, np.nan, np.float32)
            rival[needed] = theirs
        canary = step.stage.canary
        if canary is not None and chosen is not None:
            chosen = canary.rows(scored.context)
        return output, chosen, rival


class _ScoredRequests(msgspec.Struct, frozen=True, eq=False):
    """
    Hold requests between the feature step and the model.

    Attributes:
        requests: Requests of a dynamic batch.
        bounds: First row of each, then the end of the last.
        context: Of `tollgate.schema.context_dtype`; [N], contiguous.
        tensors: Outputs of the feature step by name; [N, ...] each.
    """

    requests: Sequence[Any]
    bounds: list[int]
    context: Array
    tensors: Mapping[str, Array]

    def rows(self, chosen: Array) -> _ScoredRequests:
        """Copy some rows, for the model: they are no whole requests; bool [N]."""
        return _ScoredRequests(
            requests=self.requests,
            bounds=[],
            context=self.context[chosen],
            tensors={name: one[chosen] for name, one in self.tensors.items()},
        )

    def only(self, positions: Sequence[int]) -> _ScoredRequests:
        """Copy some of the requests, at least one."""
        spans = [np.arange(*self.bounds[at : at + 2]) for at in positions]
        rows = np.concatenate(spans)
        return _ScoredRequests(
            requests=[self.requests[at] for at in positions],
            bounds=list(itertools.accumulate(map(len, spans), initial=0)),
            context=self.context[rows],
            tensors={name: one[rows] for name, one in self.tensors.items()},
        )


def _vectors(model: ScoringModel, tensors: Mapping[str, Array]) -> Array:
    """Pick the output of the first step that a model receives."""
    if model.exact and model.input == FEATURES:
        return tensors[EXACT_FEATURES]
    return tensors[model.input]


def _open_model(part: FusedPart, folder: Path, *, slot: int) -> ScoringModel:
    """
    Open a version of the model as the onnxruntime backend does, and warm it up.

    Raises:
        RepositoryError: It cannot be loaded, or does not fit its configuration.
    """
    config = json.loads(part.config)
    model = ScoringModel(open_model(folder / part.step / str(slot), config))
    model.warm_up(*_shape(config["input"], model.input))
    return model


def _shape(tensors: Sequence[Mapping[str, Any]], name: str) -> tuple[int, ...]:
    """Return the shape of a row of a tensor."""
    (dims,) = (one["dims"] for one in tensors if one["name"] == name)
    return tuple(map(int, dims))


def _require_plain(version: Path, base: type[FeatureStep | DecisionStep]) -> None:
    """
    Check that a step's model.py adds nothing to the library's class.

    Raises:
        RepositoryError: It does: the fused form would not run what it adds.
    """
    path = version / "model.py"
    spec = importlib.util.spec_from_file_location("tollgate_step_model", path)
    if spec is None or spec.loader is None:
        raise RepositoryError(path, "cannot be imported")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = module.TritonPythonModel
    except Exception as error:
        problem = f"cannot be imported: {type(error).__name__}: {error}"
        raise RepositoryError(path, problem) from error
    added = [name for name in vars(found) if not name.startswith("__")]
    if base not in found.__bases__ or added:
        names = f": {', '.join(sorted(added))}" if added else ""
        problem = f"is not only a {base.__name__} of the library{names}; serve this "
        raise RepositoryError(path, f"{problem}product as an ensemble")
