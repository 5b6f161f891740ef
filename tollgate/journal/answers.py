"""What a purchase that is sent again is answered: kept beside its record."""

from __future__ import annotations

from collections import deque

import msgspec

from tollgate.journal.record import Records
from tollgate.store.connection import Command
from tollgate.store.decided import decided_key, keep_command, pack_decided

AFTER_US = 1_000_000  # a store's clock may be so much behind
_STALE_US = 60_000_000  # by then the store has found it itself
_MOST_BYTES = 64_000_000  # 10 minutes of 4,000 decisions a second
_AT_ONCE = 64  # besides two for each that is kept


class AnswerKeeper:
    """
    Makes the commands that keep decisions for a window, from their records.

    And those that look at each a second after its window: Redis finds what has
    expired by drawing keys by lot, for a millisecond at a time as long as a tenth of
    what it draws has, and removes at once what is asked for.

    Args:
        window_s: How long, from the decision on; 0 keeps none.
        most_bytes: Of names that wait for their end; the oldest give way.
    """

    def __init__(self, *, window_s: int, most_bytes: int = _MOST_BYTES) -> None:
        self._window_us = window_s * 1_000_000
        self._most_bytes = most_bytes
        self._ends: deque[tuple[int, bytes]] = deque()  # µs, and names
        self._bytes = 0

    def __call__(self, records: Records, now_us: int) -> list[Command]:
        """
        Make them; none for a decision whose window is over, or too long to keep.

        Args:
            records: Decisions.
            now_us: The clock.
        """
        release = records.release.encode()
        left_us = records.decided_us + self._window_us - now_us
        columns = zip(
            left_us.tolist(),
            records.transaction_id,
            records.fingerprint.tolist(),
            records.decision.tolist(),
            records.score.tolist(),
            records.degraded.tolist(),
            records.reason_codes,
            strict=True,
        )
        commands: list[Command] = []
        kept = []
        for left, name, fingerprint, decision, score, degraded, codes in columns:
            if left < 1_000:
                continue
            value = pack_decided(
                fingerprint,
                decision=decision,
                score=score,
                degraded=degraded,
                release=release,
                codes=codes,
            )
            if value:
                key = decided_key(records.product, name)
                commands.append(keep_command(key, value, window_ms=left // 1_000))
                kept.append(name)
        ended = self._ended(now_us, most=_AT_ONCE + 2 * len(kept))
        commands += [(b"GET", decided_key(records.product, name)) for name in ended]
        if kept:
            self._note(kept, end_us=int(records.decided_us.max()) + self._window_us)
        return commands

    def _note(self, names: list[bytes], *, end_us: int) -> None:
        packed = msgspec.msgpack.encode(names)
        self._ends.append((end_us + AFTER_US, packed))
        self._bytes += len(packed)
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._ends.popleft()[1])

    def _ended(self, now_us: int, *, most: int) -> list[bytes]:
        """Take the names whose windows are over; about so many."""
        names: list[bytes] = []
        while self._ends and self._ends[0][0] <= now_us and len(names) < most:
            end_us, packed = self._ends.popleft()
            self._bytes -= len(packed)
            if now_us - end_us < _STALE_US:
                names += msgspec.msgpack.decode(packed, type=list[bytes])
        return names
