"""
Stop calling an address that fails, and try it again later: a circuit breaker.

    CLOSED ──too many failures──► OPEN ──┐ after a while: one call, as a trial
       ▲                            ▲    ▼
       └──────── it is answered ────┼─ HALF_OPEN
                                    └─ it fails

The trial is an ordinary call of a caller; no thread sends probes. If nothing reports
how a trial ended (its caller was cancelled), the breaker allows another trial after the
same interval.
"""

from __future__ import annotations

import enum
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


class State(enum.IntEnum):
    """State of a circuit breaker; the numbers are the values of its metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """
    Define when a circuit breaker opens, and for how long.

    Attributes:
        failures_in_a_row: Consecutive failures that open it: the server is down.
        recent_calls: Number of latest calls over which `failed_share` is computed.
        failed_share: Share of failures among those calls that opens it: the server is
            slow now and then.
        open_s: Seconds until a trial call.
        jitter: Fraction of `open_s` by which the time varies in both directions, so
            that many callers do not all try a recovering server at once.
        fair_s: Shortest timeout, in seconds, whose expiry counts against the server; a
            decision mostly takes less than 20 ms.
    """

    failures_in_a_row: int = 5
    recent_calls: int = 20
    failed_share: float = 0.5
    open_s: float = 1.0
    jitter: float = 0.2
    fair_s: float = 0.02


class Breaker:
    """
    Track the state of one address for one client; threads may share it.

    Args:
        rules: Conditions under which it opens, and for how long.
        clock: Function that returns monotonic seconds.

    Attributes:
        state: Current state: closed, half-open or open.
        opened: Number of times that it opened.
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
        """Return whether a call may go to the address now; allow each trial once."""
        if self.state is State.CLOSED:
            return True
        with self._lock:
            if self._clock() < self._trial_at_s:
                return False
            self._plan_trial()
            self.state = State.HALF_OPEN
            return True

    def succeeded(self) -> None:
        """Record a call that the server responded to."""
        with self._lock:
            if self.state is not State.CLOSED:
                self._recent.clear()
                self.state = State.CLOSED
            self._in_a_row = 0
            self._recent.append(False)

    def failed(self) -> None:
        """Record a call that failed."""
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
