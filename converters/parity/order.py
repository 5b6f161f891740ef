"""Prove that a converted ranker puts candidates into the order of its source."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from converters.model import F32, F64
from converters.parity.parity import Reference
from converters.parity.runner import Runner
from tollgate.ranking.candidates import CANDIDATES
from tollgate.repository.models.artifact_file import TOLERANCE, OrderReport
from tollgate.schema import MAX_BATCH_ROWS, MAX_LIST_SIZE

MOST_LISTS = 500  # evenly spaced


def judge_order(
    reference: Reference, converted: Runner, *, tolerance: float = TOLERANCE
) -> OrderReport:
    """
    Compare the order of lists, each of neighbouring probe rows.

    The rows around the splits of trees are neighbours, so lists have many scores that
    are equal or almost equal.

    Args:
        reference: Predictions of the source, numbers.
        converted: The converted ranker, in some runtime.
        tolerance: Allowed difference of a score, relative to the larger of the score
            and the usual size of one.
    """
    rows, scores = reference.rows, reference.probabilities[:, 0]
    count = -(-len(rows) // CANDIDATES)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_LISTS)).astype(int))
    lists = np.zeros((len(chosen), CANDIDATES, rows.shape[1]), np.float32)
    expected = np.full((len(chosen), CANDIDATES), np.nan)
    for at, number in enumerate(chosen):
        part = slice(number * CANDIDATES, (number + 1) * CANDIDATES)
        lists[at, : len(rows[part])] = rows[part]
        expected[at, : len(rows[part])] = scores[part]
    found = converted.batched(lists, size=MAX_BATCH_ROWS).astype(np.float64)
    unit = 1.0 if reference.unit is None else reference.unit
    moved, wrong = 0, 0
    for wanted, answered in zip(expected, found, strict=True):
        size = int((~np.isnan(wanted)).sum())
        one_moved, one_wrong = misplaced(
            wanted[:size], answered[:size], unit=unit, tolerance=tolerance
        )
        moved, wrong = moved + one_moved, wrong + one_wrong
    return OrderReport(
        lists=len(chosen),
        candidates=CANDIDATES,
        top=MAX_LIST_SIZE,
        tolerance=tolerance,
        moved=moved,
        wrong=wrong,
        batch_delta=_batch_delta(converted, lists, found=found, unit=unit),
    )


def misplaced(
    expected: F64, found: F64, *, unit: float, tolerance: float
) -> tuple[int, int]:
    """
    Compare the first places of one list by two scores of its candidates.

    Args:
        expected: Scores by the source; float64 [C].
        found: Scores by the converted model; float64 [C].

    Returns:
        Places with another candidate than the source's, and places before which a
        candidate is missing whose expected score is higher by more than the tolerance.
    """
    found = np.where(np.isnan(found), -np.inf, found)
    own, theirs = _order(expected), _order(found)
    moved = int((own != theirs)[:MAX_LIST_SIZE].sum())
    ranked = expected[theirs]
    # The highest score at each place or after it, of those that the order puts there.
    highest = np.maximum.accumulate(ranked[::-1])[::-1]
    scale = np.maximum(np.maximum(np.abs(ranked), np.abs(highest)), unit)
    with np.errstate(invalid="ignore"):  # inf - inf
        over = highest - ranked > tolerance * scale
    return moved, int(over[:MAX_LIST_SIZE].sum())


def _order(scores: F64) -> npt.NDArray[np.intp]:
    """Order candidates by score, the highest first, equal ones by position."""
    return np.argsort(-scores, kind="stable")


def _batch_delta(converted: Runner, lists: F32, *, found: F64, unit: float) -> float:
    """Compare lists in batches with lists alone, and with their candidates alone."""
    few = np.unique(np.linspace(0, len(lists) - 1, min(len(lists), 8)).astype(int))
    alone = converted.batched(lists[few], size=1)
    rows = lists[few].reshape(-1, lists.shape[2])
    single = converted.batched(rows, size=MAX_BATCH_ROWS).reshape(alone.shape)
    scale = np.maximum(np.abs(found[few]), unit)
    each = [np.abs(one - found[few]) / scale for one in (alone, single)]
    return float(np.nan_to_num(np.stack(each), nan=np.inf).max())
