"""
Append purchases in place to values that this process has.

The store returns a whole value for each purchase, although mostly the purchase only
follows at the end of the value that it returned last. For such a key the call contains
the header that this process expects and the one that follows. If the store has the
first, it appends the purchase and returns nothing for the key, and this process has the
value already. Otherwise the store does as always: it applies the event and returns the
value (docs/adr/0021-append-in-place.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from tollgate import compiled
from tollgate.store.fallback.last_known import LastKnown
from tollgate.store.redis.redis_store import Answer
from tollgate.store.store_events import Call

# One purchase in 256 reads the value of its key nevertheless: this process cannot see
# damage in the store otherwise.
_AUDIT_MASK = 255
# After n misses in a row, a key is tried in one of 2^n calls, in one of 64 at least:
# another process writes it, too.
_MOST_HALVINGS = 6
_MOST_MISSED_KEYS = 100_000
# With fewer hits than one in eight of this many tries, nothing is tried for a while:
# the user lacks a right, or other processes write most purchases.
_TRIES = 1_000
_LEAST_SHARE = 1 / 8
_PAUSE_S = 60.0


class Plan(msgspec.Struct, frozen=True):
    """
    Hold a call that names known values.

    `appends` are places of keys in the call, each with the value after its purchase.
    """

    call: Call
    appends: list[tuple[int, bytes]]


class InPlaceAppends:
    """
    Plan calls of the Lua function over the values that a process has.

    Without the compiled loop it plans nothing: NumPy or Python would take longer than
    Redis saves.

    Args:
        values: The values that the store returned.
        clock: Monotonic, seconds.

    Attributes:
        tries: Purchases for which the store was asked to append in place.
        hits: Purchases that it appended.
    """

    def __init__(
        self, values: LastKnown, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tries = 0
        self.hits = 0
        self._values = values
        self._clock = clock
        self._calls = 0
        self._misses: dict[bytes, int] = {}  # in a row
        self._judged = (0, 0)  # tries and hits at the last judgement
        self._resume_s = 0.0

    def plan(self, call: Call) -> Plan | None:
        """Name the values to which a call may append; None if there are none."""
        if compiled.appends is None:
            return None
        self._calls += 1
        if self._resume_s and self._clock() < self._resume_s:
            return None
        values = self._values.held(call.keys)
        calls, misses = self._calls, self._misses
        for place in range(-calls & _AUDIT_MASK, len(values), _AUDIT_MASK + 1):
            values[place] = b""
        if misses:
            for place, key in enumerate(call.keys):
                halvings = min(misses.get(key, 0), _MOST_HALVINGS)
                if calls & (1 << halvings) - 1:
                    values[place] = b""
        planned = compiled.appends.plan_appends(call.arguments, call.events, values)
        if planned is None:
            return None
        known, appends = planned
        return Plan(msgspec.structs.replace(call, known=known), appends)

    def complete(self, plan: Plan, answer: Answer) -> None:
        """Add the values that the store has appended to, and not returned."""
        values: list[bytes | None] = answer[0]  # type: ignore[assignment]
        keys, misses, hits = plan.call.keys, self._misses, 0
        for place, value in plan.appends:
            if values[place] is None:
                values[place] = value
                hits += 1
                if misses:
                    misses.pop(keys[place], None)
            else:
                misses[keys[place]] = misses.get(keys[place], 0) + 1
        if len(misses) > _MOST_MISSED_KEYS:
            misses.clear()
        self.tries += len(plan.appends)
        self.hits += hits
        self._judge()

    def _judge(self) -> None:
        """Pause when too few of the recent tries were hits."""
        tries, hits = self.tries - self._judged[0], self.hits - self._judged[1]
        if tries >= _TRIES:
            self._judged = self.tries, self.hits
            if hits < tries * _LEAST_SHARE:
                self._resume_s = self._clock() + _PAUSE_S
