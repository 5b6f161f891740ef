"""Prove that a converted model answers as its source does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import F32, F64, Probes
from converters.runner import RUNTIME, Infer
from tollgate.errors import ConversionError, ParityError
from tollgate.schema import MAX_BATCH_ROWS

TOLERANCE = 1e-5  # of a probability; float32 sums of 100 trees stay below 1e-6
WORST_ROWS = 3
DELTA_QUANTILES = (0.5, 0.9, 0.99, 0.999)


class Disagreement(msgspec.Struct, frozen=True):
    """
    One probe row on which the two models differ most.

    Attributes:
        row: Its position among the probes.
        kind: Why it was a probe.
        source: Probability of one class by the source.
        converted: The same by the converted model.
        label: Which class, as a position.
    """

    row: int
    kind: str
    source: float
    converted: float
    label: int = 1


class ParityReport(msgspec.Struct, frozen=True):
    """
    How far a converted model is from its source.

    Differences are of probabilities, of each row's class that differs most.

    Args:
        runtime: What ran the converted model, with its version.
        rows: Probe rows compared.
        max_delta: Largest |source - converted|; infinite when a probability is NaN
            or outside [0, 1].
        flips: (row, class, threshold) triples on different sides of a threshold;
            with two classes P(1) counts, with more each of them. The source's
            probability counts as the float32 nearest to it: a score is one.
        batch_delta: Largest difference of one row's probability alone, in a batch
            of 32 and in a shuffled batch; 0 when the company does not matter.
        thresholds: Decision thresholds that flips were counted at.
        tolerance: What max_delta and batch_delta may be.
        worst: The rows that differ most, worst first.
        mean_delta: Mean |source - converted|; None in records older than it.
        quantiles: Of |source - converted|, by level as text; as mean_delta.
        unanswered: Probe rows that the source itself refuses, not compared.
        kinds: Rows compared per kind of probe.
    """

    runtime: str
    rows: int
    max_delta: float
    flips: int
    batch_delta: float
    thresholds: tuple[float, ...]
    tolerance: float
    worst: tuple[Disagreement, ...]
    mean_delta: float | None = None
    quantiles: dict[str, float] = {}
    unanswered: int = 0
    kinds: dict[str, int] = {}

    @property
    def would_pass(self) -> float:
        """The tolerance that would just pass; flips fail at any."""
        return max(self.max_delta, self.batch_delta)

    @property
    def passed(self) -> bool:
        """Tell whether nothing flips and every difference is within tolerance."""
        return self.flips == 0 and self.would_pass <= self.tolerance

    def check(self) -> None:
        """Raise ParityError with the figures unless the models agree."""
        if self.passed:
            return
        first = self.worst[0]
        raise ParityError(
            f"the converted model does not answer as its source ({self.runtime}, "
            f"{self.rows} rows): probabilities differ by up to {self.max_delta:.3g}, "
            f"alone and batched by up to {self.batch_delta:.3g} (allowed "
            f"{self.tolerance:.3g}), {self.flips} decisions flip; worst is "
            f"{first.kind} row {first.row}: "
            f"{first.source:.9g} became {first.converted:.9g}"
        )


class Comparison(msgspec.Struct, frozen=True, eq=False):
    """
    A report and the numbers it was made from, to draw them.

    Attributes:
        report: The figures.
        source: float64 [N, K].
        converted: float64 [N, K].
        delta: Largest |source - converted| of each row; float64 [N].
    """

    report: ParityReport
    source: F64
    converted: F64
    delta: F64


def compare(
    source: Callable[[F32], npt.NDArray[np.floating[Any]]],
    converted: Infer,
    *,
    probes: Probes,
    thresholds: Sequence[float],
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> ParityReport:
    """Compare two models as `measure` does; return the figures alone."""
    return measure(
        source,
        converted,
        probes=probes,
        thresholds=thresholds,
        tolerance=tolerance,
        seed=seed,
    ).report


def measure(
    source: Callable[[F32], npt.NDArray[np.floating[Any]]],
    converted: Infer,
    *,
    probes: Probes,
    thresholds: Sequence[float],
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Comparison:
    """
    Compare two models on probe rows, one by one, in batches and shuffled.

    Args:
        source: The trained model; features [N, F] to probabilities [N, K], NaN in
            rows that it refuses.
        converted: The same for the converted model.
        probes: At least one row that the source answers.
        thresholds: Scores at which a decision changes, `score >= threshold`.
        tolerance: What a probability may differ by.
        seed: Of the shuffling.

    Raises:
        ConversionError: The source answers no row, or another number of classes.
    """
    expected = np.asarray(source(probes.rows), dtype=np.float64)
    answered = ~np.isnan(expected).any(axis=1)
    if not answered.any():
        raise ConversionError("the source refuses every row it was to be compared on")
    rows, kind = probes.rows[answered], probes.kind[answered]
    expected = expected[answered]
    batched = _in_batches(converted, rows, size=MAX_BATCH_ROWS)
    if batched.shape != expected.shape:
        raise ConversionError(
            f"the source has {expected.shape[1]} classes, the converted model "
            f"{batched.shape[1]}"
        )
    each = np.abs(batched - expected)
    each[~((batched >= 0) & (batched <= 1))] = np.inf
    delta = each.max(axis=1)
    return Comparison(
        source=expected,
        converted=batched,
        delta=delta,
        report=ParityReport(
            runtime=RUNTIME,
            rows=len(rows),
            max_delta=float(delta.max()),
            flips=_flips(expected, batched, thresholds=thresholds),
            batch_delta=_batch_delta(converted, rows, batched=batched, seed=seed),
            thresholds=tuple(float(value) for value in thresholds),
            tolerance=tolerance,
            worst=_worst(each, kind, expected=expected, found=batched),
            mean_delta=float(delta.mean()),
            quantiles={
                str(level): float(np.quantile(delta, level, method="higher"))
                for level in DELTA_QUANTILES
            },
            unanswered=int((~answered).sum()),
            kinds={str(one): int((kind == one).sum()) for one in np.unique(kind)},
        ),
    )


def _flips(expected: F64, found: F64, *, thresholds: Sequence[float]) -> int:
    cut = np.asarray(thresholds, dtype=np.float64)[:, None, None]
    expected = expected.astype(np.float32).astype(np.float64)
    first = 1 if expected.shape[1] == 2 else 0
    return int(((expected[:, first:] >= cut) != (found[:, first:] >= cut)).sum())


def _batch_delta(converted: Infer, rows: F32, *, batched: F64, seed: int) -> float:
    order = np.random.default_rng(seed).permutation(len(rows))
    shuffled = np.empty_like(batched)
    shuffled[order] = _in_batches(converted, rows[order], size=MAX_BATCH_ROWS)
    alone = _in_batches(converted, rows, size=1)
    with np.errstate(invalid="ignore"):  # inf - inf
        spread = np.ptp(np.stack([batched, shuffled, alone]), axis=0)
    return float(np.nan_to_num(spread, nan=np.inf).max())


def _worst(
    each: F64, kind: npt.NDArray[np.str_], *, expected: F64, found: F64
) -> tuple[Disagreement, ...]:
    """Name the rows that differ most; of two classes, P(1) speaks for both."""
    delta = each.max(axis=1)
    label = each.argmax(axis=1) if each.shape[1] > 2 else np.ones(len(each), dtype=int)
    return tuple(
        Disagreement(
            row=int(row),
            kind=str(kind[row]),
            source=float(expected[row, label[row]]),
            converted=float(found[row, label[row]]),
            label=int(label[row]),
        )
        for row in np.argsort(-delta, kind="stable")[:WORST_ROWS]
    )


def _in_batches(infer: Infer, rows: F32, *, size: int) -> F64:
    """Return the probabilities of every row, asked for `size` rows at a time."""
    answers = [infer(rows[i : i + size]) for i in range(0, len(rows), size)]
    joined: F64 = np.concatenate(answers).astype(np.float64)
    return joined
