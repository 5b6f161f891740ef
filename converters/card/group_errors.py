"""
Compare a model's errors between groups of a sensitive attribute.

A model that sees neither sex nor age can still decline one group more often, because
its features depend on them. This module counts that, group by group, on labelled rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from converters.card.auc_interval import auc_interval
from converters.card.card_pictures import Z_95, wilson
from converters.card.quality_record import GroupErrors, Levels, Rate, Sensitive
from converters.card.segments import groups_of
from tollgate.evaluation import roc_auc

LEAST = 30  # least rows for a share

Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]


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
        column: Name of the column that divides the rows.
        values: Value of each row in that column, as text; empty without one; [N].
        positive: True for rows of the positive class; [N].
        score: P(positive); float64 [N].
        levels: Thresholds and their decisions.

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
