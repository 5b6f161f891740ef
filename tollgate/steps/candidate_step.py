"""The candidates step: validate rows, read users' newest events, find candidates."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from tollgate.engine.candidate_stage import FOUND, CandidateStage, Found, PreparedCounts
from tollgate.engine.decision_stage import read_canary
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.ranking_stage import signed_rows
from tollgate.engine.row_batches import Batch
from tollgate.imports import gently, import_gently
from tollgate.ranking.catalogue import RETRIEVAL_FILE, Catalogue
from tollgate.schema import (
    CANDIDATE_FEATURES,
    FEATURES,
    RANKER_PARAMETER,
    RANKING_CONTEXT,
    STOCK_PARAMETER,
    STORE_URL_VARIABLE,
)
from tollgate.steps import triton
from tollgate.steps.feature_step import FeatureStep
from tollgate.steps.metric_buffer import MetricBuffer, export_each_second
from tollgate.steps.store_parameters import store_settings
from tollgate.steps.triton import Array
from tollgate.store.stock_view import StockView, open_stock
from tollgate.tracing.batches import candidates_part, open_batches

_MOST_US = np.iinfo(np.uint32).max


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
            catalogue,
            session,
            self._spec,
            ranker=int(config.parameters.get(RANKER_PARAMETER, "0"), 16),
        )
        self._canary = read_canary(config.parameters, self._spec.entity_names)
        self._prepared_metrics = PreparedMetrics(
            pb,
            self._candidates.prepared,
            labels=triton.metric_labels(args, product=self._spec.product),
        )
        settings = store_settings(config.parameters)
        self._stock: StockView = open_stock(
            os.environ.get(STORE_URL_VARIABLE, ""),
            catalogue,
            product=self._spec.product,
            name=config.parameters.get(STOCK_PARAMETER, ""),
            settings=settings,
        )
        self._began_us = 0  # search for the candidates of the batch at work
        name = candidates_part(triton.step_name(args))
        self._candidate_batches = open_batches(name)
        triton.settle()

    def finalize(self) -> None:
        """Close the store, and write out all pending metrics."""
        super().finalize()
        self._prepared_metrics.close()
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
        self._began_us = time.monotonic_ns() // 1000
        canary = self._canary
        found = self._candidates.fill(
            batch,
            batch.history,
            available=self._stock.available(),
            challenged=None if canary is None else canary.rows(context),
        )
        worked_us = time.monotonic_ns() // 1000 - int(context["arrival_us"][0])
        context["features_us"] = min(worked_us, _MOST_US)
        outputs = super()._outputs(batch, features, context)
        outputs[CANDIDATE_FEATURES] = found.features
        packed = found.ranking.view(np.uint8).reshape(len(features), -1)
        outputs[RANKING_CONTEXT] = packed
        return outputs

    def _report(
        self,
        requests: Sequence[Any],
        batch: Batch,
        context: Array,
        *,
        arrival_us: int,
        rejected: Sequence[int],
    ) -> None:
        super()._report(
            requests, batch, context, arrival_us=arrival_us, rejected=rejected
        )
        own = self._candidate_batches
        if own is not None and own.is_enabled():
            own.write(requests, rows=len(context), began_us=self._began_us)

    def _signed(self, outputs: Mapping[str, Array]) -> Array:
        return signed_rows(outputs[FEATURES], outputs[RANKING_CONTEXT])


_ROWS = "tollgate_prepared_rows_total"
_AGE = "tollgate_prepared_age_seconds"
_AGE_BUCKETS_S = (
    *(10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
    *(1_200.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 43_200.0, 86_400.0),
)


class PreparedMetrics:
    """
    Export the counts of prepared candidates once a second.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        counts: Counts of the candidate stage.
        labels: Labels of every metric; product, model and version.
    """

    def __init__(
        self, pb: Any, counts: PreparedCounts, *, labels: Mapping[str, str]
    ) -> None:
        self._counts = counts
        self._buffer = MetricBuffer(
            pb,
            counters={_ROWS: "Rows by what became of prepared candidates"},
            histograms={_AGE: ("Age of prepared candidates served", _AGE_BUCKETS_S)},
            labels=labels,
        )
        self._exported: dict[Found, int] = {}
        self.export()
        self._worker = export_each_second(self.export, name="prepared-metrics")

    def export(self) -> None:
        """Export the numbers of all batches."""
        for found in FOUND:
            number = self._counts.rows[found]
            risen = number - self._exported.get(found, 0)
            self._buffer.add(_ROWS, (("found", found),), number=risen)
            self._exported[found] = number
        ages_s = self._counts.ages_s
        values = np.array([ages_s.popleft() for _ in range(len(ages_s))])
        self._buffer.observe(_AGE, (), values=values)
        self._buffer.export(pause=time.sleep)

    def close(self) -> None:
        """Export the remaining numbers."""
        self._worker.stop()
