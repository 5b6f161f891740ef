"""The ranking step: turn the relevance of candidates into lists of items."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tollgate.engine.decision_stage import Canary, DecisionBatch
from tollgate.engine.ranking_context import ranking_dtype_of
from tollgate.engine.ranking_stage import RankingBatch, RankingStage
from tollgate.imports import gently
from tollgate.policy import POLICY_FILE, Policy
from tollgate.ranking.catalogue import Catalogue
from tollgate.schema import (
    CHALLENGER_RELEVANCE,
    FEATURES,
    LIST_OUTPUTS,
    RANKING_CONTEXT,
    RELEASE_PARAMETER,
    RELEVANCE,
    STORE_URL_VARIABLE,
)
from tollgate.steps import triton
from tollgate.steps.decision_step import DecisionStep
from tollgate.steps.ranking_metrics import RankingMetrics
from tollgate.steps.store_parameters import store_settings
from tollgate.steps.triton import Array
from tollgate.store.stock_view import open_stock


class RankingStep(DecisionStep):
    """Implement `shop_ranking` and similar models: fill the columns of the answer."""

    model_output = RELEVANCE
    challenger_output = CHALLENGER_RELEVANCE
    passed = (FEATURES, RANKING_CONTEXT)
    metrics = RankingMetrics

    def finalize(self) -> None:
        """Write out all pending journal records and metrics; close the store."""
        super().finalize()
        self._stock.close()

    def _open_stage(
        self,
        policy: Policy,
        config: triton.StepConfig,
        *,
        entities: Sequence[str],
        fields: Sequence[str],
        canary: Canary | None,
    ) -> RankingStage:
        """Load the catalogue, and watch the stock."""
        rules = policy.ranking
        if rules is None:
            problem = f"{POLICY_FILE}: has no ranking"
            raise self._pb.TritonModelException(problem)
        catalogue = gently(partial(Catalogue.load, config.directory))
        self._stock = open_stock(
            os.environ.get(STORE_URL_VARIABLE, ""),
            catalogue,
            product=policy.product,
            name=rules.stock,
            settings=store_settings(config.parameters),
        )
        try:
            self._ranking_dtype = ranking_dtype_of(
                *config.input_dims[RANKING_CONTEXT],
                candidates=config.input_dims[RELEVANCE][0],
            )
        except (KeyError, ValueError) as error:
            problem = f"config.pbtxt: {RANKING_CONTEXT}: {error}"
            raise self._pb.TritonModelException(problem) from error
        return RankingStage(
            policy,
            catalogue,
            available=self._stock.available,
            release=config.parameters[RELEASE_PARAMETER],
            spec_hash=self._spec_hash,
            fields=fields,
            canary=canary,
        )

    def batch_of(
        self,
        tensors: Mapping[str, Array],
        context: Array,
        *,
        output: Array,
        chosen: Array | None,
        bounds: list[int],
        began_us: int,
    ) -> RankingBatch:
        """Assemble the rows of a dynamic batch."""
        return RankingBatch(
            context=context,
            features=tensors[FEATURES],
            probabilities=output,
            chosen=chosen,
            bounds=bounds,
            began_us=began_us,
            ranking=self._ranking_of(tensors),
        )

    def _ranking_of(self, tensors: Mapping[str, Array]) -> Array:
        packed = np.ascontiguousarray(tensors[RANKING_CONTEXT])
        return packed.view(self._ranking_dtype)[:, 0]

    def needs_model(self, context: Array, tensors: Mapping[str, Array]) -> bool:
        """Return whether a row of a batch needs its relevance from the model."""
        return bool(self.rows_to_score(context, tensors).any())

    def rows_to_score(self, context: Array, tensors: Mapping[str, Array]) -> Array:
        """Return the rows that need their relevance from the model; bool [N]."""
        ranking = self._ranking_of(tensors)
        rows: Array = (context["bad"] == 0) & (ranking["prepared_us"] == 0)
        return rows

    def _responses(
        self, outputs: Mapping[str, Array], batch: DecisionBatch
    ) -> list[Any]:
        """Split the outputs of a batch; a request's lists have the length it asks."""
        assert isinstance(batch, RankingBatch)
        stage = self.stage
        assert isinstance(stage, RankingStage)
        lists = {name: outputs[name] for name in LIST_OUTPUTS}
        others = {name: one for name, one in outputs.items() if name not in lists}
        response, tensor = self._pb.InferenceResponse, self._pb.Tensor
        return [
            response(
                [tensor(name, one[start:stop, :count]) for name, one in lists.items()]
                + list(own)
            )
            for (start, stop), count, own in zip(
                itertools.pairwise(batch.bounds),
                stage.counts(batch),
                self._tensors.tensors(others, batch.bounds),
                strict=True,
            )
        ]
