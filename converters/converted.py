"""Hold the result of a conversion before it is written to a folder."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from converters.card.quality import measure_quality
from converters.card.quality_record import Quality
from converters.compression.prune_sweep import Sweep
from converters.model import F32
from converters.parity.proof import Proven
from converters.parity.runner import onnx_runner
from converters.purpose import Purpose
from converters.sample import Sample
from tollgate.explanation import Explanation
from tollgate.repository.models.artifact_file import Calibration, Gate, Oracle, Trade

I64 = npt.NDArray[np.int64]

_ROWS = 65_536  # rows per call


class Converted(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """
    A converted model; its proof may have failed.

    Attributes:
        proven: The graph that was compared with its source.
        model: The served graph: the same graph, or its quantised form.
        sample: The rows supplied by the user; None without.
        calibration: That of an outlier detector; None for other models.
        judged: Other rows that its quality is measured on; None for the sample's.
        explanation: Additive explanation of its predictions, or the reason why there is
            none.
        oracle: The reference it was proven against.
        trades: Loss and gain of each step that made it smaller.
        allowed: Loss allowed for these steps; None without trades.
        sweep: Prunings that were tried; None without.
        unseen: Positions of the sample rows that nothing was fitted to in this
            conversion; None for all rows.
    """

    proven: Proven
    model: bytes
    names: tuple[str, ...]
    purpose: Purpose
    sample: Sample | None
    explanation: Explanation
    oracle: Oracle
    calibration: Calibration | None = None
    judged: Sample | None = None
    trades: tuple[Trade, ...] = ()
    allowed: Gate | None = None
    sweep: Sweep | None = None
    unseen: I64 | None = None

    @property
    def is_proven(self) -> bool:
        """Return whether the served graph is the one that was proven."""
        return self.model == self.proven.model

    def probabilities(self, rows: F32) -> F32:
        """Return the served graph's probabilities; float32 [N, K]."""
        return onnx_runner(self.model).batched(rows, size=_ROWS)

    def quality(self) -> Quality | None:
        """
        Evaluate it on the labelled rows that nothing was fitted to; None without.

        Rows that it was trained on are never used.
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
