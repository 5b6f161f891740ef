"""Build the Redis commands that store decisions for requests that are sent again."""

from __future__ import annotations

from collections import deque
from typing import cast

import msgspec

from tollgate import compiled
from tollgate.journal.decision_record import DecidedRows
from tollgate.schema import EARLIER_BYTES
from tollgate.store.redis.redis_store import Command
from tollgate.store.stored_decisions import (
    DECIDED_VERSION,
    pack_stored_decision,
    store_command,
    stored_decision_key,
)

MARGIN_US = 1_000_000  # the store's clock may lag by this much
_STALE_US = 60_000_000  # by then Redis has found the key itself
_MOST_BYTES = 64_000_000  # 10 minutes of 4,000 decisions a second
_AT_ONCE = 64  # keys read per call, plus two per decision stored


class StoreCommands:
    """
    Builds the commands that store decisions for a window, from their records.

    It also builds a read of each key a second after its window. Redis samples keys at
    random to find expired ones: for a millisecond at a time, and only as long as a
    tenth of the sample has expired. A key that is read is removed at once.

    Args:
        window_s: Window in seconds, from the decision on; 0 stores none.
        most_bytes: Memory for the names of keys whose window is not over; the oldest
            are dropped.
    """

    def __init__(self, *, window_s: int, most_bytes: int = _MOST_BYTES) -> None:
        self._window_us = window_s * 1_000_000
        self._most_bytes = most_bytes
        self._ends: deque[tuple[int, bytes]] = deque()  # µs, and names
        self._bytes = 0

    def __call__(self, rows: DecidedRows, now_us: int) -> list[Command]:
        """Build the commands; none for decisions past their window or too long."""
        commands, stored = self._store(rows, now_us)
        ended = self._ended(now_us, most=_AT_ONCE + 2 * len(stored))
        commands += [
            (b"GET", stored_decision_key(rows.product, name)) for name in ended
        ]
        if stored:
            self._remember(stored, end_us=int(rows.decided_us.max()) + self._window_us)
        return commands

    def _store(
        self, rows: DecidedRows, now_us: int
    ) -> tuple[list[Command], list[bytes]]:
        """Build the commands that store decisions, and list the ids of these."""
        release = rows.release.encode()
        if compiled.decisions is not None:
            found = compiled.decisions.store_commands(
                rows,
                prefix=stored_decision_key(rows.product, b""),
                release=release,
                extra_us=self._window_us - now_us,
                version=DECIDED_VERSION,
                most_bytes=EARLIER_BYTES,
            )
            if found is not None:
                return cast("tuple[list[Command], list[bytes]]", found)
        left_us = rows.decided_us + self._window_us - now_us
        columns = zip(
            left_us.tolist(),
            rows.transaction_id,
            rows.fingerprint.tolist(),
            rows.decision.tolist(),
            rows.score.tolist(),
            rows.degraded.tolist(),
            rows.reason_codes,
            strict=True,
        )
        commands: list[Command] = []
        stored = []
        for left, name, fingerprint, decision, score, degraded, codes in columns:
            if left < 1_000:
                continue
            value = pack_stored_decision(
                fingerprint,
                decision=decision,
                score=score,
                degraded=degraded,
                release=release,
                codes=codes,
            )
            if value:
                key = stored_decision_key(rows.product, name)
                commands.append(store_command(key, value, window_ms=left // 1_000))
                stored.append(name)
        return commands, stored

    def _remember(self, names: list[bytes], *, end_us: int) -> None:
        packed = msgspec.msgpack.encode(names)
        self._ends.append((end_us + MARGIN_US, packed))
        self._bytes += len(packed)
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._ends.popleft()[1])

    def _ended(self, now_us: int, *, most: int) -> list[bytes]:
        """Remove and return the names whose windows are over; about `most` of them."""
        names: list[bytes] = []
        while self._ends and self._ends[0][0] <= now_us and len(names) < most:
            end_us, packed = self._ends.popleft()
            self._bytes -= len(packed)
            if now_us - end_us < _STALE_US:
                names += msgspec.msgpack.decode(packed, type=list[bytes])
        return names
