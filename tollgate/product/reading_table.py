"""Read a table of machines' readings: times, machines, and the numbers of sensors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.detection.detector import FEWEST_READINGS, FEWEST_ROWS
from tollgate.detection.reading_features import READINGS, sensor_features
from tollgate.errors import ArgumentError, InputError
from tollgate.product.column_names import Namer, reserved_reason
from tollgate.product.reading_rows import (
    ONLY_MACHINE,
    TRAINED_SHARE,
    ReadingColumns,
    training_rows,
    usable_rows,
)
from tollgate.product.sensors import choose_sensors
from tollgate.product.table_reading import as_numbers, read_table, require_column
from tollgate.schema import EVENT_TIME, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl

# Of 64 characters: leaves room for a number, and for `_longest_short_shift`.
_LONGEST_NAME = 41
_KEY = "machine"  # of a table without a column of machines
_FEW_WORDS = 0.1  # different texts, as a share of the rows, that may be machines


class ReadingChoices(msgspec.Struct, frozen=True, kw_only=True):
    """
    The user's choices for a table of readings.

    Attributes:
        product: The new product's name.
        table: The file.
        machine: Column with the id of the machine of each reading; None where all are
            of one machine.
        time: Column with the time of each reading.
        id: Column with an id of each reading; None makes ids of machine and time.
        drop: Columns to leave out.
        keep: Columns that are sensors, though they look like labels or counters, or
            there are many.
        watch_share, alarm_share: Shares of normal readings whose score may reach the
            level; None for the defaults.
        false_alarms: False alarms of a machine in a day that thresholds are chosen for;
            None for the default, if there are no shares.
    """

    product: str
    table: Path
    machine: str | None
    time: str
    id: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    watch_share: float | None = None
    alarm_share: float | None = None
    false_alarms: float | None = None


class ReadingTable(msgspec.Struct, frozen=True, eq=False):
    """
    Readings under the product's names.

    Attributes:
        frame: transaction_id, event_time (Datetime), the machine's key and the sensors
            (Float64); in the order of time.
        key: Column of the machines' ids.
        sensors: Columns of the sensors.
        ranges: Least and greatest valid number of each sensor.
        aliases: Our column -> its name in the table, where they differ.
        excluded: Column of the table -> reason why it is not used.
        notes: Remarks for the user.
    """

    frame: pl.DataFrame
    key: str
    sensors: tuple[str, ...]
    ranges: dict[str, tuple[float, float]]
    aliases: dict[str, str]
    excluded: dict[str, str]
    notes: tuple[str, ...]


def read_readings(choices: ReadingChoices) -> ReadingTable:
    """
    Read a table, and choose its sensors: all columns of numbers without another role.

    Raises:
        InputError: The table is unusable, or no column is a sensor.
        ArgumentError: A named column is missing or has other values.
    """
    import polars as pl

    read = read_table(choices.table)
    table, notes = read.frame, list(read.notes)
    for role, named in (("drop", choices.drop), ("keep", choices.keep)):
        for name in named:
            require_column(table, name, role=role)
    _require_free_names(choices)
    columns = ReadingColumns(time=choices.time, machine=choices.machine, id=choices.id)
    found = usable_rows(table, columns)
    if choices.machine is None:
        _require_one_machine(table, choices)
        notes.append(
            f"no column names the machine: all readings are of one, {ONLY_MACHINE!r}, "
            f"and requests name it as {_KEY}"
        )
    notes += found.notes
    taken = {choices.time, choices.machine, choices.id, *choices.drop}
    free = [name for name in table.columns if name not in taken]
    chosen = choose_sensors(
        table, free, rows=found.rows, pairs=found.pairs(), keep=choices.keep
    )
    notes += chosen.notes
    dropped = dict.fromkeys(choices.drop, "excluded on request")
    excluded = {**dropped, **chosen.excluded}
    numbers = chosen.values
    if not numbers:
        problem = "no column of numbers is left that could be a sensor"
        if excluded:
            reasons = "; ".join(f"{name} {why}" for name, why in excluded.items())
            problem += f": {reasons:.300}"
        raise InputError(choices.table, problem)
    # Without its suffix, `_id` would leave no name for the entity.
    namer = Namer(reserved=(READINGS, "_id"), longest=_LONGEST_NAME, derived=_derived)
    key_source = choices.machine if choices.machine is not None else _KEY
    (key,) = namer.names((key_source,)).values()
    names = namer.names(tuple(numbers))
    frame = pl.DataFrame(
        [
            found.ids.alias(TRANSACTION_ID),
            found.times_us.cast(pl.Datetime("us")).alias(EVENT_TIME),
            found.machines.alias(key),
            *(values.alias(names[source]) for source, values in numbers.items()),
        ]
    ).sort(EVENT_TIME, maintain_order=True)
    sources = {
        EVENT_TIME: choices.time,
        key: key_source,
        **{names[source]: source for source in numbers},
    }
    if choices.id is not None:
        sources[TRANSACTION_ID] = choices.id
    return ReadingTable(
        frame=frame,
        key=key,
        sensors=tuple(names[source] for source in numbers),
        ranges={names[source]: one for source, one in chosen.ranges.items()},
        aliases={ours: theirs for ours, theirs in sources.items() if ours != theirs},
        excluded=excluded,
        notes=tuple(notes),
    )


def require_enough(table: ReadingTable, *, source: Path) -> None:
    """
    Check that a detector can be trained on a table, before anything is computed.

    Raises:
        InputError: It has too few readings; the message says how many are needed.
    """
    import polars as pl

    frame = table.frame
    times_us = frame[EVENT_TIME].cast(pl.Int64).to_numpy()
    place = frame.select(pl.int_range(1, pl.len() + 1).over(table.key)).to_series()
    trained = training_rows(times_us)
    usable = int((trained & (place.to_numpy() >= FEWEST_READINGS)).sum())
    if usable >= FEWEST_ROWS and not trained.all():
        return
    machines = frame[table.key].n_unique()
    needed = math.ceil((FEWEST_ROWS + (FEWEST_READINGS - 1) * machines) / TRAINED_SHARE)
    problem = (
        f"{len(frame):,} readings of {machines:,} machines are too few: the detector "
        f"is trained on the first {TRAINED_SHARE:.0%}, without the first "
        f"{FEWEST_READINGS - 1} of each machine, which have no past to be compared "
        f"with; {usable:,} are left, and {FEWEST_ROWS:,} are needed to know which "
        f"values are rare. About {needed:,} readings in all are enough"
    )
    raise InputError(source, problem)


def _require_one_machine(table: pl.DataFrame, choices: ReadingChoices) -> None:
    """Refuse a table with a column that may name machines, if none is named."""
    taken = {choices.time, choices.id, *choices.drop}
    found = []
    for name in table.columns:
        column = table[name]
        if name in taken or column.dtype.is_nested() or not as_numbers(column).texts:
            continue
        words = column.drop_nulls()
        if 1 < words.n_unique() <= _FEW_WORDS * len(words):
            found.append(name)
    if found:
        problem = (
            f"{', '.join(found)} may have the ids of machines: name the column of the "
            "machines, or leave these out with `drop` if there is only one machine"
        )
        raise ArgumentError("entity", problem)


def _require_free_names(choices: ReadingChoices) -> None:
    """Refuse a role of a column whose name is that of another column of ours."""
    named = {"time": choices.time, "entity": choices.machine, "id": choices.id}
    ours = {"time": EVENT_TIME, "id": TRANSACTION_ID}
    for role, name in named.items():
        reason = reserved_reason(name) if name is not None else None
        if reason is not None and name != ours.get(role):
            raise ArgumentError(role, f"{name!r} {reason}")


def _derived(name: str) -> tuple[str, ...]:
    """Return the names of a sensor's features, and of its reason codes."""
    return name.upper(), *sensor_features(name)
