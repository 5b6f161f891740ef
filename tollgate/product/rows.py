"""Convert a raw table to the rows of a product; train.py calls this too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME
from tollgate.history import History, history_of
from tollgate.product.label import label_texts
from tollgate.product.table_reading import (
    are_ids,
    as_numbers,
    as_text,
    as_times_us,
    find_column,
    read_table,
    too_long,
    with_known_outcome,
)
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl


class Rows(msgspec.Struct, frozen=True, eq=False):
    """
    Rows of a product, each with its outcome.

    Attributes:
        frame: Columns under the product's names, as a request brings them.
        history: The same rows, checked.
        segments: Columns to report by -> each row's value, as text.
    """

    frame: pl.DataFrame
    history: History
    segments: dict[str, tuple[str, ...]]


def read_rows(
    path: Path,
    *,
    spec: FeatureSpec,
    positive: str,
    segments: Sequence[str] = (),
    label_delay_us: int = 0,
) -> Rows:
    """
    Read the rows of a table that have an outcome.

    Args:
        path: Parquet, CSV or JSON lines.
        spec: The product's features; its aliases name the table's columns.
        positive: The outcome that counts as 1.
        segments: Columns of the table to report by.
        label_delay_us: Time from a row until its outcome is known, µs; rows that are
            younger than that at the table's last time are left out.

    Raises:
        InputError: A column is missing, or a value is invalid.
    """
    table = read_table(path).frame
    if label_delay_us:
        times = as_times_us(_column(table, EVENT_TIME, spec=spec, source=str(path)))
        table = table.filter(with_known_outcome(times, label_delay_us))
    return rows_of(
        table,
        spec=spec,
        positive=positive,
        segments=segments,
        source=str(path),
        label_delay_us=label_delay_us,
    )


def rows_of(
    table: pl.DataFrame,
    *,
    spec: FeatureSpec,
    positive: str,
    segments: Sequence[str] = (),
    source: str,
    label_delay_us: int = 0,
) -> Rows:
    """
    Convert a table in memory like `read_rows`, but include rows that are too young.
    """
    import polars as pl

    frame, good = _renamed(table, spec=spec, positive=positive, source=source)
    values_by_segment = {}
    for name in segments:
        if name not in table.columns:
            raise InputError(source, "the table has no such column", where=name)
        values_by_segment[name] = tuple(
            table[name].cast(pl.String).fill_null("").filter(good)
        )
    past = frame
    if label_delay_us:
        known = pl.col(EVENT_TIME) + label_delay_us
        past = frame.with_columns(known.cast(pl.Datetime("us")).alias(LABEL_TIME))
    history = history_of(past, spec=spec, source=source)
    return Rows(frame=frame, history=history, segments=values_by_segment)


def table_vectors(
    spec: FeatureSpec, rows: Rows, vectors: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    """
    Return the vectors of rows with each number as the table has it, not as served.

    A model that was trained on the table got these. Values that are not in the table
    (codes of categories, windows, defaults) are as served.

    Args:
        spec: The features.
        rows: N rows.
        vectors: Their vectors as served; float32 [N, F].
    """
    found = vectors.astype(np.float64)
    for column, field in spec.numbers.items():
        values = rows.frame[field.name].fill_null(np.nan).to_numpy()
        found[:, column] = np.where(np.isnan(values), found[:, column], values)
    return found


def _renamed(
    frame: pl.DataFrame, *, spec: FeatureSpec, positive: str, source: str
) -> tuple[pl.DataFrame, pl.Series]:
    """
    Give a table's columns the product's names and types.

    A value that is no number becomes missing, as when it is served. Rows without an
    outcome, without a required value, or with a word that no request may have are left
    out; returns which rows stay, too.
    """
    import polars as pl

    made: dict[str, pl.Series] = {}
    outcome = label_texts(_column(frame, LABEL, spec=spec, source=source))
    good = outcome.is_not_null()
    made[LABEL] = (outcome == positive).fill_null(False).cast(pl.Int8)
    for name in _needed(frame, spec):
        column = _column(frame, name, spec=spec, source=source)
        if name == EVENT_TIME:
            made[name] = as_times_us(column)
        else:
            made[name] = (
                as_numbers(column).values if name == AMOUNT else as_text(column)
            )
        good &= made[name].is_not_null()
    for field in spec.fields:
        column = _column(frame, field.name, spec=spec, source=source)
        if column.dtype == pl.Boolean and field.type == "number":
            column = column.cast(pl.Float64)
        is_number = field.type == "number"
        made[field.name] = as_numbers(column).values if is_number else as_text(column)
        if not is_number:
            good &= ~too_long(column)  # refused when served, so not learned from
    rows = pl.DataFrame([one.alias(name) for name, one in made.items()]).filter(good)
    if TRANSACTION_ID not in made:
        numbers = pl.int_range(1, len(rows) + 1, eager=True).cast(pl.String)
        rows = rows.with_columns(numbers.alias(TRANSACTION_ID))
    return rows, good


def _needed(frame: pl.DataFrame, spec: FeatureSpec) -> list[str]:
    """
    List the columns that each row must have.

    Rows without windows need no time, and are numbered if the table has no id for each.
    """
    names = list(spec.columns)
    if not spec.entities and not any(one.calendar for one in spec.features):
        names.remove(EVENT_TIME)
    found = find_column(frame, TRANSACTION_ID, spec)
    if found is None or not are_ids(frame[found]):
        names.remove(TRANSACTION_ID)
    return names


def _column(
    frame: pl.DataFrame, name: str, *, spec: FeatureSpec, source: str
) -> pl.Series:
    found = find_column(frame, name, spec)
    if found is None:
        shown = ", ".join(frame.columns)[:200]
        raise InputError(source, f"column missing; the table has {shown}", where=name)
    return frame[found]
