"""The candidates step: validate rows, read users' newest events, find candidates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

import numpy as np
from msgspec.structs import replace

from tollgate.engine.candidate_stage import CandidateStage
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.ranking_stage import signed_rows
from tollgate.engine.row_batches import Batch
from tollgate.imports import gently, import_gently
from tollgate.ranking.catalogue import RETRIEVAL_FILE, Catalogue
from tollgate.schema import (
    CANDIDATE_FEATURES,
    FEATURES,
    RANKING_CONTEXT,
    STOCK_PARAMETER,
    STORE_URL_VARIABLE,
)
from tollgate.steps import triton
from tollgate.steps.feature_step import FeatureStep
from tollgate.steps.store_parameters import store_settings
from tollgate.steps.triton import Array
from tollgate.store.stock_view import StockView, open_stock


class CandidateStep(FeatureStep):
    """
    Implement `shop_candidates` and similar models: rows to candidates.

    Besides `features` and `context` it fills `candidate_features` and
    `ranking_context`. A `store_deadline_ms` of a request has no effect.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open what the feature step opens, and the items of the release."""
        import triton_python_backend_utils as pb

        import_gently("onnxruntime")
        config = triton.step_config(args)
        super().initialize(args)
        if self._spec.history is None:
            raise pb.TritonModelException("features.yaml: has no history")
        catalogue = gently(partial(Catalogue.load, config.directory))
        path = config.directory / RETRIEVAL_FILE
        session = gently(partial(OnnxSession, path, intra_op_threads=1))
        self._candidates = CandidateStage(
            catalogue, session, history=self._spec.history.most
        )
        settings = store_settings(config.parameters)
        self._stock: StockView = open_stock(
            os.environ.get(STORE_URL_VARIABLE, ""),
            catalogue,
            product=self._spec.product,
            name=config.parameters.get(STOCK_PARAMETER, ""),
            settings=settings,
        )
        triton.settle()

    def finalize(self) -> None:
        """Close the store, and write out all pending metrics."""
        super().finalize()
        self._stock.close()

    def _score(self, batch: Batch, *, arrival_us: int) -> tuple[Batch, Array, Array]:
        features, context, history = self._stage.score_with_history(
            batch, arrival_us=arrival_us
        )
        return replace(batch, history=history, store_deadline_ms=()), features, context

    def _outputs(
        self, batch: Batch, features: Array, context: Array
    ) -> dict[str, Array]:
        """Return the tensors for the next steps."""
        assert batch.history is not None
        found = self._candidates.fill(
            batch, batch.history, available=self._stock.available()
        )
        outputs = super()._outputs(batch, features, context)
        outputs[CANDIDATE_FEATURES] = found.features
        packed = found.ranking.view(np.uint8).reshape(len(features), -1)
        outputs[RANKING_CONTEXT] = packed
        return outputs

    def _signed(self, outputs: Mapping[str, Array]) -> Array:
        return signed_rows(outputs[FEATURES], outputs[RANKING_CONTEXT])
