"""
Hold the values of a device that changed last, and describe each change in bytes.

A value changes in memory first. The bytes that describe the change go to the log, which
is on disk before the decision is answered; the value itself goes to its table later,
with all that changed meanwhile. After a kill, the table and the log have every value
(`redo`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np

from tollgate.edge.value_table import (
    HEAD_BYTES,
    MARK_BYTES,
    Entry,
    Value,
    ValueTable,
)

_MOST_CLEAN_BYTES = 1 << 20  # of values that the table has, too
_ENTRY_BYTES = 200  # of objects and a key

_Held = tuple[Value, int]  # a value, and when it ends


class _Change(msgspec.Struct, array_like=True):
    """
    How a value changes: head, then some bytes of the value before, then tail.

    Attributes:
        start, length: The bytes of the value before that stay, at their place in it.
        ids: Of a list; None for bytes.
    """

    key: bytes
    end_ms: int
    head: bytes
    start: int
    length: int
    tail: bytes
    ids: list[bytes] | None = None


_DECODE = msgspec.msgpack.Decoder(list[_Change]).decode
_ENCODE = msgspec.msgpack.Encoder().encode


class ValueCache:
    """
    Values by key, as a dictionary has them: `(value, end_ms)`.

    Changes since the last `commit` can be taken back. One thread at a time may use it.

    Args:
        table: Has all values but the fresh ones.

    Attributes:
        fresh_bytes: Size of the values that the table lacks.
    """

    def __init__(self, table: ValueTable) -> None:
        self._table = table
        self._fresh: dict[bytes, _Held] = {}
        self._clean: dict[bytes, _Held | None] = {}  # None: the table has none
        self._clean_bytes = 0
        self.fresh_bytes = 0
        self._changes: list[_Change] = []
        self._before: list[tuple[bytes, _Held | None]] = []  # fresh before each change

    def get(self, key: bytes, default: tuple[None, int], /) -> _Held | tuple[None, int]:
        """Return the value of a key and when it ends."""
        found = self._found(key)
        return default if found is None else found

    def __setitem__(self, key: bytes, held: _Held, /) -> None:
        before = self._found(key)
        self._changes.append(_difference(key, before, held))
        self._before.append((key, self._fresh.get(key)))
        self._set_fresh(key, held)

    def __len__(self) -> int:
        return sum(1 for _ in self._keys())

    def items(self) -> Iterator[tuple[bytes, _Held]]:
        """Iterate over all keys and their values."""
        for key in self._keys():
            found = self._found(key)
            if found is not None:
                yield key, found

    def _keys(self) -> Iterator[bytes]:
        yield from self._fresh
        for key in self._table:
            if key not in self._fresh:
                yield key

    @property
    def changes(self) -> bytes:
        """Return the changes since the last commit, for `redo`; empty without any."""
        return _ENCODE(self._changes) if self._changes else b""

    def mark(self) -> int:
        """Return a mark for `undo`: the number of changes since the last commit."""
        return len(self._changes)

    def undo(self, mark: int = 0) -> None:
        """Take back the changes since a mark, or since the last commit."""
        while len(self._before) > mark:
            key, held = self._before.pop()
            if held is None:
                self.fresh_bytes -= _size(self._fresh.pop(key))
            else:
                self._set_fresh(key, held)
        del self._changes[mark:]

    def commit(self) -> None:
        """Keep the changes: the log has them."""
        self._before.clear()
        self._changes.clear()

    def clear(self) -> None:
        """Forget all that the table does not have."""
        self._fresh.clear()
        self._clean.clear()
        self._clean_bytes = self.fresh_bytes = 0
        self.commit()

    def redo(self, changes: bytes, *, number: int) -> None:
        """
        Apply the changes of a row of the log that the table does not have.

        Raises:
            ValueError: The row does not belong to these values.
        """
        for one in _DECODE(changes):
            if one.key not in self._fresh:
                entry = self._table.read(one.key)
                if entry is not None and entry.number >= number:
                    continue
            self._set_fresh(one.key, (_applied(one, self._found(one.key)), one.end_ms))

    def fresh_keys(self, count: int | None = None) -> list[bytes]:
        """Return keys whose values the table lacks, the oldest change first."""
        return list(islice(self._fresh, count))

    def is_fresh(self, key: bytes) -> bool:
        """Return whether the table lacks the value of a key."""
        return key in self._fresh

    def write(self, keys: Iterable[bytes], *, number: int) -> None:
        """Write fresh values to the table; they have the changes up to a number."""
        for key in keys:
            if key in self._fresh:
                value, end_ms = self._fresh[key]
                self._table.write(key, Entry(value, end_ms, number))

    def note_written(self, keys: Sequence[bytes]) -> None:
        """Take values as written: the table has them on disk."""
        for key in keys:
            held = self._fresh.pop(key, None)
            if held is not None:
                self.fresh_bytes -= _size(held)
                self._set_clean(key, held)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop values whose rows were deleted from the table."""
        for key in keys:
            if key in self._clean:
                self._clean_bytes -= _size(self._clean.pop(key))

    def _found(self, key: bytes) -> _Held | None:
        if key in self._fresh:
            return self._fresh[key]
        if key in self._clean:
            return self._clean[key]
        entry = self._table.read(key)
        found = None if entry is None else (entry.value, entry.end_ms)
        self._set_clean(key, found)
        return found

    def _set_fresh(self, key: bytes, held: _Held) -> None:
        old = self._fresh.get(key)
        self.fresh_bytes += _size(held) - (0 if old is None else _size(old))
        self._fresh[key] = held

    def _set_clean(self, key: bytes, held: _Held | None) -> None:
        self.forget((key,))  # the newest are at the end
        self._clean[key] = held
        self._clean_bytes += _size(held)
        while self._clean_bytes > _MOST_CLEAN_BYTES:
            oldest = next(iter(self._clean))
            self._clean_bytes -= _size(self._clean.pop(oldest))


def _size(held: _Held | None) -> int:
    """Estimate the memory of a value, bytes."""
    if held is None:
        return _ENTRY_BYTES
    value = held[0]
    # A list must not push all else out.
    return _ENTRY_BYTES + (0 if isinstance(value, set) else len(value))


def _difference(key: bytes, before: _Held | None, held: _Held) -> _Change:
    """Describe how a value changes: windows lose their oldest events, and get one."""
    value, end_ms = held
    if isinstance(value, set):
        return _Change(key, end_ms, b"", 0, 0, b"", sorted(value))
    old = b"" if before is None else before[0]
    start = -1
    if isinstance(old, bytes) and len(value) >= HEAD_BYTES + MARK_BYTES:
        start = old.find(value[HEAD_BYTES : HEAD_BYTES + MARK_BYTES], HEAD_BYTES)
    if isinstance(old, set) or start < 0:
        return _Change(key, end_ms, b"", 0, 0, value)
    length = _common(old[start:], value[HEAD_BYTES:])
    tail = value[HEAD_BYTES + length :]
    return _Change(key, end_ms, value[:HEAD_BYTES], start, length, tail)


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes two values have in common at their beginning."""
    size = min(len(one), len(other))
    if not size:
        return 0
    differ = np.frombuffer(one, np.uint8, size) != np.frombuffer(other, np.uint8, size)
    first = int(differ.argmax())
    return first if differ[first] else size


def _applied(change: _Change, before: _Held | None) -> Value:
    """
    Return a value after a change.

    Raises:
        ValueError: The value before lacks bytes that stay.
    """
    if change.ids is not None:
        return set(change.ids)
    old = b"" if before is None else before[0]
    end = change.start + change.length
    if change.length and (isinstance(old, set) or len(old) < end):
        raise ValueError(f"the log changes a value that is not there: {change.key!r}")
    stays = b"" if isinstance(old, set) else old[change.start : end]
    return change.head + stays + change.tail
