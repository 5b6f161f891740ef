"""Select columns of a table as features: drop clocks, keep the strongest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.product.columns import Column, ExcludedColumn
from tollgate.product.label import Label
from tollgate.product.leaks import SUSPECT_AUC, leak_reason, solo_auc
from tollgate.product.splitting import held_out, known_before

_GROWS = 20  # distinct values that only ever rise with time: a clock


def drop_leaks(
    columns: Sequence[Column],
    positive: npt.NDArray[np.bool_],
    *,
    keep: Sequence[str],
    notes: list[str],
) -> tuple[list[Column], list[ExcludedColumn]]:
    """
    Leave out columns that give the outcome away, except those to keep by name.

    Args:
        columns: Columns of N rows, all of which have an outcome.
        positive: True for rows with the positive outcome; bool [N].
        keep: Names of columns to use in any case.
        notes: Gets a line for each column that is suspiciously good.
    """
    used, excluded = [], []
    for one in columns:
        reason = "" if one.source in keep else leak_reason(one, positive)
        if reason:
            reason = f"{reason}; keep it by name to use it"
            excluded.append(ExcludedColumn(one.source, reason))
            continue
        if one.source not in keep and (auc := solo_auc(one, positive)) > SUSPECT_AUC:
            notes.append(
                f"{one.source!r} alone has an AUC of {auc:.3f}: is it known before the "
                "outcome? If not, drop it"
            )
        used.append(one)
    return used, excluded


def drop_clocks(
    columns: Sequence[Column], times_us: npt.NDArray[np.int64]
) -> tuple[list[Column], list[ExcludedColumn]]:
    """
    Leave out numbers that only rise with time: those of future rows are all higher.
    """
    order = np.argsort(times_us, kind="stable")
    if times_us[order[0]] == times_us[order[-1]]:
        return list(columns), []
    used, excluded = [], []
    for one in columns:
        values = one.take(order).values
        rises = one.kind == "number" and values.n_unique() > _GROWS
        if rises and values.drop_nulls().is_sorted():
            excluded.append(ExcludedColumn(one.source, "only rises with time: a clock"))
        else:
            used.append(one)
    return used, excluded


def select_strongest(
    columns: Sequence[Column],
    label: Label,
    *,
    most: int,
    times_us: npt.NDArray[np.int64],
    label_delay_us: int = 0,
) -> tuple[list[Column], list[ExcludedColumn]]:
    """
    Select the columns that individually rank outcomes best, in the table's order.

    The rows that the model is judged on do not count, nor do those whose outcome was
    not known before them.
    """
    if len(columns) <= most:
        return list(columns), []
    test = held_out(label.values, time_us=times_us)
    past = known_before(
        test, label.values, time_us=times_us, label_delay_us=label_delay_us
    )
    rows = np.flatnonzero(past)
    positive = label.values[rows] == 1
    found = np.array([solo_auc(one.take(rows), positive) for one in columns])
    strongest = set(np.argsort(-found, kind="stable")[:most].tolist())
    reason = f"less informative than the {most} that are used"
    excluded = [
        ExcludedColumn(c.source, reason)
        for at, c in enumerate(columns)
        if at not in strongest
    ]
    return [c for at, c in enumerate(columns) if at in strongest], excluded
