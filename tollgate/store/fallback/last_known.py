"""
Cache the last known values of entities for the time when the store is unavailable.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

_OVERHEAD_BYTES = 250  # bytes of key, pair and position in the order besides the value
_MAX_HASH = 2**32


class LastKnownValues(msgspec.Struct, frozen=True):
    """
    Hold the known values of K keys.

    Attributes:
        values: Packed entity values; empty bytes for one that is not known.
        known: bool [K].
        age_us: Time since the store returned it; int64 [K], 0 for one that is not
            known.
    """

    values: list[bytes]
    known: npt.NDArray[np.bool_]
    age_us: npt.NDArray[np.int64]


class LastKnown:
    """
    Cache packed entity values by store key, as the store last returned them.

    When it is full, the least recently used value leaves first. A value is used up to
    its age limit, less up to `spread` of it, by its key: so values that were read
    together do not all expire at once.

    `put` only queues values until `settle` or the next access: the step has to answer
    first, and has time to settle while the store works on the next batch.

    Args:
        max_bytes: Largest size, keys and bookkeeping included.
        max_age_s: Largest age of a value.
        clock: Monotonic, seconds.
        spread: Part of the age limit by which keys differ.

    Attributes:
        bytes_held: Settled values with their keys and bookkeeping.
    """

    def __init__(
        self,
        max_bytes: int,
        max_age_s: float,
        *,
        clock: Callable[[], float],
        spread: float = 0.2,
    ) -> None:
        self.bytes_held = 0
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._spread = spread
        self._entries: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._queued: tuple[Sequence[bytes], Sequence[bytes], float] | None = None

    def __len__(self) -> int:
        self.settle()
        return len(self._entries)

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """
        Queue values that the store returned just now; neither list may change later.
        """
        self.settle()
        self._queued = keys, values, self._clock()

    def settle(self) -> None:
        """Insert the values that were put last."""
        if self._queued is None:
            return
        keys, values, now_s = self._queued
        self._queued = None
        entries, size = self._entries, self.bytes_held
        get, move_to_end = entries.get, entries.move_to_end
        for key, value in zip(keys, values, strict=True):
            old = get(key)
            entries[key] = (value, now_s)
            if old is None:
                size += len(value) + len(key) + _OVERHEAD_BYTES
            else:
                size += len(value) - len(old[0])
                move_to_end(key)
        self.bytes_held = size
        self._evict()

    def find(self, keys: Sequence[bytes]) -> LastKnownValues:
        """Look up keys; drop values past their age limit."""
        self.settle()
        now_s = self._clock()
        values = [b""] * len(keys)
        known = np.zeros(len(keys), np.bool_)
        age_us = np.zeros(len(keys), np.int64)
        for place, key in enumerate(keys):
            entry = self._entries.get(key)
            if entry is None:
                continue
            age_s = now_s - entry[1]
            if age_s > self._limit_s(key):
                self._forget(key)
                continue
            self._entries.move_to_end(key)
            values[place] = entry[0]
            known[place] = True
            age_us[place] = round(age_s * 1e6)
        return LastKnownValues(values=values, known=known, age_us=age_us)

    def held(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the values of keys, of any age; empty bytes where there is none."""
        self.settle()
        get = self._entries.get
        found = [get(key) for key in keys]
        return [entry[0] if entry is not None else b"" for entry in found]

    def amend(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """
        Replace cached values with ones to which this process has added events.

        Their age stays that of the store's reply.
        """
        self.settle()
        for key, value in zip(keys, values, strict=True):
            entry = self._entries.get(key)
            if entry is not None:
                self._entries[key] = (value, entry[1])
                self.bytes_held += len(value) - len(entry[0])
        self._evict()

    def _limit_s(self, key: bytes) -> float:
        return self._max_age_s * (1 - self._spread * zlib.crc32(key) / _MAX_HASH)

    def _forget(self, key: bytes) -> None:
        value, _ = self._entries.pop(key)
        self.bytes_held -= len(value) + len(key) + _OVERHEAD_BYTES

    def _evict(self) -> None:
        while self.bytes_held > self._max_bytes:
            key, (value, _) = self._entries.popitem(last=False)
            self.bytes_held -= len(value) + len(key) + _OVERHEAD_BYTES
