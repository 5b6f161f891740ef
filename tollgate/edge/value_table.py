"""
Hold the values of a store in tables, so that a small change is a small write.

The windows of an entity are one value, up to some 48 KiB: a head, and its events in
order. A decision adds an event at the end, and the oldest ones leave. So the value's
row has the head and the newest bytes (the tail); older bytes are in parts of one
size, which do not change: the oldest ones go when all of their bytes have left. The row
also says how many bytes of the first part have left.

A value that changes elsewhere, or has another form, is written as a whole. What is read
is always what was written, whatever the bytes mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

PART_BYTES = 2_048
_MOST_TAIL = PART_BYTES + 1_536  # with the head, a row fits on a page
HEAD_BYTES = 32  # `HEADER` of the windows' values
MARK_BYTES = 32  # of the first event, by which it is found in the value before
TABLES = """
CREATE TABLE entries(
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, value NOT NULL, end_ms INTEGER,
    number INTEGER NOT NULL, first INTEGER NOT NULL, parts INTEGER NOT NULL,
    gone INTEGER NOT NULL
);
CREATE TABLE parts(
    entry INTEGER, number INTEGER, raw BLOB NOT NULL, PRIMARY KEY (entry, number)
) WITHOUT ROWID;
CREATE TRIGGER entry_ends AFTER DELETE ON entries WHEN OLD.parts > 0
    BEGIN DELETE FROM parts WHERE entry = OLD.id; END;
"""

Value = bytes | set[bytes]


class Entry(msgspec.Struct, frozen=True):
    """
    A value, and what belongs to it.

    Attributes:
        value: Bytes, or the ids of a list.
        end_ms: When it ends, ms since the epoch.
        number: The newest row of the log whose change it has.
    """

    value: Value
    end_ms: int
    number: int


class _Row(msgspec.Struct, frozen=True):
    """
    A row of `entries`.

    Attributes:
        value: Head and tail of the value; text for the ids of a list.
        first: Number of the oldest part.
        parts: How many there are.
        gone: Bytes of the oldest part that have left.
    """

    id: int
    value: bytes | str
    end_ms: int
    number: int
    first: int = 0
    parts: int = 0
    gone: int = 0


class ValueTable:
    """
    Read and write values by key.

    Args:
        database: Has the tables of `TABLES`; each write belongs to its transaction.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._run = database.execute

    def read(self, key: bytes) -> Entry | None:
        """Return the value of a key, None without one."""
        row = self._find(key)
        if row is None:
            return None
        value: Value
        if isinstance(row.value, str):
            value = set(map(bytes.fromhex, row.value.split()))
        else:
            value = self._whole(row, row.value)
        return Entry(value, row.end_ms, row.number)

    def write(self, key: bytes, entry: Entry) -> None:
        """Write the value of a key."""
        row = self._find(key)
        if isinstance(entry.value, set):
            text = " ".join(sorted(map(bytes.hex, entry.value)))
            self._rewrite(key, row, text, entry)
        elif row is None or not self._change(row, entry.value, entry):
            self._rewrite(key, row, entry.value, entry)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over all keys, in their order."""
        for (key,) in self._run("SELECT key FROM entries ORDER BY key"):
            yield key

    def _find(self, key: bytes) -> _Row | None:
        found = self._run(
            "SELECT id, value, end_ms, number, first, parts, gone FROM entries "
            "WHERE key = ?",
            (key,),
        ).fetchone()
        return None if found is None else _Row(*found)

    def _older(self, row: _Row) -> bytes:
        """Read the bytes in parts."""
        if not row.parts:
            return b""
        found = self._run(
            "SELECT raw FROM parts WHERE entry = ? ORDER BY number", (row.id,)
        )
        return b"".join([raw for (raw,) in found])[row.gone :]

    def _whole(self, row: _Row, value: bytes) -> bytes:
        if not row.parts:
            return value
        return value[:HEAD_BYTES] + self._older(row) + value[HEAD_BYTES:]

    def _change(self, row: _Row, value: bytes, entry: Entry) -> bool:
        """Write a value over its old one; return False if bytes in parts change."""
        if isinstance(row.value, str):
            return False
        head, body = value[:HEAD_BYTES], value[HEAD_BYTES:]
        older = self._older(row)
        left = 0
        if row.parts:
            left = older.find(body[:MARK_BYTES])
            if left < 0 or body[: len(older) - left] != older[left:]:
                return False
        gone = row.gone + left
        dropped, gone = divmod(gone, PART_BYTES)
        dropped = min(dropped, row.parts)
        first, parts = row.first + dropped, row.parts - dropped
        if not parts:
            gone = 0
        tail = body[len(older) - left :]
        while len(tail) > _MOST_TAIL:
            self._run(
                "INSERT INTO parts VALUES (?, ?, ?)",
                (row.id, first + parts, tail[:PART_BYTES]),
            )
            tail, parts = tail[PART_BYTES:], parts + 1
        if dropped:
            self._run(
                "DELETE FROM parts WHERE entry = ? AND number < ?", (row.id, first)
            )
        self._run(
            "UPDATE entries SET value = ?, end_ms = ?, number = ?, first = ?, "
            "parts = ?, gone = ? WHERE id = ?",
            (head + tail, entry.end_ms, entry.number, first, parts, gone, row.id),
        )
        return True

    def _rewrite(
        self, key: bytes, row: _Row | None, value: bytes | str, entry: Entry
    ) -> None:
        """Write a whole value."""
        if row is not None:
            self._run("DELETE FROM entries WHERE id = ?", (row.id,))
        whole = isinstance(value, str) or len(value) <= HEAD_BYTES + _MOST_TAIL
        end_ms, number = entry.end_ms, entry.number
        made = self._run(
            "INSERT INTO entries(key, value, end_ms, number, first, parts, gone) "
            "VALUES (?, ?, ?, ?, 0, 0, 0)",
            (key, value if whole else b"", end_ms, number),
        ).lastrowid
        if not whole and isinstance(value, bytes) and made is not None:
            self._change(_Row(made, b"", end_ms, number), value, entry)
