"""Make a model smaller before it is served, and record the cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from converters.compression.compression_cost import Judge, require
from converters.compression.prune_sweep import Sweep
from converters.model import F32, TrainedModel
from converters.parity.proof import Proven, prove_graph
from converters.sample import Sample
from tollgate.errors import ArgumentError
from tollgate.repository.models.artifact_file import Gate, Trade


class Shrinking(msgspec.Struct, frozen=True):
    """
    Requested steps that make a model smaller; nothing by default.

    Attributes:
        prune: Trees and depth to keep, as `read_pruning` parses it.
        distill: True to train a small network to predict as the model does.
        tensorize: Strategy for writing trees as plain operators.
        quantize: Method for writing weights as int8.
    """

    prune: str | None = None
    distill: bool = False
    tensorize: str | None = None
    quantize: Literal["dynamic", "static"] | None = None
    gate: Gate = Gate()

    def require_possible(self, sample: Sample | None) -> None:
        """Raise InputError for steps that exclude each other, or that need a sample."""
        requested = {
            "prune": self.prune is not None,
            "distill": self.distill,
            "quantize": self.quantize is not None,
        }
        for argument, wanted in requested.items():
            if wanted and sample is None:
                raise ArgumentError(argument, "is judged on rows: hand in a sample")
        if self.prune is not None and self.distill:
            raise ArgumentError(
                "distill", "teaches from the whole model: do not prune it"
            )
        if self.tensorize is not None and self.distill:
            raise ArgumentError("tensorize", "is for trees, and a network has none")
        if self.tensorize is not None and self.quantize is not None:
            raise ArgumentError("quantize", "is for networks, tensorizing is for trees")


class Source(msgspec.Struct, frozen=True, eq=False):
    """
    The model that is finally converted.

    Attributes:
        model: The model as supplied, the pruned one, or the student.
        judge: Rows to evaluate later steps on; None without a sample.
        fitted: Rows that it was fitted to here; None if it was fitted elsewhere.
        unseen: Positions of the sample rows that it was not fitted to; None for all.
        trades: Loss and gain of each step so far.
        sweep: Prunings that were tried; None without.
    """

    model: TrainedModel
    judge: Judge | None
    fitted: F32 | None = None
    unseen: npt.NDArray[np.int64] | None = None
    trades: tuple[Trade, ...] = ()
    sweep: Sweep | None = None


def smaller_source(
    model: TrainedModel, shrinking: Shrinking, *, judge: Judge | None
) -> Source:
    """
    Prune or distil a model, as requested.

    Raises:
        ConversionError: The model does not support it.
        TradeError: It loses more than allowed.
    """
    if judge is None or not (shrinking.prune is not None or shrinking.distill):
        return Source(model, judge)
    if shrinking.distill:
        from converters.compression.distill import HELD_BACK, distill

        student = distill(model, judge=judge)
        require(student.trade, shrinking.gate)
        return Source(
            student.model,
            student.judge,
            fitted=student.rows,
            unseen=np.arange(0, len(judge.rows), HELD_BACK),
            trades=(student.trade,),
        )
    from converters.compression.prune import prune

    assert shrinking.prune is not None
    pruned = prune(model, shrinking.prune, judge=judge, gate=shrinking.gate)
    require(pruned.trade, shrinking.gate)
    return Source(pruned.model, judge, trades=(pruned.trade,), sweep=pruned.sweep)


def tensorized(proven: Proven, strategy: str, *, targets: Sequence[str]) -> Proven:
    """
    Write trees as plain operators, and prove the result again.

    Raises:
        ConversionError: It has no trees, or the result would become too large.
    """
    from converters.tensorize import tensorize

    return prove_graph(
        tensorize(proven.model, strategy=strategy).model,
        facts=proven.facts,
        reference=proven.reference,
        thresholds=proven.report.thresholds,
        targets=targets,
    )


def quantized(
    proven: Proven, source: Source, *, shrinking: Shrinking
) -> tuple[bytes, Trade]:
    """
    Quantise weights to int8; the loss is recorded as a trade, not as a proof.

    Raises:
        ConversionError: It has no weights that could be quantised.
        TradeError: It loses more than allowed.
    """
    from converters.compression.quantize import quantize

    assert source.judge is not None
    assert shrinking.quantize is not None
    proven.check()
    rows = source.judge.rows if source.fitted is None else source.fitted
    small = quantize(proven.model, shrinking.quantize, judge=source.judge, samples=rows)
    require(small.trade, shrinking.gate)
    return small.model, small.trade
