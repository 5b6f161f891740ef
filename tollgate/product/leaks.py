"""Find columns that duplicate another one, or give the outcome away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.product.columns import Column, ExcludedColumn

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

SUSPECT_AUC = 0.97  # of one column alone; below, it may just be a good one
_FEW_VALUES = 0.1  # share of rows; with more values, a pure split may be chance


def drop_duplicates(
    columns: Sequence[Column],
) -> tuple[list[Column], list[ExcludedColumn]]:
    """Leave out the columns that equal an earlier one in every row."""
    distinct: list[Column] = []
    excluded: list[ExcludedColumn] = []
    seen: dict[tuple[str, int], list[Column]] = {}
    for one in columns:
        key = (one.kind, int(one.values.hash(seed=0).sum()))
        twins = seen.setdefault(key, [])
        same = next((it for it in twins if _equal(it, one)), None)
        if same is not None:
            excluded.append(
                ExcludedColumn(one.source, f"is the same as {same.source!r}")
            )
            continue
        twins.append(one)
        distinct.append(one)
    return distinct, excluded


def _equal(one: Column, other: Column) -> bool:
    return one.values.equals(other.values.alias(one.values.name), null_equal=True)


def leak_reason(column: Column, positive: Bool) -> str:
    """
    Describe how a column gives the outcome away; empty when it does not.

    Args:
        column: Column of N rows, all of which have an outcome.
        positive: True for rows with the positive outcome; bool [N].
    """
    empty = column.values.is_null().to_numpy()
    if empty.any() and ((empty == positive).all() or (empty != positive).all()):
        return "is empty in just the rows of one outcome: it reveals the outcome"
    codes = _codes(column)
    rows = np.bincount(codes)
    hits = np.bincount(codes, weights=positive)
    pure = ((hits == 0) | (hits == rows)).all()
    if pure and len(rows) == 2:
        return "equals the outcome"
    if pure and len(rows) <= max(2.0, _FEW_VALUES * len(codes)):
        return "determines the outcome: each of its values goes with just one"
    if column.kind == "number" and not empty.any():
        number = column.values.to_numpy()
        inside, outside = number[positive], number[~positive]
        if inside.min() > outside.max() or inside.max() < outside.min():
            return "determines the outcome: one threshold parts the two"
    return ""


def solo_auc(column: Column, positive: Bool) -> float:
    """
    Compute how well a column alone ranks the outcomes: its AUC, or 1 - AUC if higher.

    Words are ranked by their share of positives, shrunk to the mean of all rows as if
    each word had ten more rows; rows without a value, likewise.
    """
    from tollgate.evaluation import roc_auc

    if column.kind == "number":
        values = column.values.fill_null(column.values.median()).to_numpy()
    else:
        codes = _codes(column)
        rows, hits = np.bincount(codes), np.bincount(codes, weights=positive)
        values = ((hits + 10 * positive.mean()) / (rows + 10))[codes]
    found = roc_auc(positive.astype(np.int8), values)
    return max(found, 1 - found)


def _codes(column: Column) -> npt.NDArray[np.int64]:
    """Number the distinct values, null among them; int64 [N]."""
    ranks = column.values.rank("dense").fill_null(0)
    _, codes = np.unique(ranks.to_numpy(), return_inverse=True)
    return np.asarray(codes, np.int64).ravel()
