"""
When to leave an address alone, and when to try it again.

    CLOSED ──too many failures──► OPEN ──┐ after a while: one call, as a trial
       ▲                            ▲    ▼
       └──────── it is answered ────┼─ HALF_OPEN
                                    └─ it fails

The trial is a call of a caller's, so no thread probes. A trial whose end is never
told (its caller was cancelled) is followed by another one after the same while.
"""

from __future__ import annotations

import enum
import random
import threading
from collections import deque
from collections.abc import Callable

import msgspec


class State(enum.IntEnum):
    """What the breaker lets through; the numbers are those of its metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class BreakerRules(msgspec.Struct, frozen=True):
    """
    When a breaker opens, and for how long.

    Attributes:
        failures_in_a_row: Opens it: a server that is away.
        recent_calls: How many calls the share looks back on.
        failed_share: Of these, opens it: a server that is slow now and then.
        open_s: Until a trial.
        jitter: Part of that by which it is varied, both ways, so that many callers
            do not try a server that comes back all at once.
        fair_s: A call with less time than this that runs out of it says nothing of
            the server; a decision mostly takes less than 20 ms.
    """

    failures_in_a_row: int = 5
    recent_calls: int = 20
    failed_share: float = 0.5
    open_s: float = 1.0
    jitter: float = 0.2
    fair_s: float = 0.02


class Breaker:
    """
    The state of one address, as one client sees it; threads may share it.

    Args:
        rules: When it opens and for how long.
        clock: Monotonic, seconds.

    Attributes:
        state: What it lets through.
        opened: How often it opened.
    """

    def __init__(self, rules: BreakerRules, clock: Callable[[], float]) -> None:
        self.state = State.CLOSED
        self.opened = 0
        self._rules = rules
        self._clock = clock
        self._in_a_row = 0
        self._recent: deque[bool] = deque(maxlen=rules.recent_calls)
        self._trial_at_s = 0.0
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Tell whether a call may go to the address now; a trial is given out once."""
        if self.state is State.CLOSED:
            return True
        with self._lock:
            if self._clock() < self._trial_at_s:
                return False
            self._plan_trial()
            self.state = State.HALF_OPEN
            return True

    def succeeded(self) -> None:
        """Note a call that was answered."""
        with self._lock:
            if self.state is not State.CLOSED:
                self._recent.clear()
                self.state = State.CLOSED
            self._in_a_row = 0
            self._recent.append(False)

    def failed(self) -> None:
        """Note a call that was not."""
        with self._lock:
            self._in_a_row += 1
            self._recent.append(True)
            if self.state is State.CLOSED and not self._too_many():
                return
            self._recent.clear()
            self._in_a_row = 0
            self._plan_trial()
            if self.state is State.CLOSED:
                self.opened += 1
            self.state = State.OPEN

    def _too_many(self) -> bool:
        rules = self._rules
        return self._in_a_row >= rules.failures_in_a_row or (
            len(self._recent) == rules.recent_calls
            and sum(self._recent) >= rules.failed_share * rules.recent_calls
        )

    def _plan_trial(self) -> None:
        rules = self._rules
        varied = 1 + rules.jitter * random.uniform(-1, 1)
        self._trial_at_s = self._clock() + rules.open_s * varied
