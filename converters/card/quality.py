"""
Evaluate a model on labelled rows.

Measure how well it ranks, how well its scores are calibrated, and which decisions the
policy's thresholds make of them; for all rows, for parts of them, and for the groups of
a sensitive attribute. A model that sees neither sex nor age can still decline one group
more often, because its features depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from converters.card.card_pictures import Z_95, wilson
from converters.card.quality_record import (
    HALVES,
    AtThreshold,
    Bin,
    Group,
    GroupErrors,
    Levels,
    Quality,
    Rate,
    Segment,
    Sensitive,
)
from tollgate.errors import ArgumentError, InputError
from tollgate.evaluation import average_precision, roc_auc

F64 = npt.NDArray[np.float64]


def auc_interval(
    positive: npt.NDArray[np.bool_], score: F64
) -> tuple[float, float] | None:
    """
    Return the 95 % confidence interval of an AUC; None when it cannot be computed.

    The variance is DeLong's. The interval is computed on the logit scale, so that it
    stays within 0 and 1.

    Args:
        positive: bool [N].
        score: Higher is more suspicious; [N].

    Source: DeLong, DeLong, Clarke-Pearson (1988), "Comparing the areas under two or
    more correlated receiver operating characteristic curves", Biometrics 44.
    """
    ones, zeros = np.sort(score[positive]), np.sort(score[~positive])
    if min(len(ones), len(zeros)) < 2:
        return None
    of_ones, of_zeros = _below(ones, zeros), 1 - _below(zeros, ones)
    auc = float(of_ones.mean())
    variance = of_ones.var(ddof=1) / len(ones) + of_zeros.var(ddof=1) / len(zeros)
    if not 0 < auc < 1 or variance == 0:
        return None
    half = Z_95 * float(np.sqrt(variance)) / (auc * (1 - auc))
    logit = float(np.log(auc / (1 - auc)))
    low, high = (1 / (1 + float(np.exp(-x))) for x in (logit - half, logit + half))
    return low, high


def _below(score: F64, others: F64) -> F64:
    """Return the share of the others below each score; an equal one counts half."""
    below = np.searchsorted(others, score, side="left")
    not_above = np.searchsorted(others, score, side="right")
    share: F64 = (below + not_above) / (2 * len(others))
    return share


MISSING = "(missing)"
_MOST_VALUES = 12  # of one column; more numbers become ranges, more texts one group
_RANGES = 5  # with about as many rows each

Mask = npt.NDArray[np.bool_]


def groups_of(values: Sequence[str]) -> Iterator[tuple[str, Mask]]:
    """
    Divide rows by one column; every row is in one group.

    Up to 12 values become one group each, the largest first. More numbers than that are
    divided into five ranges of about as many rows, more texts into the 11 most frequent
    and the rest. Rows without a value come last.

    Args:
        values: Value of each row, as text; empty without one; [N].

    Yields:
        A name for people, and which rows it holds; bool [N].
    """
    text = np.asarray(values, dtype=np.str_)
    there = text != ""
    found, code = np.unique(text[there], return_inverse=True)
    at = np.full(len(text), -1)
    at[there] = code
    if len(found) > _MOST_VALUES and (numbers := _numbers(found)) is not None:
        yield from _ranges(numbers, at=at)
    else:
        yield from _categories(found.tolist(), at=at)
    if not there.all():
        yield MISSING, ~there


def _numbers(found: npt.NDArray[np.str_]) -> npt.NDArray[np.float64] | None:
    """Convert texts to numbers; return None if one of them is none."""
    try:
        numbers = found.astype(np.float64)
    except ValueError:
        return None
    return None if np.isnan(numbers).any() else numbers


def _categories(
    names: list[str], *, at: npt.NDArray[np.int64]
) -> Iterator[tuple[str, Mask]]:
    order = np.argsort(-np.bincount(at[at >= 0], minlength=len(names)), kind="stable")
    pooled = len(names) > _MOST_VALUES
    own = order[: _MOST_VALUES - 1] if pooled else order
    for one in own:
        yield names[one], at == one
    if pooled:
        rest = (at >= 0) & ~np.isin(at, own)
        yield f"({len(names) - len(own)} other values)", rest


def _ranges(
    numbers: npt.NDArray[np.float64], *, at: npt.NDArray[np.int64]
) -> Iterator[tuple[str, Mask]]:
    there = at >= 0
    value = np.full(len(at), np.nan)
    value[there] = numbers[at[there]]
    ordered = np.sort(value[there])
    # Use observed values, so that a bound is as short as it was in the column.
    cut = np.unique(ordered[(len(ordered) - 1) * np.arange(1, _RANGES) // _RANGES])
    cut = cut[cut < ordered[-1]]
    if not len(cut):
        yield "all", there
        return
    place = np.searchsorted(cut, value, side="left")
    bounds = [_bound(one) for one in cut]
    names = [
        f"up to {bounds[0]}",
        *(f"above {low} to {high}" for low, high in pairwise(bounds)),
        f"above {bounds[-1]}",
    ]
    for number, name in enumerate(names):
        yield name, there & (place == number)


def _bound(number: float) -> str:
    """Format a bound for people: whole numbers in full, others with six digits."""
    whole = np.isfinite(number) and number == round(number) and abs(number) < 1e15
    return f"{int(number):,}" if whole else f"{number:.6g}"


LEAST = 30  # least rows for a share

Bools = npt.NDArray[np.bool_]


def errors_by_group(
    column: str,
    values: Sequence[str],
    *,
    positive: Bools,
    score: F64,
    levels: Levels,
) -> Sensitive:
    """
    Count errors for each value of one column.

    A row below the first threshold counts as approved, a row that reaches the last one
    as declined; rules and segments of a policy are not applied.

    Args:
        values: Value of each row in that column, as text; empty without one; [N].
        positive: True for rows of the positive class; [N].
        score: P(positive); float64 [N].

    Returns:
        The groups. Ratios of approval rates refer to the group that is approved most
        often, of those with enough rows.
    """
    approved = score < levels.thresholds[0]
    declined = score >= levels.thresholds[-1]
    groups = list(groups_of(values))
    enough = [one for one in groups if int(one[1].sum()) >= LEAST] or groups
    best, among = max(enough, key=lambda one: float(approved[one[1]].mean()))
    reference = _Counts(int(approved[among].sum()), int(among.sum()))
    found = []
    for name, rows in groups:
        own = positive[rows]
        hits = int(approved[rows].sum())
        counts = _Counts(hits, int(rows.sum()))
        group = GroupErrors(
            name=name,
            rows=counts.rows,
            positives=int(own.sum()),
            approved=_rate(approved[rows]),
            false_declines=_rate(declined[rows][~own]),
            false_approvals=_rate(approved[rows][own]),
            ratio=None if name == best else _ratio(counts, reference),
        )
        found.append(_with_auc(group, own, score[rows]))
    return Sensitive(column=column, reference=best, groups=tuple(found))


class _Counts(msgspec.Struct, frozen=True):
    """Number of hits among a number of rows."""

    hits: int
    rows: int


def _rate(hits: Bools) -> Rate | None:
    """Return a share with its interval; None if there are too few rows."""
    if len(hits) < LEAST:
        return None
    low, high = wilson(int(hits.sum()), len(hits))
    return Rate(share=float(hits.mean()), low=low, high=high, rows=len(hits))


def _ratio(own: _Counts, other: _Counts) -> Rate | None:
    """
    Return the ratio of two shares with its 95 % interval.

    Source: Katz, Baptista, Azen, Pike (1978), "Obtaining confidence intervals for the
    risk ratio in cohort studies", Biometrics 34.
    """
    if min(own.rows, other.rows) < LEAST or not own.hits or not other.hits:
        return None
    found = own.hits / own.rows / (other.hits / other.rows)
    variance = 1 / own.hits - 1 / own.rows + 1 / other.hits - 1 / other.rows
    factor = math.exp(Z_95 * math.sqrt(variance))
    return Rate(share=found, low=found / factor, high=found * factor, rows=own.rows)


def _with_auc(group: GroupErrors, positive: Bools, score: F64) -> GroupErrors:
    if min(int(positive.sum()), int((~positive).sum())) < LEAST:
        return group
    return msgspec.structs.replace(
        group, auc=roc_auc(positive, score), interval=auc_interval(positive, score)
    )


# Least rows of either class for a figure of a segment: at an AUC of 0.9 and many
# negatives, 30 positives leave a 95 % interval of ±0.07 (Hanley and McNeil 1982,
# formula 2).
LEAST_OF_A_CLASS = 30
BINS = 10  # of the score, equally wide
# The log loss clips probabilities of 0 and 1 to this distance: a score is a float32.
_SMALLEST = float(np.finfo(np.float32).eps)

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
