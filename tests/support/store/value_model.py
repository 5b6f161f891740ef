"""An entity value in plain Python, and the Lua function on one entity of a Redis."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import ENTRY
from tollgate.store.redis.redis_store import Mode, RedisStore
from tollgate.store.store_events import (
    Call,
    Labels,
    Packer,
    Purchases,
    label_entries,
    purchase_entries,
)

APPLIED, DUPLICATE, TOO_LATE = 1, 2, 3

HORIZON_US, CAP = 1_000_000, 12


@dataclass(frozen=True)
class Event:
    """A purchase (`label` None) or a label of one."""

    transaction_id: bytes
    time_us: int
    cents: int = 0
    label: int | None = None
    label_time_us: int = 0
    revision: int = 0

    @property
    def hash(self) -> bytes:
        """The event's identity."""
        return hashlib.blake2b(self.transaction_id, digest_size=8).digest()


@dataclass
class Model:
    """One entity value as the contract describes it: a list of entries, and counts."""

    horizon_us: int = HORIZON_US
    cap: int = CAP
    entries: list[dict] = field(default_factory=list)
    watermark_us: int = 0
    overflow: int = 0
    dropped_us: int = 0
    touched: bool = False
    full: bool = False  # the last batch was more than there was room for

    def apply(self, events: list[Event]) -> list[int]:
        """Apply a batch in its order, then trim once; a status per event."""
        statuses = [self._apply(event) for event in events]
        if any(status == APPLIED for status in statuses):
            self.touched = True
            oldest, first = self.watermark_us - self.horizon_us, self._first_us()
            self.entries = [one for one in self.entries if one["time"] >= first]
            self.full = len(self.entries) > self.cap
            while len(self.entries) > self.cap and self.entries[0]["time"] < oldest:
                del self.entries[0]
            while len(self.entries) > self.cap:
                self.dropped_us = self.entries.pop(0)["time"]
                self.overflow += 1
        return statuses

    def _apply(self, event: Event) -> int:
        known = [one for one in self.entries if one["hash"] == event.hash]
        if known:
            (entry,) = known
            if event.label is None and not entry["purchase"]:
                entry |= {"purchase": 1, "time": event.time_us, "cents": event.cents}
            elif event.label is not None and (
                not entry["labelled"] or event.revision > entry["revision"]
            ):
                entry |= self._label(event)
            else:
                return DUPLICATE
        elif event.time_us < self._first_us() or (
            self.overflow and event.time_us <= self.dropped_us
        ):
            return TOO_LATE
        else:
            one = event.transaction_id
            entry = {
                "time": event.time_us,
                "order": bytes([len(one)]) + one[:15].ljust(15, b"\0"),
                "hash": event.hash,
                "cents": event.cents,
                "purchase": int(event.label is None),
                "labelled": 0,
                "fraud": 0,
                "revision": 0,
                "label_time": 0,
            }
            if event.label is not None:
                entry |= self._label(event)
            self.entries.append(entry)
        self.entries.sort(key=lambda one: (one["time"], one["order"], one["hash"]))
        if event.label is None:
            self.watermark_us = max(self.watermark_us, event.time_us)
        return APPLIED

    def _first_us(self) -> int:
        """Round the begin of the horizon down; older entries are not stored."""
        lot = 2 ** int(math.log2(max(self.horizon_us // 8, 1)))
        return (self.watermark_us - self.horizon_us) // lot * lot

    def _label(self, event: Event) -> dict:
        return {
            "labelled": 1,
            "fraud": int(event.label == 1),
            "revision": event.revision,
            "label_time": event.label_time_us,
        }

    def packed(self) -> bytes:
        """Lay the value out; empty when nothing was ever applied."""
        if not self.touched:
            return b""
        body = b"".join(
            struct.pack("<q", one["time"])
            + one["order"]
            + one["hash"]
            + struct.pack(
                "<IIq",
                one["cents"],
                one["purchase"]
                | one["labelled"] << 1
                | one["fraud"] << 2
                | one["revision"] << 8,
                one["label_time"],
            )
            for one in self.entries
        )
        count, checksum = len(self.entries), 0
        for _ in range(2):  # with a checksum of zero it is what the checksum must be
            head = struct.pack("<BBHI", 1, 48, 0, checksum)
            head += struct.pack(
                "<IIqq", self.overflow, count, self.watermark_us, self.dropped_us
            )
            value = head + body
            words = struct.unpack(f"<{len(value) // 4}I", value)
            checksum = checksum or sum(words) % 2**32
        return value


class Lua:
    """The function on one entity of the product's first kind, in a real Redis."""

    def __init__(self, spec: FeatureSpec, store: RedisStore) -> None:
        one = msgspec.structs.replace(
            spec.entities[0], horizon_us=HORIZON_US, cap=CAP, name="card"
        )
        self.packer = Packer(msgspec.structs.replace(spec, entities=(one,)))
        self.store = store

    def call(self, events: list[Event], *, owners: list[bytes] | None = None) -> Call:
        """Pack events of one or more cards."""
        entries = np.zeros(len(events), ENTRY)  # concatenate would swap its bytes
        for n, event in enumerate(events):
            entries[n : n + 1] = self._entry(event)
        return self.packer.pack(entries, [owners or [b"card"] * len(events)])

    def apply(
        self, events: list[Event], mode: Mode = Mode.WRITE
    ) -> tuple[bytes, list[int]]:
        """Apply events to the one card; its value and the statuses."""
        ((values, statuses),) = self.store.apply([(self.call(events), mode)])
        return (values[0] if values else b""), list(statuses)

    def _entry(self, event: Event) -> np.ndarray:
        same = [event.transaction_id], [[b"card"]], np.array([event.time_us])
        if event.label is None:
            return purchase_entries(Purchases(*same, np.array([event.cents])))
        return label_entries(
            Labels(
                *same,
                label=np.array([event.label], np.int8),
                label_time_us=np.array([event.label_time_us]),
                revision=np.array([event.revision]),
            )
        )
