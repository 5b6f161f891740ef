"""Prove that a converted model predicts as its source does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import F32, F64, Probes
from converters.parity.runner import Runner
from tollgate.errors import ConversionError
from tollgate.repository.models.artifact_file import (
    TOLERANCE,
    Disagreement,
    ParityReport,
)
from tollgate.schema import MAX_BATCH_ROWS

WORST_ROWS = 3
DELTA_QUANTILES = (0.5, 0.9, 0.99, 0.999)
# Rows of each kind that are also predicted alone, evenly spaced. A call costs more than
# a row does, and few rows show whether a row depends on its batch.
ALONE_ROWS = 4096


class Reference(msgspec.Struct, frozen=True, eq=False):
    """
    The source's predictions for the probe rows; computed once for all runtimes.

    Attributes:
        rows: Rows that the source predicts; float32 [N, F].
        kind: Reason for each row; str [N].
        probabilities: float64 [N, K].
        refused: Rows that it refuses; float32 [M, F].
        unit: Size of a number that is usual, if the answers are numbers: differences
            are relative to the larger of a number and this. None for probabilities.
    """

    rows: F32
    kind: npt.NDArray[np.str_]
    probabilities: F64
    refused: F32
    unit: float | None = None

    @property
    def unanswered(self) -> int:
        """Return the number of rows that the source refuses."""
        return len(self.refused)


class Comparison(msgspec.Struct, frozen=True, eq=False):
    """
    A report and the numbers that it was computed from, for plots.

    Attributes:
        source: Probabilities of the source; float64 [N, K].
        converted: Probabilities of the converted model; float64 [N, K].
        delta: Largest |source - converted| of each row; float64 [N].
    """

    report: ParityReport
    source: F64
    converted: F64
    delta: F64


def ask(
    source: Callable[[Any], npt.NDArray[np.floating[Any]]],
    probes: Probes,
    *,
    wide: bool = False,
    number: bool = False,
) -> Reference:
    """
    Predict the probe rows with a trained model, as float64 where `wide`.

    Args:
        number: True if it answers a number.

    Raises:
        ConversionError: It predicts none of them.
    """
    rows = probes.rows.astype(np.float64) if wide else probes.rows
    found = np.asarray(source(rows), dtype=np.float64)
    answered = ~np.isnan(found).any(axis=1)
    if not answered.any():
        raise ConversionError("the source refuses every row it was to be compared on")
    return Reference(
        rows=probes.rows[answered],
        kind=probes.kind[answered],
        probabilities=found[answered],
        refused=probes.rows[~answered],
        unit=usual_size(found[probes.kind == "sample"]) if number else None,
    )


def usual_size(numbers: F64) -> float:
    """Return the median size of numbers other than 0; 1 if there is none."""
    size = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    return float(np.median(size)) if len(size) else 1.0


def differences(expected: F64, found: F64, *, unit: float | None) -> F64:
    """
    Return how far answers are apart; infinite where one is not valid.

    Args:
        unit: See `Reference`; numbers beyond float32 must be its infinity.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        each: F64 = np.abs(found - expected)
        if unit is None:
            each[~((found >= 0) & (found <= 1))] = np.inf
            return each
        each /= np.maximum(np.abs(expected), unit)
        each[expected.astype(np.float32) == found] = 0.0
    return np.where(np.isnan(each), np.inf, each)


def judge(
    reference: Reference,
    converted: Runner,
    *,
    thresholds: Sequence[float],
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Comparison:
    """
    Compare a converted model with its source: in batches, shuffled and row by row.

    Args:
        reference: Predictions of the source.
        converted: The converted model, in some runtime.
        thresholds: Scores at which a decision changes, `score >= threshold`.
        tolerance: Allowed difference of a probability.

    Raises:
        ConversionError: The two have different numbers of classes, or a row makes the
            converted model fail.
    """
    expected = reference.probabilities
    batched = _answers(converted, reference.rows, size=MAX_BATCH_ROWS)
    if batched.shape != expected.shape:
        raise ConversionError(
            f"the source has {expected.shape[1]} classes, the converted model "
            f"{batched.shape[1]}"
        )
    alone = _alone(reference.kind)
    return _comparison(
        reference,
        batched,
        runtime=converted.runtime,
        batch_delta=max(
            _shuffled_delta(converted, reference, batched=batched, seed=seed),
            _alone_delta(converted, reference, alone=alone, batched=batched),
        ),
        alone=len(alone),
        thresholds=thresholds,
        tolerance=tolerance,
    )


def _comparison(
    reference: Reference,
    batched: F64,
    *,
    runtime: str,
    batch_delta: float,
    alone: int,
    thresholds: Sequence[float],
    tolerance: float,
) -> Comparison:
    """Compute the figures from the predictions of both models."""
    expected, kind = reference.probabilities, reference.kind
    each = differences(expected, batched, unit=reference.unit)
    delta = each.max(axis=1)
    report = ParityReport(
        runtime=runtime,
        rows=len(expected),
        max_delta=float(delta.max()),
        flips=_flips(expected, batched, thresholds=thresholds),
        batch_delta=batch_delta,
        thresholds=tuple(float(value) for value in thresholds),
        tolerance=tolerance,
        worst=_worst(each, kind, expected=expected, found=batched),
        mean_delta=float(delta.mean()),
        quantiles={
            str(level): float(np.quantile(delta, level, method="higher"))
            for level in DELTA_QUANTILES
        },
        unanswered=reference.unanswered,
        kinds={str(one): int((kind == one).sum()) for one in np.unique(kind)},
        alone=alone,
        unit=reference.unit,
    )
    return Comparison(source=expected, converted=batched, delta=delta, report=report)


def _flips(expected: F64, found: F64, *, thresholds: Sequence[float]) -> int:
    cut = np.asarray(thresholds, dtype=np.float64)[:, None, None]
    with np.errstate(over="ignore"):
        expected = expected.astype(np.float32).astype(np.float64)
    first = 1 if expected.shape[1] == 2 else 0
    return int(((expected[:, first:] >= cut) != (found[:, first:] >= cut)).sum())


def _alone(kind: npt.NDArray[np.str_]) -> npt.NDArray[np.int64]:
    """Choose the positions of the rows that are predicted alone."""
    chosen = []
    for one in np.unique(kind):
        at = np.flatnonzero(kind == one)
        few = np.linspace(0, len(at) - 1, min(len(at), ALONE_ROWS)).astype(np.int64)
        chosen.append(at[few])
    return np.sort(np.concatenate(chosen))


def _shuffled_delta(
    converted: Runner, reference: Reference, *, batched: F64, seed: int
) -> float:
    """
    Compare predictions in another order, mixed with rows that the source refuses.

    For those the converted model may return anything, but it must not fail: the server
    puts rows of several callers into one batch, and all of them would get its error.
    """
    rows = np.concatenate([reference.rows, reference.refused])
    order = np.random.default_rng(seed).permutation(len(rows))
    shuffled = np.empty((len(rows), batched.shape[1]))
    shuffled[order] = _answers(converted, rows[order], size=MAX_BATCH_ROWS)
    return _largest(batched, shuffled[: len(batched)], unit=reference.unit)


def _alone_delta(
    converted: Runner,
    reference: Reference,
    *,
    alone: npt.NDArray[np.int64],
    batched: F64,
) -> float:
    found = _answers(converted, reference.rows[alone], size=1)
    return _largest(batched[alone], found, unit=reference.unit)


def _largest(one: F64, other: F64, *, unit: float | None) -> float:
    """Return the largest difference; infinite where either is NaN."""
    if unit is not None:
        return float(differences(one, other, unit=unit).max())
    with np.errstate(invalid="ignore"):  # inf - inf
        delta = np.abs(one - other)
    return float(np.nan_to_num(delta, nan=np.inf).max())


def _worst(
    each: F64, kind: npt.NDArray[np.str_], *, expected: F64, found: F64
) -> tuple[Disagreement, ...]:
    """List the rows that differ most; of two classes, P(1) represents both."""
    delta = each.max(axis=1)
    last = np.full(len(each), each.shape[1] - 1)
    label = each.argmax(axis=1) if each.shape[1] > 2 else last
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


def _answers(converted: Runner, rows: F32, *, size: int) -> F64:
    """Return the probabilities of every row, predicted `size` rows at a time."""
    return converted.batched(rows, size=size).astype(np.float64)
