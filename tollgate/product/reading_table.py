"""Read a table of machines' readings: times, machines, and the numbers of sensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tollgate.detection.reading_features import READINGS, sensor_features
from tollgate.errors import ArgumentError, InputError
from tollgate.features.spec.spec_document import (
    MAX_DECIMALS,
    MAX_TEXT_BYTES,
    largest_number,
)
from tollgate.product.column_names import Namer, reserved_reason
from tollgate.product.files import bounds
from tollgate.product.table_reading import (
    are_ids,
    as_numbers,
    as_text,
    as_times_us,
    read_table,
)
from tollgate.schema import EVENT_TIME, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl

MOST_SENSORS = 16  # numbers that an entity can store
# Of 64 characters: leaves room for a number, and for `_longest_short_shift`.
_LONGEST_NAME = 41


class ReadingChoices(msgspec.Struct, frozen=True, kw_only=True):
    """
    The user's choices for a table of readings.

    Attributes:
        product: The new product's name.
        table: The file.
        machine: Column with the id of the machine of each reading.
        time: Column with the time of each reading.
        id: Column with an id of each reading; None numbers them.
        drop: Columns to leave out.
        watch_share, alarm_share: Shares of normal readings whose score may reach the
            level; None for the defaults.
    """

    product: str
    table: Path
    machine: str
    time: str
    id: str | None = None
    drop: tuple[str, ...] = ()
    watch_share: float | None = None
    alarm_share: float | None = None


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

    table = read_table(choices.table)
    frame, notes = table.frame, list(table.notes)
    roles = {
        "time": (choices.time,),
        "entity": (choices.machine,),
        "id": (choices.id,),
        "drop": choices.drop,
    }
    for role, named in roles.items():
        for name in named:
            if name is not None and name not in frame.columns:
                problem = f"{name!r} is none of its columns: {', '.join(frame.columns)}"
                raise ArgumentError(role, problem[:300])
    ours = {"time": EVENT_TIME, "id": TRANSACTION_ID}
    for role in ("time", "entity", "id"):
        (named_one,) = roles[role]
        reason = reserved_reason(named_one) if named_one is not None else None
        if reason is not None and named_one != ours.get(role):
            raise ArgumentError(role, f"{named_one!r} {reason}")
    times = as_times_us(frame[choices.time])
    machines = as_text(frame[choices.machine])
    usable = times.is_not_null() & machines.is_not_null()
    if choices.id is not None:
        usable &= as_text(frame[choices.id]).is_not_null()
    left = int((~usable).sum())
    if times.null_count() == len(frame):
        problem = f"{choices.time!r} holds no times{_example(frame[choices.time])}"
        raise ArgumentError("time", problem)
    if machines.null_count() == len(frame):
        problem = (
            f"{choices.machine!r} holds no ids of 1 to {MAX_TEXT_BYTES} bytes"
            f"{_example(frame[choices.machine])}"
        )
        raise ArgumentError("entity", problem)
    if left == len(frame):
        problem = f"{choices.time!r} and {choices.machine!r}: no row has both"
        raise ArgumentError("time", problem)
    if left:
        notes.append(f"{left:,} of {len(frame):,} rows lack a time or an id: left out")
    taken = {choices.time, choices.machine, choices.id, *choices.drop}
    free = [name for name in frame.columns if name not in taken]
    excluded = dict.fromkeys(choices.drop, "excluded on request")
    numbers: dict[str, pl.Series] = {}
    for name in free:
        found = reserved_reason(name) or _sensor(frame[name].filter(usable))
        if isinstance(found, str):
            excluded[name] = found
        else:
            numbers[name] = found
    if not numbers:
        problem = "no column of numbers is left that could be a sensor"
        if excluded:
            reasons = "; ".join(f"{name} {why}" for name, why in excluded.items())
            problem += f": {reasons:.300}"
        raise InputError(choices.table, problem)
    if len(numbers) > MOST_SENSORS:
        problem = (
            f"names none of {len(numbers)} columns of numbers, and a product has at "
            f"most {MOST_SENSORS} sensors: leave out {len(numbers) - MOST_SENSORS} of "
            f"{', '.join(numbers)}"
        )
        raise ArgumentError("drop", problem)
    # Without its suffix, `_id` would leave no name for the entity.
    namer = Namer(reserved=(READINGS, "_id"), longest=_LONGEST_NAME, derived=_derived)
    names = namer.names((choices.machine, *numbers))
    key = names[choices.machine]
    ids = _ids(frame, choices, usable)
    made = pl.DataFrame(
        [
            ids.alias(TRANSACTION_ID),
            times.filter(usable).cast(pl.Datetime("us")).alias(EVENT_TIME),
            machines.filter(usable).alias(key),
            *(values.alias(names[source]) for source, values in numbers.items()),
        ]
    ).sort(EVENT_TIME, maintain_order=True)
    sources = {
        EVENT_TIME: choices.time,
        key: choices.machine,
        **{names[source]: source for source in numbers},
    }
    if choices.id is not None:
        sources[TRANSACTION_ID] = choices.id
    return ReadingTable(
        frame=made,
        key=key,
        sensors=tuple(names[source] for source in numbers),
        ranges={names[source]: _range(values) for source, values in numbers.items()},
        aliases={ours: theirs for ours, theirs in sources.items() if ours != theirs},
        excluded=excluded,
        notes=tuple(notes),
    )


def _example(column: pl.Series) -> str:
    """Show one of the values of a column, if it has any."""
    known = column.drop_nulls()
    return f", such as {known[0]!r:.40}" if len(known) else ""


def _derived(name: str) -> tuple[str, ...]:
    """Return the names of a sensor's features, and of its reason codes."""
    return name.upper(), *sensor_features(name)


def _sensor(column: pl.Series) -> pl.Series | str:
    """Return the numbers of a column, or the reason why it is no sensor."""
    import polars as pl

    if column.dtype.is_temporal():
        return "holds times"
    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object):
        return f"holds {column.dtype}, not single values"
    found = as_numbers(column)
    if found.texts:
        return f"holds texts, such as {found.example!r:.40}"
    known = found.values.drop_nulls()
    if not len(known):
        return "holds no numbers"
    if known.n_unique() == 1:
        return "has the same number in every row"
    return found.values


def _range(values: pl.Series) -> tuple[float, float]:
    """
    Return the valid range: ten times what was seen, on both sides of 0.

    Unlike an amount, a temperature that was never below 0 may be so in winter.
    """
    seen = float(np.abs(values.drop_nulls().to_numpy()).max())
    decimals = MAX_DECIMALS if 10 * seen <= largest_number(MAX_DECIMALS) else 0
    _, most = bounds(0.0, seen, decimals=decimals)
    return -most, most


def _ids(frame: pl.DataFrame, choices: ReadingChoices, usable: pl.Series) -> pl.Series:
    """Return an id of each usable reading."""
    import polars as pl

    if choices.id is None:
        return pl.Series([str(at) for at in range(1, int(usable.sum()) + 1)])
    column = frame[choices.id].filter(usable)
    if not are_ids(column):
        raise ArgumentError("id", f"{choices.id!r} has the same id in two rows")
    return as_text(column)
