"""What came of a conversion, before it is written."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import F32
from converters.proof import Proven
from converters.prune_sweep import Sweep
from converters.purpose import Purpose
from converters.quality import measure_quality
from converters.quality_record import Quality
from converters.runner import onnx_runner
from converters.sample import Sample
from converters.trade import Gate, Trade
from tollgate.explanation import Explanation
from tollgate.repository.oracle import Oracle

I64 = npt.NDArray[np.int64]

_ROWS = 65_536  # answered at once


class Converted(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """
    A converted model; its proof may say that it fails.

    Attributes:
        proven: The graph that was compared with its source.
        model: The graph that is served: the same, or that one quantised.
        names: Of its features.
        purpose: What it is for.
        sample: The rows that were handed in; None without.
        judged: Other rows that its quality is measured on; None for the sample's.
        explanation: What its answers are a sum of, or why that is not known.
        oracle: Against what it was proven.
        trades: What was lost and won by making it smaller.
        allowed: What might be lost; None without trades.
        sweep: Prunings that were tried; None without.
        unseen: Positions of the sample rows that nothing was fitted to here; None
            when that is all of them.
    """

    proven: Proven
    model: bytes
    names: tuple[str, ...]
    purpose: Purpose
    sample: Sample | None
    explanation: Explanation
    oracle: Oracle
    judged: Sample | None = None
    trades: tuple[Trade, ...] = ()
    allowed: Gate | None = None
    sweep: Sweep | None = None
    unseen: I64 | None = None

    @property
    def is_proven(self) -> bool:
        """Tell whether the served graph is the one that was proven."""
        return self.model == self.proven.model

    def probabilities(self, rows: F32) -> F32:
        """Return what the served graph answers; float32 [N, K]."""
        return onnx_runner(self.model).batched(rows, size=_ROWS)

    def quality(self) -> Quality | None:
        """
        Judge it on the labelled rows that nothing was fitted to; None without.

        Rows that it was trained on are never judged on.
        """
        sample = self.judged or self.sample
        if sample is None or sample.label is None or sample.origin == "training":
            return None
        note, origin = sample.note, sample.origin
        if self.unseen is not None and self.judged is None:
            sample = sample.take(self.unseen)
            note += "; these are those that the student did not learn from"
        classes = self.proven.facts.classes
        label = sample.classes(classes)
        assert label is not None
        found = measure_quality(
            label,
            self.probabilities(sample.rows),
            classes=classes,
            levels=self.purpose.levels,
            segments={
                name: values
                for name, values in sample.segments.items()
                if name not in sample.sensitive
            },
            sensitive={name: sample.segments[name] for name in sample.sensitive},
            note=note,
            origin=origin,
        )
        wanted = [one for one in self.purpose.sensitive if one not in sample.sensitive]
        return msgspec.structs.replace(found, unreported=tuple(wanted))
