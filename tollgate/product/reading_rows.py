"""
Select the usable rows of a table of readings, and describe those that are not.

A wrong clock, an empty id, a text in a column of numbers: such rows or cells are left
out, counted and named, and the others go on. Creation, evaluation, replay and training
read their tables here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import ArgumentError, InputError
from tollgate.features.fields import scaled
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.spec.spec_document import MAX_TEXT_BYTES
from tollgate.history import History, history_of, reading_ids
from tollgate.product.table_reading import (
    are_ids,
    as_numbers,
    as_text,
    as_times_us,
    find_column,
    read_table,
    require_column,
)
from tollgate.schema import EVENT_TIME, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

ONLY_MACHINE = "machine-1"  # the machine of a table that has no column of machines
TRAINED_SHARE = 0.7  # of the readings in time; the rest says how often there are alarms
_DAY_US = 86_400_000_000
# Readings have a wrong clock if no other is near: nine tenths of the readings are this
# many times the time that they cover away, and at least a day.
_FAR = 3
_FEW = 0.05  # most readings with a wrong clock, at each end
_RESET_US = 5 * 365 * _DAY_US  # a clock that was reset is years away
_LOST = 0.1  # most rows without a usable time, or with an id of another row
_AT_ONCE = 0.01  # more rows of one machine at the time of another: several machines
_NAMED = 3  # rows that a message names


class ReadingColumns(msgspec.Struct, frozen=True):
    """
    Columns of a table.

    Attributes:
        time: Times of the readings.
        machine: Ids of the machines; None where all readings are of one.
        id: Ids of the readings; None makes them from machine and time.
    """

    time: str
    machine: str | None = None
    id: str | None = None


class ReadingRows(msgspec.Struct, frozen=True, eq=False):
    """
    The usable rows of a table, in its order.

    Attributes:
        ids: Ids of the readings.
        times_us: Their times; Int64, µs since 1970.
        machines: Ids of their machines.
        rows: Position of each in the table; int64.
        notes: Remarks for the user: how many rows are left out, and why.
    """

    ids: pl.Series
    times_us: pl.Series
    machines: pl.Series
    rows: I64
    notes: tuple[str, ...]

    def pairs(self) -> tuple[I64, I64]:
        """Return the places of readings, and of the next ones of their machines."""
        code = self.machines.rank("dense").to_numpy()
        order = np.lexsort((self.times_us.to_numpy(), code))
        same = code[order[1:]] == code[order[:-1]]
        return order[:-1][same], order[1:][same]


def usable_rows(table: pl.DataFrame, columns: ReadingColumns) -> ReadingRows:
    """
    Select the rows that have a time, a machine and an id of their own.

    Raises:
        ArgumentError: A column is missing or has other values, or too many rows cannot
            be used.
    """
    named = {"time": columns.time, "entity": columns.machine, "id": columns.id}
    for role, name in named.items():
        if name is not None:
            require_column(table, name, role=role)
    times = as_times_us(table[columns.time])
    if times.null_count() == len(table):
        problem = f"{columns.time!r} holds no times{_example(table[columns.time])}"
        raise ArgumentError("time", problem)
    machines = _machines(table, columns, times)
    notes = []
    usable = times.is_not_null() & machines.is_not_null()
    if not usable.any():
        problem = f"{columns.time!r} and {columns.machine!r}: no row has both"
        raise ArgumentError("time", problem)
    given = table[columns.time]
    bad = (times.is_null() & given.is_not_null()).to_numpy()
    if bad.any():
        text = (
            f"{bad.sum():,} of {len(table):,} rows have no time between 2000 and 2200, "
            f"{_named_cells(given, bad)}"
        )
        if bad.sum() > _LOST * len(table):
            raise ArgumentError("time", f"{columns.time!r}: {text}")
        notes.append(f"{text}: left out")
    ids = None if columns.id is None else as_text(table[columns.id])
    if ids is not None:
        usable &= ids.is_not_null()
    lost = int((~usable).sum()) - int(bad.sum())
    if lost:
        notes.append(f"{lost:,} of {len(table):,} rows lack a time or an id: left out")
    rows = np.flatnonzero(usable.to_numpy())
    rows = _with_right_clocks(rows, times, machines, columns=columns, notes=notes)
    if ids is not None and columns.id is not None:
        rows = _with_own_ids(rows, ids, table[columns.id], notes=notes)
    else:
        rows = _without_copies(rows, table, times, machines, notes=notes)
    times, machines = times.gather(rows), machines.gather(rows)
    return ReadingRows(
        ids=reading_ids(machines, times) if ids is None else ids.gather(rows),
        times_us=times,
        machines=machines,
        rows=rows,
        notes=tuple(notes),
    )


def _machines(
    table: pl.DataFrame, columns: ReadingColumns, times_us: pl.Series
) -> pl.Series:
    """Return the machine of each row; null where it has none."""
    import polars as pl

    if columns.machine is not None:
        machines = as_text(table[columns.machine])
        if machines.null_count() == len(table):
            problem = (
                f"{columns.machine!r} holds no ids of 1 to {MAX_TEXT_BYTES} bytes"
                f"{_example(table[columns.machine])}"
            )
            raise ArgumentError("entity", problem)
        return machines
    known = times_us.drop_nulls()
    if len(known) - known.n_unique() > _AT_ONCE * len(known):
        first = known.filter(known.is_duplicated())[0]
        problem = (
            f"{len(known) - known.n_unique():,} of {len(table):,} rows have the time "
            f"of another row, such as {_moment(first)}, so they are of several "
            f"machines, or the times lack fractions of a second: name the column with "
            f"the ids of the machines, one of {', '.join(table.columns)}"
        )
        raise ArgumentError("entity", f"{problem:.400}")
    return pl.repeat(ONLY_MACHINE, len(table), dtype=pl.String, eager=True)


def far_times(times_us: I64) -> Bool:
    """
    Return which times are of wrong clocks: few, and far from all others.

    Args:
        times_us: Times of at least one reading, in any order; [N].

    Returns:
        bool [N]; at most 5 % at each end.
    """
    order = np.argsort(times_us, kind="stable")
    at = times_us[order]
    few = int(_FEW * len(at))
    first, last = few, len(at) - few
    least_us = max(_FAR * int(at[last - 1] - at[first]), _DAY_US)
    below = np.flatnonzero(np.diff(at[: first + 1]) > least_us)
    above = np.flatnonzero(np.diff(at[last - 1 :]) > least_us)
    first = int(below[-1]) + 1 if len(below) else 0
    last = last + int(above[0]) if len(above) else len(at)
    found = np.ones(len(at), np.bool_)
    found[order[first:last]] = False
    return found


def _with_right_clocks(
    rows: I64,
    times: pl.Series,
    machines: pl.Series,
    *,
    columns: ReadingColumns,
    notes: list[str],
) -> I64:
    """
    Leave out readings of wrong clocks.

    Raises:
        ArgumentError: They are too many.
    """
    times_us = times.gather(rows).to_numpy()
    wrong = far_times(times_us)
    if wrong.any():
        shown = "; ".join(
            f"row {row + 1} of {machines[row]} at {_moment(times[row])}"
            for row in rows[wrong][:_NAMED].tolist()
        )
        notes.append(
            f"{wrong.sum():,} readings have a wrong clock, far from all other times: "
            f"left out ({shown})"
        )
    at = np.sort(times_us[~wrong])
    gaps = np.diff(at)
    if len(gaps) and gaps.max() > _RESET_US:
        cut = int(np.argmax(gaps)) + 1
        few = slice(0, cut) if cut <= len(at) - cut else slice(cut, None)
        part = at[few]
        of = set(
            machines.gather(rows)
            .filter(times.gather(rows).is_in(part.tolist()))
            .unique()
            .sort()
            .to_list()[:_NAMED]
        )
        problem = (
            f"{columns.time!r}: {len(part):,} of {len(at):,} readings, such as of "
            f"{', '.join(sorted(of))}, are of {_moment(part[0])} to "
            f"{_moment(part[-1])}, and the others are more than five years away: "
            "correct the clock, or leave these rows out of the table"
        )
        raise ArgumentError("time", problem)
    return np.asarray(rows[~wrong])


def _with_own_ids(
    rows: I64, ids: pl.Series, column: pl.Series, *, notes: list[str]
) -> I64:
    """
    Keep the first row of each id: a reading may have been recorded twice.

    Raises:
        ArgumentError: The column does not hold ids of readings.
    """
    found = ids.gather(rows)
    first = found.is_first_distinct().to_numpy()
    if not first.all():
        again = int((~first).sum())
        if again > _LOST * len(rows) or not are_ids(column.gather(rows[first])):
            raise ArgumentError("id", f"{column.name!r} has the same id in two rows")
        row = int(rows[~first][0])
        notes.append(
            f"{again:,} rows have the id of an earlier row, such as row {row + 1}, "
            f"{ids[row]!r:.40}: left out"
        )
    return np.asarray(rows[first])


def _without_copies(
    rows: I64,
    table: pl.DataFrame,
    times: pl.Series,
    machines: pl.Series,
    *,
    notes: list[str],
) -> I64:
    """Leave out rows that repeat an earlier one; other rows at one time stay."""
    import polars as pl

    place = pl.DataFrame({"time": times, "machine": machines})[rows]
    own_place = _is_first(place)
    if own_place.all():
        return rows
    cells = [one.cast(pl.String, strict=False) for one in table[rows] if not _deep(one)]
    first = _is_first(pl.DataFrame(cells))
    copies, twice = int((~first).sum()), int((~own_place).sum())
    if copies:
        row = int(rows[~first][0])
        notes.append(
            f"{copies:,} rows repeat an earlier row, such as row {row + 1}: left out"
        )
    if twice > copies:
        row = int(rows[first & ~own_place][0])
        notes.append(
            f"{twice - copies:,} rows have machine and time of an earlier row and "
            f"other values, such as row {row + 1}: they count as further readings"
        )
    return np.asarray(rows[first])


def _is_first(frame: pl.DataFrame) -> Bool:
    """Return which rows do not repeat an earlier one; bool [N]."""
    import polars as pl

    number = pl.int_range(1, pl.len() + 1).over(frame.columns)
    return np.asarray(frame.select(number == 1).to_series().to_numpy(), np.bool_)


def _deep(column: pl.Series) -> bool:
    import polars as pl

    return column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object)


def training_rows(times_us: I64) -> Bool:
    """
    Return which readings a detector is trained on: the first 70 % in time.

    Args:
        times_us: Times of the readings, in any order; [N].

    Returns:
        bool [N]; readings at one time are on one side.
    """
    return np.asarray(times_us <= np.quantile(times_us, TRAINED_SHARE, method="lower"))


class SpecReadings(msgspec.Struct, frozen=True, eq=False):
    """
    Readings under the names of a product that exists.

    Attributes:
        history: The readings, in the order of the table.
        notes: Remarks for the user: rows and cells that do not count, and why.
    """

    history: History
    notes: tuple[str, ...]


def read_spec_readings(path: Path, *, spec: FeatureSpec) -> SpecReadings:
    """
    Read a table of readings for a product that exists.

    Times may have any form that `product new` understands. A cell that is no number, is
    infinite or out of the range of its field counts as missing.

    Args:
        path: Parquet, CSV or JSON lines.
        spec: Features of a product of readings; its aliases name the table's columns.

    Raises:
        InputError: A column is missing, or too many rows cannot be used.
    """
    import polars as pl

    read = read_table(path)
    table, notes = read.frame, list(read.notes)
    (entity,) = spec.entities
    time = find_column(table, EVENT_TIME, spec)
    if time is None:
        raise _missing(path, EVENT_TIME, table)
    columns = ReadingColumns(
        time=time,
        machine=find_column(table, entity.key, spec),
        id=find_column(table, TRANSACTION_ID, spec),
    )
    try:
        found = usable_rows(table, columns)
    except ArgumentError as exc:
        if exc.source == "entity" and columns.machine is None:
            raise _missing(path, entity.key, table) from exc
        raise InputError(path, exc.problem, where=exc.source) from exc
    if columns.machine is None:
        notes.append(
            f"the table has no column {entity.key}: all readings count as those of "
            f"one machine, {ONLY_MACHINE!r}"
        )
    notes += found.notes
    made = [
        found.ids.alias(TRANSACTION_ID),
        found.times_us.alias(EVENT_TIME),
        found.machines.alias(entity.key),
    ]
    for field in spec.fields:
        name = find_column(table, field.name, spec)
        if name is None:
            raise _missing(path, field.name, table)
        column = table[name].gather(found.rows)
        if field.type == "category":
            made.append(as_text(column).alias(field.name))
            continue
        values = as_numbers(column).values
        sent = values.to_numpy().astype(np.float64)
        _, outside = scaled(sent, field)
        values = values.set(pl.Series(outside), None)
        notes += missing_notes(column, values, rows=found.rows)
        made.append(values.alias(field.name))
    history = history_of(pl.DataFrame(made), spec=spec, source=str(path))
    return SpecReadings(history=history, notes=tuple(notes))


def missing_notes(column: pl.Series, values: pl.Series, *, rows: I64) -> list[str]:
    """
    Describe the cells of a sensor that do not count, unless they are empty.

    Args:
        column: The cells.
        values: Their numbers; null where a cell does not count.
        rows: Position of each cell in the table.
    """
    lost = values.is_null() & ~_empty(column)
    if not lost.any():
        return []
    row = int(lost.arg_max() or 0)
    return [
        f"{column.name}: {int(lost.sum()):,} cells are no numbers in its range, such "
        f"as {column[row]!r:.40} in row {rows[row] + 1}: they count as missing"
    ]


def _empty(column: pl.Series) -> pl.Series:
    """Return which cells say that there is no number."""
    found = as_numbers(column)
    empty: pl.Series = column.is_null()
    if found.blank is not None:
        empty |= found.blank
    elif column.dtype.is_float():
        empty |= column.is_nan().fill_null(True)
    return empty


def _missing(path: Path, name: str, table: pl.DataFrame) -> InputError:
    problem = f"column missing; the table has {', '.join(table.columns)}"
    return InputError(path, f"{problem:.400}", where=name)


def _example(column: pl.Series) -> str:
    """Show one of the values of a column, if it has any."""
    known = column.drop_nulls()
    return f", such as {known[0]!r:.40}" if len(known) else ""


def _named_cells(column: pl.Series, chosen: Bool) -> str:
    """Show some of the chosen cells with their rows."""
    rows: Sequence[int] = np.flatnonzero(chosen)[:_NAMED].tolist()
    return "such as " + ", ".join(
        f"{column[row]!s:.40} in row {row + 1}" for row in rows
    )


def _moment(time_us: object) -> str:
    return str(np.datetime64(int(str(time_us)), "us").astype("M8[s]"))
