"""Prove that a converted model answers as its source does."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from converters.probes import Probes
from converters.runner import F32, RUNTIME, Infer
from tollgate.errors import ConversionError
from tollgate.schema import MAX_BATCH_ROWS

TOLERANCE = 1e-5  # of a probability; float32 sums of 100 trees stay below 1e-6
WORST_ROWS = 3


class Disagreement(msgspec.Struct, frozen=True):
    """One probe row on which the two models differ most; `row` is its position."""

    row: int
    kind: str
    source: float
    converted: float


class ParityReport(msgspec.Struct, frozen=True):
    """
    How far a converted model is from its source.

    Args:
        runtime: What ran the converted model, with its version.
        rows: Probe rows compared.
        max_delta: Largest |P(1) source - P(1) converted|: the tolerance that would
            just pass; infinite when a probability is NaN or outside [0, 1].
        flips: (row, threshold) pairs on different sides of a decision threshold.
        batch_delta: Largest difference of one row's probability alone, in a batch
            of 32 and in a shuffled batch; 0 when the company does not matter.
        thresholds: Decision thresholds that flips were counted at.
        tolerance: What max_delta and batch_delta may be.
        worst: The rows that differ most, worst first.
    """

    runtime: str
    rows: int
    max_delta: float
    flips: int
    batch_delta: float
    thresholds: tuple[float, ...]
    tolerance: float
    worst: tuple[Disagreement, ...]

    @property
    def passed(self) -> bool:
        """Tell whether nothing flips and every difference is within tolerance."""
        largest = max(self.max_delta, self.batch_delta)
        return self.flips == 0 and largest <= self.tolerance

    def check(self) -> None:
        """Raise ConversionError with the figures unless the models agree."""
        if self.passed:
            return
        first = self.worst[0]
        raise ConversionError(
            f"the converted model does not answer as its source ({self.runtime}, "
            f"{self.rows} rows): probabilities differ by up to {self.max_delta:.3g}, "
            f"alone and batched by up to {self.batch_delta:.3g} (allowed "
            f"{self.tolerance:.3g}), {self.flips} decisions flip; worst is "
            f"{first.kind} row {first.row}: "
            f"{first.source:.9g} became {first.converted:.9g}"
        )


def compare(
    source: Infer,
    converted: Infer,
    *,
    probes: Probes,
    thresholds: Sequence[float],
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> ParityReport:
    """
    Compare two models on probe rows, one by one, in batches and shuffled.

    Args:
        source: The trained model; features [N, F] to probabilities [N, 2].
        converted: The same for the converted model.
        probes: At least one row.
        thresholds: Scores at which a decision changes, `score >= threshold`.
        tolerance: What a probability may differ by.
        seed: Of the shuffling.
    """
    expected = source(probes.rows)[:, 1].astype(np.float64)
    batched = _in_batches(converted, probes.rows, size=MAX_BATCH_ROWS)
    delta = np.abs(batched - expected)
    delta[~((batched >= 0) & (batched <= 1))] = np.inf
    order = np.random.default_rng(seed).permutation(len(probes.rows))
    shuffled = np.empty_like(batched)
    shuffled[order] = _in_batches(converted, probes.rows[order], size=MAX_BATCH_ROWS)
    alone = _in_batches(converted, probes.rows, size=1)
    with np.errstate(invalid="ignore"):  # inf - inf
        spread = np.ptp(np.stack([batched, shuffled, alone]), axis=0)
    cut = np.asarray(thresholds, dtype=np.float64)[:, None]
    worst = np.argsort(-delta, kind="stable")[:WORST_ROWS]
    return ParityReport(
        runtime=RUNTIME,
        rows=len(probes.rows),
        max_delta=float(delta.max()),
        flips=int(((expected >= cut) != (batched >= cut)).sum()),
        batch_delta=float(np.nan_to_num(spread, nan=np.inf).max()),
        thresholds=tuple(float(value) for value in thresholds),
        tolerance=tolerance,
        worst=tuple(
            Disagreement(
                row=int(row),
                kind=str(probes.kind[row]),
                source=float(expected[row]),
                converted=float(batched[row]),
            )
            for row in worst
        ),
    )


def _in_batches(infer: Infer, rows: F32, *, size: int) -> npt.NDArray[np.float64]:
    """Return P(1) of every row, asked for `size` rows at a time; [N]."""
    answers = [infer(rows[i : i + size])[:, 1] for i in range(0, len(rows), size)]
    joined: npt.NDArray[np.float64] = np.concatenate(answers).astype(np.float64)
    return joined
