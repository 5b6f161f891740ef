"""Select the usable rows of a table, and recognise columns by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tollgate.errors import ArgumentError
from tollgate.product.asked import ProductChoices
from tollgate.product.label import label_texts
from tollgate.product.names import OWN_COLUMNS
from tollgate.product.splitting import DAY_US
from tollgate.product.values import are_ids, as_numbers, as_text, as_times_us
from tollgate.schema import EVENT_TIME, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl

MOST_ROWS = 500_000  # enough for a first model, in a minute


def select_rows(
    frame: pl.DataFrame, choices: ProductChoices, notes: list[str]
) -> pl.DataFrame:
    """Select the rows that have an outcome and all other required values."""
    parts = {
        "label": (choices.label,),
        "time": (choices.time,),
        "amount": (choices.amount,),
        "id": (choices.id,),
        "entity": choices.entities,
        "drop": choices.drop,
        "sensitive": choices.sensitive,
        "keep": choices.keep,
    }
    for role, names in parts.items():
        for name in names:
            if name is not None:
                _require_column(frame, name, role=role)
    is_usable = label_texts(frame[choices.label]).is_not_null()
    for name in (choices.id, *choices.entities):
        if name is not None:
            is_usable &= as_text(frame[name]).is_not_null()
    if choices.time is not None:
        times = as_times_us(frame[choices.time])
        if times.null_count() == len(times):
            example = frame[choices.time].drop_nulls().head(1).to_list()
            shown = f", such as {example[0]!r:.40}" if example else ""
            raise ArgumentError("time", f"{choices.time!r} holds no times{shown}")
        is_usable &= times.is_not_null()
        is_usable &= with_known_outcome(times, choices.label_delay_us, notes)
    if choices.amount is not None:
        is_usable &= as_numbers(frame[choices.amount]).values.is_not_null()
    missing = len(frame) - int(is_usable.sum())
    if missing:
        notes.append(
            f"{missing:,} of {len(frame):,} rows lack an outcome, an id, a time or an "
            "amount, and are left out"
        )
    usable = frame.filter(is_usable)
    if choices.id is not None and usable[choices.id].n_unique() < len(usable):
        raise ArgumentError("id", f"{choices.id!r} has the same id in two rows")
    return _limit_rows(usable, choices, notes)


def with_known_outcome(
    times_us: pl.Series, label_delay_us: int, notes: list[str] | None = None
) -> pl.Series:
    """
    Select the rows old enough that their outcome is known at the table's last time.

    Args:
        times_us: Times of all rows, µs; null where there is none.
        label_delay_us: Time from a row until its outcome is known, µs.
        notes: Gets a line if rows are too young.
    """
    last = times_us.max()
    old = (times_us <= (last or 0) - label_delay_us).fill_null(False)  # type: ignore[operator]
    young = int((~old & times_us.is_not_null()).sum())
    if label_delay_us and young and notes is not None:
        notes.append(
            f"{young:,} rows of the table's last {label_delay_us / DAY_US:g} days are "
            "left out: their outcome was not known yet"
        )
    return old if label_delay_us else times_us.is_not_null()


def _require_column(frame: pl.DataFrame, name: str, *, role: str) -> None:
    """
    Check that a column exists and holds single values; one to leave out may hold any.
    """
    import polars as pl

    if name not in frame.columns:
        shown = ", ".join(frame.columns)[:200]
        raise ArgumentError(role, f"the table has no column {name!r}; it has {shown}")
    kind = frame[name].dtype
    if role != "drop" and (kind.is_nested() or kind in (pl.Binary, pl.Object)):
        raise ArgumentError(role, f"{name!r} holds {kind}, not single values")
    if role == "sensitive" and name in OWN_COLUMNS:
        raise ArgumentError(role, f"{name!r} is every product's own: rename it")


def assign_named_roles(
    frame: pl.DataFrame, choices: ProductChoices, notes: list[str]
) -> ProductChoices:
    """Give a column with the name of one of ours that role, if its values allow it."""
    taken = {
        choices.label,
        choices.amount,
        *choices.entities,
        *choices.drop,
        *choices.sensitive,
    }
    free = [name for name in frame.columns if name not in taken]
    if choices.id is None and TRANSACTION_ID in free and are_ids(frame[TRANSACTION_ID]):
        choices = msgspec.structs.replace(choices, id=TRANSACTION_ID)
        notes.append(f"{TRANSACTION_ID} is taken for the id of each row")
    if choices.time is None and EVENT_TIME in free:
        times = as_times_us(frame[EVENT_TIME])
        if times.null_count() == frame[EVENT_TIME].null_count() < len(frame):
            choices = msgspec.structs.replace(choices, time=EVENT_TIME)
            notes.append(f"{EVENT_TIME} is taken for the time of each row")
    return choices


def _limit_rows(
    frame: pl.DataFrame, choices: ProductChoices, notes: list[str]
) -> pl.DataFrame:
    """Select the newest rows of very many, or random rows, in their order."""
    if len(frame) <= MOST_ROWS:
        return frame
    if choices.time is not None:
        order = as_times_us(frame[choices.time]).arg_sort()
        rows = np.sort(order.to_numpy()[-MOST_ROWS:])
        selection = "the newest"
    else:
        chosen = np.random.default_rng(0).choice(len(frame), MOST_ROWS, replace=False)
        rows, selection = np.sort(chosen), "drawn by chance"
    notes.append(f"{MOST_ROWS:,} of {len(frame):,} rows are used, {selection}")
    return frame[rows]
