"""
Tables: numbers by entity id from another system, such as a nightly score.

A table has rows (id, valid from, numbers). A purchase at time t takes the newest row of
its id with valid from <= t, unless that is older than the table allows. Offline, all
rows of the files are available; online, a value holds the newest few of one id.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.spec_definition import Table

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
# (table, column) -> a number for each purchase, NaN where there is none; [N].
TableColumns = Mapping[tuple[str, str], F64]

TABLE_VERSION = 1
# Today's row, the next one that is not valid yet, and two for late events.
SLOTS = 4
HEADER = np.dtype(
    [
        ("version", "u1"),
        ("slots", "u1"),
        ("columns", "<u2"),
        ("checksum", "<u4"),
        ("layout", "<u8"),
    ]
)
ALWAYS_US = 0  # valid from, of a row without that column: before every purchase
_EMPTY_US = np.iinfo(np.int64).max  # valid from, of a slot without a row


class TableRows(msgspec.Struct, frozen=True):
    """
    Hold M rows of a table.

    Attributes:
        source: File they came from.
        ids: Of the table's entity; [M].
        valid_us: Time from which a row is valid, µs; int64 [M].
        values: In the order of the table's columns, NaN for none; float64 [M, C].
    """

    source: str
    ids: list[bytes]
    valid_us: I64
    values: F64

    def __len__(self) -> int:
        return len(self.ids)


class Slots(msgspec.Struct, frozen=True):
    """
    Hold the rows of K ids, each with room for SLOTS, ascending.

    Attributes:
        valid_us: int64 [K, SLOTS]; the largest there is for an empty slot.
        values: float64 [K, SLOTS, C].
        corrupt: True for values that cannot be read, which hold nothing; bool [K].
    """

    valid_us: I64
    values: F64
    corrupt: Bool

    @classmethod
    def empty(cls, count: int, columns: int) -> Slots:
        """Return the slots of ids that have no rows."""
        return cls(
            valid_us=np.full((count, SLOTS), _EMPTY_US),
            values=np.full((count, SLOTS, columns), np.nan),
            corrupt=np.zeros(count, np.bool_),
        )

    def as_of(self, table: Table, code: I64, time_us: I64) -> F64:
        """
        Return the numbers that are valid at some moments.

        Args:
            table: The table.
            code: Index of the id, by purchase; int64 [N].
            time_us: Time of each purchase; int64 [N].

        Returns:
            float64 [N, C], NaN where no row is valid.
        """
        valid_us = self.valid_us[code]
        slot = (valid_us <= time_us[:, None]).sum(axis=1) - 1
        rows = np.arange(len(code))
        found = self.values[code, slot]
        held = _holds(table, valid_us[rows, slot], time_us) & (slot >= 0)
        return np.where(held[:, None], found, np.nan)

    def part(self, ids: slice) -> Slots:
        """Select the slots of some ids."""
        return Slots(
            valid_us=self.valid_us[ids],
            values=self.values[ids],
            corrupt=self.corrupt[ids],
        )

    def newest_us(self) -> I64:
        """Return the time from which the newest row of each id is valid; int64 [K]."""
        held = self.valid_us != _EMPTY_US
        newest: I64 = np.where(held, self.valid_us, ALWAYS_US).max(axis=1)
        return newest

    def with_slots(self, new: Slots) -> Slots:
        """Add the rows that other slots hold of the same ids."""
        owner, slot = np.nonzero(new.valid_us != _EMPTY_US)
        return self.joined(
            owner, valid_us=new.valid_us[owner, slot], values=new.values[owner, slot]
        )

    def joined(self, code: I64, *, valid_us: I64, values: F64) -> Slots:
        """
        Add rows; a row replaces one of the same time, and only the newest stay.

        Args:
            code: Index of the id, by row; int64 [M].
            valid_us: Time from which each is valid; distinct for one id; int64 [M].
            values: Their numbers; float64 [M, C].
        """
        count, _, width = self.values.shape
        there = self.valid_us != _EMPTY_US
        owner = np.concatenate([np.nonzero(there)[0], code])
        valid_us = np.concatenate([self.valid_us[there], valid_us])
        values = np.concatenate([self.values[there], values])
        order = np.lexsort((valid_us, owner))  # stable: new rows come last
        owner, valid_us, values = owner[order], valid_us[order], values[order]
        last = np.ones(len(owner), np.bool_)
        last[:-1] = (owner[1:] != owner[:-1]) | (valid_us[1:] != valid_us[:-1])
        owner, valid_us, values = owner[last], valid_us[last], values[last]
        counts = np.bincount(owner, minlength=count)
        ends = counts.cumsum()
        from_end = ends[owner] - np.arange(len(owner))  # 1 for the newest
        retained = from_end <= SLOTS
        place = np.minimum(counts, SLOTS)[owner] - from_end
        result = Slots.empty(count, width)
        result.valid_us[owner[retained], place[retained]] = valid_us[retained]
        result.values[owner[retained], place[retained]] = values[retained]
        return result


def _holds(table: Table, valid_us: I64, time_us: I64) -> Bool:
    if not table.max_age_us:
        return np.ones(len(time_us), np.bool_)
    return time_us - valid_us <= table.max_age_us


@functools.lru_cache(maxsize=64)
def _layout(columns: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            *HEADER.descr,
            ("valid_us", "<i8", (SLOTS,)),
            ("values", "<f8", (SLOTS, columns)),
        ]
    )


def pack_slots(table: Table, slots: Slots) -> list[bytes]:
    """Pack the rows of ids as the store holds them; one value each."""
    packed = np.zeros(len(slots.valid_us), _layout(len(table.columns)))
    packed["version"] = TABLE_VERSION
    packed["slots"] = SLOTS
    packed["columns"] = len(table.columns)
    packed["layout"] = table.layout
    packed["valid_us"] = slots.valid_us
    packed["values"] = slots.values
    packed["checksum"] = _sums(packed)
    size, body = packed.dtype.itemsize, packed.tobytes()
    return [body[at : at + size] for at in range(0, len(body), size)]


def unpack_slots(table: Table, values: Sequence[bytes]) -> Slots:
    """
    Unpack the store's values of ids; damaged, unknown and empty ones hold nothing.

    Args:
        table: The table.
        values: Empty bytes for an id that the store does not have; [K].
    """
    layout = _layout(len(table.columns))
    slots = Slots.empty(len(values), len(table.columns))
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    slots.corrupt[:] = sizes > 0
    (places,) = (sizes == layout.itemsize).nonzero()
    if not len(places):
        return slots
    joined = b"".join([values[at] for at in places.tolist()])
    packed = np.frombuffer(joined, layout)
    valid = (packed["version"] == TABLE_VERSION) & (packed["slots"] == SLOTS)
    valid &= (packed["layout"] == table.layout) & (packed["checksum"] == _sums(packed))
    retained = places[valid]
    slots.valid_us[retained] = packed["valid_us"][valid]
    slots.values[retained] = packed["values"][valid]
    slots.corrupt[retained] = False
    return slots


def _sums(packed: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """
    Return the sum of the 32-bit words of each value but its checksum, modulo 2^32; [K].
    """
    words = np.frombuffer(packed.tobytes(), "<u4").reshape(len(packed), -1)
    sums: npt.NDArray[np.uint32] = words.sum(axis=1, dtype=np.uint32)
    return sums - packed["checksum"].astype(np.uint32)


def join(table: Table, rows: TableRows, ids: Sequence[bytes], time_us: I64) -> F64:
    """
    Join the valid row to each purchase of a history.

    Args:
        table: The table.
        rows: All of its rows; no time twice for one id.
        ids: Of the table's entity; [N].
        time_us: int64 [N].

    Returns:
        float64 [N, C], NaN where no row is valid.
    """
    result = np.full((len(ids), len(table.columns)), np.nan)
    if not len(rows):
        return result
    number: dict[bytes, int] = {}
    owner = np.array([number.setdefault(one, len(number)) for one in rows.ids])
    wanted = np.array([number.get(one, -1) for one in ids], np.int64)
    # Times are replaced by their rank, so that id and time fit into one integer.
    moments = np.unique(rows.valid_us)
    base = len(moments) + 1
    key = owner * base + moments.searchsorted(rows.valid_us, "right")
    order = np.argsort(key, kind="stable")
    row_key = wanted * base + moments.searchsorted(time_us, "right")
    place = key[order].searchsorted(row_key, "right") - 1
    chosen = order[place]
    held = (place >= 0) & (owner[chosen] == wanted)
    held &= _holds(table, rows.valid_us[chosen], time_us)
    result[held] = rows.values[chosen[held]]
    return result


def columns_of(table: Table, values: F64) -> dict[tuple[str, str], F64]:
    """Return a table's numbers [N, C] by table and column."""
    return {
        (table.name, column): values[:, place]
        for place, column in enumerate(table.columns)
    }
