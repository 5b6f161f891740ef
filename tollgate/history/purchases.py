"""Purchases as checked columns, and the conversion of a table to them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import columns
from tollgate.history.table import read_table, rename_aliases
from tollgate.schema import (
    AMOUNT,
    EVENT_TIME,
    ITEM,
    MAX_ID_BYTES,
    MIN_EVENT_TIME_US,
    TRANSACTION_ID,
)

if TYPE_CHECKING:
    import polars as pl

I64 = npt.NDArray[np.int64]


class History(msgspec.Struct, frozen=True):
    """
    Hold N purchases as columns.

    Attributes:
        source: File they came from.
        transaction_id: Unique ids.
        entity_id: Ids by entity key (`customer_id`, …).
        event_time_us: int64 [N].
        cents: int64 [N].
        label: 1 fraud, 0 legitimate, -1 not known; int8 [N].
        label_time_us: Time at which the label became known; the purchase's own time
            where the file has no such column, or the label is not known; int64 [N].
        fields: Declared fields by name, as tollgate/features/fields.py has them; int64
            [N] each.
        arrival_us: Time at which each purchase arrived, at or after its own; None if
            every purchase arrived in its turn; int64 [N].
    """

    source: str
    transaction_id: list[bytes]
    entity_id: dict[str, list[bytes]]
    event_time_us: I64
    cents: I64
    label: npt.NDArray[np.int8]
    label_time_us: I64
    fields: dict[str, I64] = {}
    arrival_us: I64 | None = None

    def __len__(self) -> int:
        return len(self.transaction_id)

    def entity_codes(self, key: str) -> I64:
        """Number the distinct ids of an entity; int64 [N], dense from zero."""
        number: dict[bytes, int] = {}
        codes = [number.setdefault(one, len(number)) for one in self.entity_id[key]]
        return np.array(codes, np.int64)

    def take(self, rows: I64 | slice) -> History:
        """Select rows, by position."""
        index = np.arange(len(self))[rows]
        return History(
            source=self.source,
            transaction_id=[self.transaction_id[row] for row in index],
            entity_id={
                key: [column[row] for row in index]
                for key, column in self.entity_id.items()
            },
            event_time_us=self.event_time_us[index],
            cents=self.cents[index],
            label=self.label[index],
            label_time_us=self.label_time_us[index],
            fields={name: column[index] for name, column in self.fields.items()},
            arrival_us=None if self.arrival_us is None else self.arrival_us[index],
        )


def concatenate(histories: Sequence[History]) -> History:
    """Join one or more histories of one product, in their order."""
    if len(histories) == 1:
        return histories[0]
    first = histories[0]
    fields = [name for name in first.fields if all(name in h.fields for h in histories)]
    arrivals = [h.arrival_us for h in histories if h.arrival_us is not None]
    complete = len(arrivals) == len(histories)
    return History(
        source=", ".join(one.source for one in histories),
        transaction_id=[row for one in histories for row in one.transaction_id],
        entity_id={
            key: [row for one in histories for row in one.entity_id[key]]
            for key in first.entity_id
        },
        event_time_us=np.concatenate([one.event_time_us for one in histories]),
        cents=np.concatenate([one.cents for one in histories]),
        label=np.concatenate([one.label for one in histories]),
        label_time_us=np.concatenate([one.label_time_us for one in histories]),
        fields={
            name: np.concatenate([one.fields[name] for one in histories])
            for name in fields
        },
        arrival_us=np.concatenate(arrivals) if complete else None,
    )


def read_history(
    path: Path, *, spec: FeatureSpec, arrival: str | None = None
) -> History:
    """
    Read a history and check every value.

    `arrival` names a column with the time at which each purchase arrived; where it is
    null, the purchase arrived at its own time.

    Without entities, purchases are independent: then ids and times may be left out.
    Rows are numbered from 1, and all have one time, unless a calendar feature needs
    theirs. Readings of machines without ids get them from machine and time.

    Raises:
        InputError: A column is missing, a value is null (other than of a declared
            field) or out of range, an id appears twice; the message names file, column,
            row and value.
    """
    table = read_table(path)
    return history_of(table, spec=spec, source=str(path), arrival=arrival)


def history_of(
    frame: pl.DataFrame, *, spec: FeatureSpec, source: str, arrival: str | None = None
) -> History:
    """Convert a table to a history; like `read_history`."""
    frame = _add_missing_columns(rename_aliases(frame, spec), spec, source=source)
    needed = [field.name for field in spec.fields if field.use == "features"]
    needed += [arrival] if arrival else []
    needed += [ITEM] if spec.history is not None and ITEM in spec.history.of else []
    for name in (*spec.columns, *needed):
        if name not in frame.columns:
            raise InputError(
                source,
                f"column missing; the file has {', '.join(frame.columns)}",
                where=name,
            )
    for name in spec.columns:
        columns.refuse(frame[name].is_null(), frame[name], "is null", source)
    ids = {name: columns.ids(frame[name], source=source) for name in spec.id_names}
    transaction_id = ids.pop(TRANSACTION_ID)
    if transaction_id.n_unique() < len(transaction_id):
        again = ~transaction_id.is_first_distinct()
        columns.refuse(again, transaction_id, "appears twice", source)
    cents = np.zeros(len(frame), np.int64)
    if spec.amount:
        cents = columns.cents(frame[AMOUNT], source=source)
    time_us = columns.times_us(frame[EVENT_TIME], source=source)
    label = columns.labels(frame, source=source)
    return History(
        source=source,
        transaction_id=_encoded(transaction_id),
        entity_id={key: _encoded(column) for key, column in ids.items()},
        event_time_us=time_us,
        cents=cents,
        label=label,
        label_time_us=columns.label_times_us(
            frame, label=label, event_time_us=time_us, source=source
        ),
        fields={
            field.name: columns.field(frame[field.name], field, source=source)
            for field in spec.event_fields
            if field.name in frame.columns
        },
        arrival_us=columns.arrival_times_us(
            frame[arrival], event_time_us=time_us, source=source
        )
        if arrival
        else None,
    )


def reading_ids(machines: pl.Series, times_us: pl.Series) -> pl.Series:
    """
    Return an id of each reading, from its machine and its time.

    The same reading has the same id in another file. A further reading of a machine at
    the same time gets a number.

    Args:
        machines: Ids of machines; String without nulls.
        times_us: µs since the epoch; Int64 without nulls.
    """
    import polars as pl

    names = machines.unique()
    short = pl.Series([_short(name) for name in names], dtype=pl.String)
    again = pl.int_range(1, pl.len() + 1).over("machine", "time")
    plain = pl.format("{}@{}", "machine", "time")
    numbered = pl.format("{}#{}", plain, again)
    return (
        pl.DataFrame({"machine": machines.replace(names, short), "time": times_us})
        .select(pl.when(again == 1).then(plain).otherwise(numbered))
        .to_series()
        .alias(TRANSACTION_ID)
    )


def _short(name: str) -> str:
    """Hash a long name, so that an id which begins with it fits into a request."""
    content = name.encode()
    if len(content) <= MAX_ID_BYTES // 2:
        return name
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _add_missing_columns(
    frame: pl.DataFrame, spec: FeatureSpec, *, source: str
) -> pl.DataFrame:
    """Add ids to readings, and ids and times to independent rows, that lack them."""
    import polars as pl

    of_one = spec.rows_noun == "readings" or spec.history is not None
    if of_one and TRANSACTION_ID not in frame.columns:
        one = 0 if spec.history is None else spec.history.entity
        key = spec.entities[one].key
        if {key, EVENT_TIME} <= set(frame.columns):
            times_us = pl.Series(columns.times_us(frame[EVENT_TIME], source=source))
            machines = columns.ids(frame[key], source=source)
            return frame.with_columns(reading_ids(machines, times_us))
    if spec.entities:
        return frame
    added = []
    if TRANSACTION_ID not in frame.columns:
        numbers = pl.int_range(1, len(frame) + 1, eager=True)
        added.append(numbers.cast(pl.String).alias(TRANSACTION_ID))
    timed = any(one.calendar for one in spec.features)
    if EVENT_TIME not in frame.columns and not timed:
        times = pl.repeat(MIN_EVENT_TIME_US, len(frame), dtype=pl.Int64, eager=True)
        added.append(times.alias(EVENT_TIME))
    return frame.with_columns(added)


def _encoded(column: pl.Series) -> list[bytes]:
    return [one.encode() for one in column.to_list()]
