"""
A store in the memory of this process, with the bits of Redis.

apply.lua defines how a value changes; `apply_events` follows it event by event. The
store has the commands that a decision needs besides, and packs its content for a file.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from tollgate import compiled
from tollgate.errors import InputError, StoreError
from tollgate.features.windows.entity_entries import (
    ENTRY,
    HEADER,
    LABELLED,
    PURCHASE,
    REVISION_SHIFT,
    VALUE_VERSION,
    oldest_stored_us,
)
from tollgate.policy.hysteresis import apply_readings, unpack_settings
from tollgate.store.lua_function import LuaFunction
from tollgate.store.redis.redis_store import (
    HYSTERESIS,
    Answer,
    Command,
    Mode,
    RedisStore,
    WaitCallback,
    do_nothing,
)
from tollgate.store.store_events import ARGUMENTS, Call

_APPLIED, _DUPLICATE, _TOO_LATE, _FOREIGN = 1, 2, 3, 4  # status bytes of apply.lua
_WRAP = 1 << 32
_HEADER = struct.Struct("<BBxxIIIqq")  # the fields of HEADER
_ARGUMENTS = struct.Struct("<qHHIIHH")  # the fields of ARGUMENTS
_FLAGS = struct.Struct("<I")
_TIME = struct.Struct("<q")
_TIME_END, _ID, _FLAGS_AT, _LABEL_TIME = 8, slice(24, 32), 36, 40
assert (_HEADER.size, _ARGUMENTS.size) == (HEADER.itemsize, ARGUMENTS.itemsize)


def apply_events(
    value: bytes | None, events: bytes, *, horizon_us: int, cap: int, entry_bytes: int
) -> tuple[bytes | None, bool, bytes]:
    """
    Apply events to a value without tiles, as `merge` of apply.lua does.

    Args:
        value: Packed value of the entity; None for none.
        events: Entries, one after the other.
        horizon_us: Age, before the newest purchase, from which events leave; see
            `oldest_stored_us`.
        cap: Most events of the value.
        entry_bytes: Size of an entry with its columns.

    Returns:
        The value; whether it changed; a status byte per event.
    """
    body, overflow, watermark, dropped, checksum = b"", 0, 0, 0, 0
    foreign = value is not None and len(value) < _HEADER.size
    if value is not None and not foreign:
        version, size, checksum, overflow, _, watermark, dropped = _HEADER.unpack_from(
            value
        )
        body = value[_HEADER.size :]
        foreign = (
            version != VALUE_VERSION
            or size != entry_bytes
            or len(body) % entry_bytes != 0
        )
        count = len(body) // entry_bytes
        checksum -= _header_words(entry_bytes, overflow, count, watermark, dropped)
    changed, statuses = False, bytearray()
    for at in range(0, len(events), entry_bytes):
        event = events[at : at + entry_bytes]
        (time_us,) = _TIME.unpack_from(event)
        (flags,) = _FLAGS.unpack_from(event, _FLAGS_AT)
        old = -1 if foreign else _find(body, event[_ID], entry_bytes)
        status = _APPLIED
        if foreign:
            status = _FOREIGN
        elif old >= 0:
            stored = body[old : old + entry_bytes]
            merged = _merged(stored, event)
            if merged is None:
                status = _DUPLICATE
            else:
                head, tail = body[:old], body[old + entry_bytes :]
                if merged[:_TIME_END] == stored[:_TIME_END]:
                    body = head + merged + tail
                else:  # the label named another time than its purchase has
                    body = _inserted(head + tail, merged)
                checksum += _words(merged) - _words(stored)
                changed = True
        elif time_us < oldest_stored_us(watermark, horizon_us) or (
            overflow and time_us <= dropped
        ):
            status = _TOO_LATE
        else:
            body = _inserted(body, event)
            checksum += _words(event)
            changed = True
        if status == _APPLIED and flags & PURCHASE and time_us > watermark:
            watermark = time_us
        statuses.append(status)
    if not changed:
        return value, False, bytes(statuses)
    start, oldest = 0, watermark - horizon_us
    lot = oldest_stored_us(watermark, horizon_us)
    while start < len(body):
        (time_us,) = _TIME.unpack_from(body, start)
        if time_us >= lot:
            if len(body) - start <= cap * entry_bytes:
                break
            if time_us >= oldest:
                overflow, dropped = overflow + 1, time_us
        checksum -= _words(body[start : start + entry_bytes])
        start += entry_bytes
    body = body[start:]
    count = len(body) // entry_bytes
    checksum += _header_words(entry_bytes, overflow, count, watermark, dropped)
    header = _HEADER.pack(
        VALUE_VERSION,
        entry_bytes,
        checksum % _WRAP,
        overflow,
        count,
        watermark,
        dropped,
    )
    return header + body, True, bytes(statuses)


def _words(entry: bytes) -> int:
    """Return the sum of 32-bit words."""
    return sum(struct.unpack(f"<{len(entry) // 4}I", entry))


def _header_words(
    entry_bytes: int, overflow: int, count: int, watermark: int, dropped: int
) -> int:
    """Return the sum of a header's words without its checksum, modulo 2^32."""
    low, lowest = watermark % _WRAP, dropped % _WRAP
    high, highest = watermark // _WRAP, dropped // _WRAP
    layout = VALUE_VERSION + entry_bytes * 256
    return layout + overflow + count + low + high + lowest + highest


def _find(body: bytes, name: bytes, entry_bytes: int) -> int:
    """Return the position of the entry with an id hash, -1 without one."""
    at = body.find(name)
    while at >= 0 and (at - _ID.start) % entry_bytes:
        at = body.find(name, at + 1)
    return at - _ID.start if at >= 0 else -1


def _inserted(body: bytes, event: bytes) -> bytes:
    """Insert an event by its time, then its order key and id hash (big-endian)."""
    size = len(event)
    key = _TIME.unpack_from(event)[0], _order(event, 0)
    count = len(body) // size
    times = np.ndarray[Any, Any](count, "<i8", buffer=body, strides=(size,))
    at = int(times.searchsorted(key[0], side="right")) * size
    while at and (
        (_TIME.unpack_from(body, at - size)[0], _order(body, at - size)) > key
    ):
        at -= size
    return body[:at] + event + body[at:]


def _order(body: bytes, at: int) -> bytes:
    """Return what decides between entries of one time."""
    return body[at + _TIME_END : at + _ID.stop]


def _merged(stored: bytes, event: bytes) -> bytes | None:
    """Join a purchase and its label, or a newer label; None for a duplicate."""
    (has,) = _FLAGS.unpack_from(stored, _FLAGS_AT)
    (flags,) = _FLAGS.unpack_from(event, _FLAGS_AT)
    if flags & PURCHASE:
        if has & PURCHASE:
            return None
        packed = _FLAGS.pack(has + PURCHASE)
        label_time = stored[_LABEL_TIME : ENTRY.itemsize]
        return event[:_FLAGS_AT] + packed + label_time + event[ENTRY.itemsize :]
    if has & LABELLED and flags >> REVISION_SHIFT <= has >> REVISION_SHIFT:
        return None
    packed = _FLAGS.pack(flags + (has & PURCHASE))
    label_time = event[_LABEL_TIME : ENTRY.itemsize]
    return stored[:_FLAGS_AT] + packed + label_time + stored[ENTRY.itemsize :]


_MAGIC = b"tollgate store 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
NEVER_MS = 0  # end of a key that does not expire
_LEAST_SWEPT = 4_096  # keys

_Packed = list[tuple[bytes, bytes | list[bytes], int]]
_Held = tuple[bytes | set[bytes], int]  # a value, and its end, ms since the epoch


class Values(Protocol):
    """What the store needs of a dictionary."""

    def get(self, key: bytes, default: tuple[None, int], /) -> _Held | tuple[None, int]:
        """Return the value of a key."""

    def items(self) -> Iterable[tuple[bytes, _Held]]:
        """Iterate over keys and values."""

    def __setitem__(self, key: bytes, held: _Held, /) -> None: ...

    def __len__(self) -> int: ...


class MemoryStore(RedisStore):
    """
    Hold a store in this process; threads may share one.

    Keys expire as in Redis. Values with tiles need a Lua (`LuaFunction`).

    Args:
        content: The result of `pack`; None for an empty store.
        source: Names the content in errors, such as its file.
        clock_ms: The clock, ms since the epoch.
        values: Holds the content; None for a dictionary.

    Raises:
        InputError: The content is damaged, or of another version.
    """

    def __init__(
        self,
        content: bytes | None = None,
        *,
        source: object = "the store",
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        values: Values | None = None,
    ) -> None:
        self.deadline_s = 0.0
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._values: Values = dict[bytes, _Held]() if values is None else values
        self._sweep_at = _LEAST_SWEPT
        self._lua: LuaFunction | None = None
        if content is not None:
            self._values = {
                key: (value if isinstance(value, bytes) else set(value), end_ms)
                for key, value, end_ms in _unpacked(content, source)
            }

    def pack(self) -> bytes:
        """Pack all keys that have not expired, with their checksum."""
        with self._lock:
            self._sweep(self._clock_ms())
            items: _Packed = [
                (key, value if isinstance(value, bytes) else sorted(value), end_ms)
                for key, (value, end_ms) in self._values.items()
            ]
        body = msgspec.msgpack.encode(items)
        return _MAGIC + hashlib.sha256(body).digest() + body

    def flush(
        self,
        calls: list[tuple[Call, Mode]],
        *,
        extra_commands: Sequence[Command],
        on_wait: WaitCallback = do_nothing,
    ) -> tuple[list[Answer], list[Any]]:
        """
        Apply calls, and run commands after them; see `RedisStore.flush`.

        The reply to a command that this store lacks is a StoreError.
        """
        with self._lock:
            now_ms = self._clock_ms()
            self._sweep_if_due(now_ms)
            answers = [self._apply(call, mode, now_ms) for call, mode in calls]
            replies = [self._run_one(one, now_ms) for one in extra_commands]
        on_wait()
        return answers, replies

    def probe(self) -> bool:
        """Return True: it is always there."""
        return True

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _apply(self, call: Call, mode: Mode, now_ms: int) -> Answer:
        values = [self._bytes(key, now_ms) for key in call.keys]
        if call.forms:
            return self._apply_by_lua(call, mode, values=values, now_ms=now_ms)
        appended: dict[int, bytes] = {}
        if compiled.appends is not None:
            known = [value or b"" for value in values]
            plan = compiled.appends.plan_appends(call.arguments, call.events, known)
            appended = dict(plan[1]) if plan else {}
        settings = _ARGUMENTS.iter_unpack(call.arguments)
        found, statuses, start = [], [], 0
        for place, (horizon_us, cap, _, ttl_s, count, width, _) in enumerate(settings):
            stop = start + count * width
            value = appended.get(place)
            changed = value is not None
            status = bytes([_APPLIED])
            if not changed:
                value, changed, status = apply_events(
                    values[place],
                    call.events[start:stop],
                    horizon_us=horizon_us,
                    cap=cap,
                    entry_bytes=width,
                )
            if changed and mode is not Mode.DRY and value is not None:
                self._values[call.keys[place]] = value, now_ms + ttl_s * 1_000
            found.append(value or b"")
            statuses.append(status)
            start = stop
        reads = mode in (Mode.DRY, Mode.WRITE)
        return found if reads else [], b"".join(statuses)

    def _apply_by_lua(
        self, call: Call, mode: Mode, *, values: list[bytes | None], now_ms: int
    ) -> Answer:
        if self._lua is None:
            self._lua = LuaFunction()
        arguments = (mode.value, call.arguments, call.events, call.forms)
        found, statuses, changed = self._lua(call.keys, values, arguments)
        settings = _ARGUMENTS.iter_unpack(call.arguments)
        for key, (_, _, _, ttl_s, *_) in zip(call.keys, settings, strict=True):
            if key in changed:
                self._values[key] = changed[key], now_ms + ttl_s * 1_000
        return found, statuses

    def _run_one(self, command: Command, now_ms: int) -> Any:
        """Run one command as Redis does; return its reply."""
        name, key, *rest = command
        if name == b"MGET":
            return [self._bytes(one, now_ms) for one in (key, *rest)]
        if name == b"GET":
            return self._bytes(key, now_ms)
        if name == b"SET":
            return self._set(key, rest, now_ms)
        if name == b"SMISMEMBER":
            members = self._found(key, now_ms)
            return [int(isinstance(members, set) and one in members) for one in rest]
        if name == b"SADD":
            members = self._found(key, now_ms)
            before = members if isinstance(members, set) else set()
            self._values[key] = before | set(rest), NEVER_MS
            return len(before | set(rest)) - len(before)
        if name == b"EVALSHA" and key == HYSTERESIS.sha:
            return self._apply_readings(rest[1:], now_ms)
        return StoreError(f"a store in memory has no command {name!r}")

    def _apply_readings(self, arguments: Sequence[bytes], now_ms: int) -> bytes:
        """Apply readings as hysteresis.lua does."""
        key, mode, packed, readings = arguments
        settings, ttl_s = unpack_settings(packed)
        old = self._bytes(key, now_ms)
        state, evidence = apply_readings(old, readings, settings)
        if state is not None and state is not old and mode == Mode.WRITE.value:
            self._values[key] = state, now_ms + ttl_s * 1_000
        return evidence

    def _set(self, key: bytes, rest: list[Any], now_ms: int) -> bytes | None:
        value, *options = rest
        if b"NX" in options and self._found(key, now_ms) is not None:
            return None
        end_ms = NEVER_MS
        if b"PX" in options:
            end_ms = now_ms + int(options[options.index(b"PX") + 1])
        self._values[key] = value, end_ms
        return b"OK"

    def _found(self, key: bytes, now_ms: int) -> bytes | set[bytes] | None:
        value, end_ms = self._values.get(key, (None, NEVER_MS))
        if end_ms != NEVER_MS and end_ms <= now_ms:
            return None  # the sweep removes it
        return value

    def _bytes(self, key: bytes, now_ms: int) -> bytes | None:
        value = self._found(key, now_ms)
        return value if isinstance(value, bytes) else None

    def _sweep_if_due(self, now_ms: int) -> None:
        """Remove expired keys when the content has doubled since the last time."""
        if len(self._values) > self._sweep_at:
            self._sweep(now_ms)
            self._sweep_at = max(_LEAST_SWEPT, 2 * len(self._values))

    def _sweep(self, now_ms: int) -> None:
        """Remove expired keys."""
        self._values = {
            key: (value, end_ms)
            for key, (value, end_ms) in self._values.items()
            if end_ms == NEVER_MS or end_ms > now_ms
        }


def _unpacked(content: bytes, source: object) -> _Packed:
    start = len(_MAGIC)
    if content[:start] != _MAGIC:
        raise InputError(source, "is no store that this version of Tollgate wrote")
    digest, body = (
        content[start : start + _DIGEST_BYTES],
        content[start + _DIGEST_BYTES :],
    )
    if hashlib.sha256(body).digest() != digest:
        raise InputError(
            source, "is damaged: its checksum does not fit; restore a copy"
        )
    try:
        return msgspec.msgpack.decode(body, type=_Packed)
    except msgspec.MsgspecError as error:
        raise InputError(source, f"is damaged: {error}") from error
