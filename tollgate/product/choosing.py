"""Select columns of a table as features: drop clocks, keep the strongest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.product.columns import Column, LeftOut
from tollgate.product.label import Label
from tollgate.product.leaks import SUSPECT_AUC, leak_of, strength
from tollgate.product.splitting import held_out, known_before

_GROWS = 20  # distinct values that only ever rise with time: a clock


def without_leaks(
    columns: Sequence[Column],
    positive: npt.NDArray[np.bool_],
    *,
    keep: Sequence[str],
    notes: list[str],
) -> tuple[list[Column], list[LeftOut]]:
    kept, left = [], []
    for one in columns:
        reason = "" if one.source in keep else leak_of(one, positive)
        if reason:
            told = f"{reason} (--keep {one.source!r} takes it)"
            left.append(LeftOut(one.source, told))
            continue
        if one.source not in keep and (auc := strength(one, positive)) > SUSPECT_AUC:
            notes.append(
                f"{one.source!r} alone has an AUC of {auc:.3f}: is it known before the "
                "outcome? If not: --drop"
            )
        kept.append(one)
    return kept, left


def without_clocks(
    columns: Sequence[Column], times_us: npt.NDArray[np.int64]
) -> tuple[list[Column], list[LeftOut]]:
    """
    Leave out numbers that only rise with time: those of future rows are all higher.
    """
    order = np.argsort(times_us, kind="stable")
    if times_us[order[0]] == times_us[order[-1]]:
        return list(columns), []
    kept, left = [], []
    for one in columns:
        values = one.take(order).values
        rises = one.kind == "number" and values.n_unique() > _GROWS
        if rises and values.drop_nulls().is_sorted():
            left.append(LeftOut(one.source, "only rises with time: a clock"))
        else:
            kept.append(one)
    return kept, left


def strongest(
    columns: Sequence[Column],
    label: Label,
    *,
    most: int,
    times_us: npt.NDArray[np.int64],
    label_delay_us: int = 0,
) -> tuple[list[Column], list[LeftOut]]:
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
    found = np.array([strength(one.take(rows), positive) for one in columns])
    kept = set(np.argsort(-found, kind="stable")[:most].tolist())
    reason = f"tells less than the {most} that are kept (--most-fields)"
    left = [LeftOut(c.source, reason) for at, c in enumerate(columns) if at not in kept]
    return [c for at, c in enumerate(columns) if at in kept], left
