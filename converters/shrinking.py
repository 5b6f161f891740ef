"""Make a model smaller on its way to the server, and write down what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import F32, TrainedModel
from converters.proof import Proven, prove_graph
from converters.prune_sweep import Sweep
from converters.sample import Sample
from converters.trade import Gate, Judge, Trade, require
from tollgate.errors import InputError


class Shrinking(msgspec.Struct, frozen=True):
    """
    What is asked for; nothing by default.

    Attributes:
        prune: Trees and depth to keep, as `converters.prune.read_pruning` reads it.
        distill: Teach a small network to answer as the model does.
        tensorize: How to write trees as plain operators.
        quantize: How to write weights as int8.
        gate: What may be lost by it.
    """

    prune: str | None = None
    distill: bool = False
    tensorize: str | None = None
    quantize: Literal["dynamic", "static"] | None = None
    gate: Gate = Gate()

    def require_possible(self, sample: Sample | None) -> None:
        """Raise InputError for what cannot be done together, or without a sample."""
        asked = {
            "--prune": self.prune is not None,
            "--distill": self.distill,
            "--quantize": self.quantize is not None,
        }
        for option, wanted in asked.items():
            if wanted and sample is None:
                raise InputError(option, "is judged on rows: hand in a --sample")
        if self.prune is not None and self.distill:
            raise InputError("--distill", "teaches from the whole model: no --prune")
        if self.tensorize is not None and self.distill:
            raise InputError("--tensorize", "is for trees, and a network has none")
        if self.tensorize is not None and self.quantize is not None:
            raise InputError("--quantize", "is for networks, --tensorize for trees")


class Source(msgspec.Struct, frozen=True, eq=False):
    """
    The model that is converted in the end.

    Attributes:
        model: As handed in, pruned, or the student.
        judge: Rows to judge what follows on; None without a sample.
        fitted: Rows that it was fitted to here; None where that was done elsewhere.
        unseen: Positions of the sample rows that it was not fitted to; None for all.
        trades: What was lost and won so far.
        sweep: Prunings that were tried; None without.
    """

    model: TrainedModel
    judge: Judge | None
    fitted: F32 | None = None
    unseen: npt.NDArray[np.int64] | None = None
    trades: tuple[Trade, ...] = ()
    sweep: Sweep | None = None


def smaller_source(
    model: TrainedModel, asked: Shrinking, *, judge: Judge | None
) -> Source:
    """
    Prune or distil a model, as asked.

    Raises:
        ConversionError: That cannot be done with it.
        TradeError: It loses more than it may.
    """
    if judge is None or not (asked.prune is not None or asked.distill):
        return Source(model, judge)
    if asked.distill:
        from converters.distill import HELD_BACK, distill

        student = distill(model, judge=judge)
        require(student.trade, asked.gate)
        return Source(
            student.model,
            student.judge,
            fitted=student.rows,
            unseen=np.arange(0, len(judge.rows), HELD_BACK),
            trades=(student.trade,),
        )
    from converters.prune import prune

    assert asked.prune is not None
    pruned = prune(model, asked.prune, judge=judge, gate=asked.gate)
    require(pruned.trade, asked.gate)
    return Source(pruned.model, judge, trades=(pruned.trade,), sweep=pruned.sweep)


def tensorized(proven: Proven, strategy: str, *, targets: Sequence[str]) -> Proven:
    """
    Write trees as plain operators, and prove that anew.

    Raises:
        ConversionError: There are none, or it would become too large.
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
    proven: Proven, source: Source, *, asked: Shrinking
) -> tuple[bytes, Trade]:
    """
    Write weights as int8; what that loses is a trade, not a proof.

    Raises:
        ConversionError: There are none that could be.
        TradeError: It loses more than it may.
    """
    from converters.quantize import quantize

    assert source.judge is not None
    assert asked.quantize is not None
    proven.check()
    rows = source.judge.rows if source.fitted is None else source.fitted
    small = quantize(proven.model, asked.quantize, judge=source.judge, samples=rows)
    require(small.trade, asked.gate)
    return small.model, small.trade
