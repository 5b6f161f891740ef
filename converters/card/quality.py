"""
Evaluate a model on labelled rows.

Measure how well it ranks, how well its scores are calibrated, and which decisions the
policy's thresholds make of them; for all rows and for parts of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from converters.card.auc_interval import auc_interval
from converters.card.group_errors import errors_by_group
from converters.card.quality_record import (
    HALVES,
    AtThreshold,
    Bin,
    Group,
    Levels,
    Quality,
    Segment,
)
from converters.card.segments import groups_of
from tollgate.errors import ArgumentError, InputError
from tollgate.evaluation import average_precision, roc_auc

# Least rows of either class for a figure of a segment: at an AUC of 0.9 and many
# negatives, 30 positives leave a 95 % interval of ±0.07 (Hanley and McNeil 1982,
# formula 2).
LEAST_OF_A_CLASS = 30
BINS = 10  # of the score, equally wide
# The log loss clips probabilities of 0 and 1 to this distance: a score is a float32.
_SMALLEST = float(np.finfo(np.float32).eps)

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def measure_quality(
    label: I64,
    probabilities: npt.NDArray[np.floating[Any]],
    *,
    classes: tuple[int | str, ...],
    levels: Levels = HALVES,
    segments: Mapping[str, Sequence[str]] | None = None,
    sensitive: Mapping[str, Sequence[str]] | None = None,
    note: str = "",
    origin: Literal["held out", "sample"] = "sample",
) -> Quality:
    """
    Evaluate a model's predictions; of two classes the second is the positive one.

    Args:
        label: Class of each row, as a position; int [N].
        probabilities: Predictions of the model; float [N, K].
        classes: Labels of the K classes.
        levels: Thresholds of the policy and their decisions; two classes only.
        segments: Column -> value of each row, as text.
        sensitive: Column -> value of each row, for attributes that are no features; two
            classes only.
        note: Description of the rows.
        origin: `held out` if the model was not trained on the rows; `sample` if
            unknown.

    Raises:
        InputError: The shapes do not match, no row is left, or errors by group are
            requested for several classes.
    """
    known = np.asarray(label, dtype=np.int64)
    found = np.asarray(probabilities).astype(np.float64)
    if found.ndim != 2 or found.shape != (len(known), len(classes)):
        raise InputError(
            "quality",
            f"{list(found.shape)} probabilities for {len(known)} labels of "
            f"{len(classes)} classes",
        )
    answered = np.isfinite(found).all(axis=1)
    if not answered.any():
        raise InputError("quality", "no labelled row has a usable answer")
    divided = {
        column: np.asarray(values, dtype=np.str_)[answered]
        for column, values in (segments or {}).items()
    }
    judge = _Judge(known[answered], found[answered], levels=levels)
    two = len(classes) == 2
    if sensitive and not two:
        problem = f"errors by {', '.join(sensitive)} are reported for two classes"
        raise ArgumentError("sensitive", f"{problem}, not for {len(classes)}")
    return Quality(
        classes=classes,
        positive=classes[1] if two else None,
        levels=levels,
        overall=judge.group("all rows", least=1),
        segments=tuple(
            Segment(column, tuple(judge.groups(values)))
            for column, values in divided.items()
        ),
        bins=_bins(known[answered] == 1, found[answered, 1]) if two else (),
        unanswered=int((~answered).sum()),
        sensitive=tuple(
            errors_by_group(
                column,
                np.asarray(values, dtype=np.str_)[answered].tolist(),
                positive=known[answered] == 1,
                score=found[answered, 1],
                levels=levels,
            )
            for column, values in (sensitive or {}).items()
        ),
        note=note,
        origin=origin,
    )


class _Judge:
    """Labels and predictions, parts of which are evaluated."""

    def __init__(self, label: I64, probabilities: F64, *, levels: Levels) -> None:
        self._label = label
        self._found = probabilities
        self._levels = levels

    def groups(self, values: npt.NDArray[np.str_]) -> list[Group]:
        return [
            self.group(name, rows=mask, least=LEAST_OF_A_CLASS)
            for name, mask in groups_of(values.tolist())
        ]

    def group(
        self, name: str, *, least: int, rows: npt.NDArray[np.bool_] | None = None
    ) -> Group:
        label = self._label if rows is None else self._label[rows]
        found = self._found if rows is None else self._found[rows]
        counts = np.bincount(label, minlength=found.shape[1])
        reason = _too_few(counts, least=least)
        if found.shape[1] == 2:
            return _of_two(
                name, label == 1, score=found[:, 1], levels=self._levels, reason=reason
            )
        return _of_many(name, label, found=found, reason=reason)


def _too_few(counts: I64, *, least: int) -> str:
    """Return which class has too few rows; empty when none has."""
    if (counts >= least).all():
        return ""
    if len(counts) == 2:
        rare = "positive" if counts[1] < counts[0] else "negative"
        return f"{counts.min()} {rare} rows, at least {least} needed"
    return f"{counts.min()} rows of one class, at least {least} of each needed"


def _of_two(
    name: str,
    positive: npt.NDArray[np.bool_],
    *,
    score: F64,
    levels: Levels,
    reason: str,
) -> Group:
    place = np.searchsorted(levels.thresholds, score, side="right")
    shares = np.bincount(place, minlength=len(levels.names)) / len(score)
    plain = Group(
        name=name,
        rows=len(score),
        positives=int(positive.sum()),
        decisions=dict(zip(levels.names, shares.tolist(), strict=True)),
        reason=reason,
    )
    if reason:
        return plain
    return msgspec.structs.replace(
        plain,
        auc=roc_auc(positive, score),
        interval=auc_interval(positive, score),
        average_precision=average_precision(positive, score),
        brier=float(np.mean((score - positive) ** 2)),
        log_loss=_log_loss(np.where(positive, score, 1 - score)),
        at_thresholds=tuple(
            _at(threshold, name=name, positive=positive, flagged=score >= threshold)
            for name, threshold in zip(levels.names[1:], levels.thresholds, strict=True)
        ),
    )


def _of_many(name: str, label: I64, *, found: F64, reason: str) -> Group:
    plain = Group(name=name, rows=len(label), positives=None, reason=reason)
    if reason:
        return plain
    aucs = [roc_auc(label == one, found[:, one]) for one in range(found.shape[1])]
    return msgspec.structs.replace(
        plain,
        auc=float(np.mean(aucs)),
        log_loss=_log_loss(found[np.arange(len(label)), label]),
    )


def _at(
    threshold: float,
    *,
    name: str,
    positive: npt.NDArray[np.bool_],
    flagged: npt.NDArray[np.bool_],
) -> AtThreshold:
    rows, hits = int(flagged.sum()), int((flagged & positive).sum())
    return AtThreshold(
        name=name,
        threshold=threshold,
        rows=rows,
        precision=hits / rows if rows else None,
        recall=hits / int(positive.sum()),
    )


def _log_loss(of_truth: F64) -> float:
    return float(-np.log(np.clip(of_truth, _SMALLEST, 1 - _SMALLEST)).mean())


def _bins(positive: npt.NDArray[np.bool_], score: F64) -> tuple[Bin, ...]:
    edges = np.linspace(0, 1, BINS + 1)
    place = np.clip(np.searchsorted(edges, score, side="right") - 1, 0, BINS - 1)
    found = []
    for number, (low, high) in enumerate(pairwise(edges.tolist())):
        there = place == number
        found.append(
            Bin(
                low=round(low, 6),
                high=round(high, 6),
                rows=int(there.sum()),
                positives=int((there & positive).sum()),
                mean_score=float(score[there].mean()) if there.any() else None,
            )
        )
    return tuple(found)
