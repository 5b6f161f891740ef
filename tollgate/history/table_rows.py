"""Read the rows of a table that features take numbers from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tollgate.errors import InputError
from tollgate.features.feature_tables import ALWAYS_US, TableRows
from tollgate.features.spec.feature_spec import FeatureSpec, Table
from tollgate.features.spec.spec_document import VALID_FROM
from tollgate.history import columns
from tollgate.history.table import read_table, rename_aliases

if TYPE_CHECKING:
    import polars as pl

_MAX_FLOAT32 = 3.4028234e38  # the vector is float32


def find_table(spec: FeatureSpec, name: str) -> Table:
    """
    Find a declared table.

    Raises:
        InputError: There is none of that name.
    """
    for one in spec.tables:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in spec.tables) or "none"
    problem = f"is no table of the features; there are: {known}"
    raise InputError("table", problem, where=name)


def read_table_rows(path: Path, *, spec: FeatureSpec, table: Table) -> TableRows:
    """
    Read a table's file and check every value.

    It has the key of the table's entity, each column that a feature reads, and
    optionally `valid_from`. Without that, a table with a `max_age` is valid from the
    time of the file on, any other one always.

    Raises:
        InputError: A column is missing, a value is no number or a time appears twice
            for an id; the message names file, column, row and value.
    """
    frame, source = rename_aliases(read_table(path), spec), str(path)
    key = spec.entities[table.entity].key
    for name in (key, *table.columns):
        if name not in frame.columns:
            problem = f"column missing; the file has {', '.join(frame.columns)}"
            raise InputError(source, problem, where=name)
    columns.refuse(frame[key].is_null(), frame[key], "is null", source)
    ids = columns.ids(frame[key], source=source)
    values = np.full((len(frame), len(table.columns)), np.nan)
    for place, name in enumerate(table.columns):
        numbers = columns.numbers(frame[name], most=_MAX_FLOAT32, source=source)
        values[:, place] = numbers
    if VALID_FROM in frame.columns:
        column = frame[VALID_FROM]
        columns.refuse(column.is_null(), column, "is null", source)
        valid_us = columns.times_us(column, source=source)
    else:
        written_us = path.stat().st_mtime_ns // 1000
        valid_us = np.full(len(frame), written_us if table.max_age_us else ALWAYS_US)
    _refuse_twins(ids, valid_us, source=source)
    encoded = [one.encode() for one in ids.to_list()]
    return TableRows(source=source, ids=encoded, valid_us=valid_us, values=values)


def _refuse_twins(ids: pl.Series, valid_us: columns.I64, *, source: str) -> None:
    import polars as pl

    both = pl.DataFrame({"id": ids, VALID_FROM: valid_us}).to_struct("both")
    again = ~both.is_first_distinct()
    columns.refuse(again, ids, "appears twice from one moment on", source)
