"""
The circuit breaker: stop calling a failing store, and probe it until it recovers.

    CLOSED ──too many failures──► OPEN ──a probe is answered──► HALF_OPEN
       ▲                           ▲                               │
       └───── its call succeeds ───┼───── its call fails ──────────┘

While it is open, no request waits for the store: a separate thread of the step probes
it. A probe that is answered lets one batch through; that batch decides.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

import msgspec

from tollgate.worker import Worker


class BreakerState(enum.IntEnum):
    """State of the circuit breaker; the numbers are those of its metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class BreakerRules(msgspec.Struct, frozen=True):
    """
    Configure when a circuit breaker opens, and how often it probes.

    Attributes:
        failures_in_a_row: Consecutive failures that open it: the store is unavailable.
        recent_calls: Number of recent calls that `failed_share` covers.
        failed_share: Share of failed calls among them that opens it: the store is slow
            now and then.
        probe_interval_s: Time between probes.
        probe_jitter: Part of the interval by which it varies, both ways, so that
            replicas do not probe a store that comes back all at once.
    """

    failures_in_a_row: int = 5
    recent_calls: int = 20
    failed_share: float = 0.5
    probe_interval_s: float = 0.25
    probe_jitter: float = 0.2


class CircuitBreaker:
    """
    Track the state of one store, as one caller sees it.

    Only the caller closes and opens it, and only while it does not wait for a probe;
    only the prober half-opens it. So neither needs a lock.

    Args:
        clock: Monotonic, seconds.
        chance: Uniform within [0, 1).
        rules: Its configuration.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        chance: Callable[[], float],
        *,
        rules: BreakerRules | None = None,
    ) -> None:
        self.rules = rules or BreakerRules()
        self.state = BreakerState.CLOSED
        self.opened = 0  # number of times it opened
        self._clock = clock
        self._chance = chance
        self._in_a_row = 0
        self._recent: deque[bool] = deque(maxlen=self.rules.recent_calls)
        self._probe_at_s = 0.0

    def allows(self) -> bool:
        """Return True if a batch may call the store now."""
        return self.state is not BreakerState.OPEN

    def succeeded(self) -> None:
        """Record a call that was answered in time."""
        if self.state is BreakerState.HALF_OPEN:
            self._recent.clear()
            self.state = BreakerState.CLOSED
        self._in_a_row = 0
        self._recent.append(False)

    def failed(self) -> bool:
        """
        Record a call that failed or was late.

        Returns:
            True if this call opened the breaker.
        """
        self._in_a_row += 1
        self._recent.append(True)
        rules = self.rules
        many = len(self._recent) == rules.recent_calls and (
            sum(self._recent) >= rules.failed_share * rules.recent_calls
        )
        if (
            self.state is BreakerState.CLOSED
            and self._in_a_row < rules.failures_in_a_row
            and not many
        ):
            return False
        self._recent.clear()
        self._in_a_row = 0
        self.opened += 1
        self._plan_probe()
        self.state = BreakerState.OPEN
        return True

    def until_probe_s(self) -> float:
        """Return the time to the next probe; 0 when it is due."""
        return max(0.0, self._probe_at_s - self._clock())

    def probed(self, answered: bool) -> None:
        """Record the outcome of a probe."""
        self._plan_probe()
        if answered:
            self.state = BreakerState.HALF_OPEN

    def _plan_probe(self) -> None:
        rules = self.rules
        varied = 1 + rules.probe_jitter * (2 * self._chance() - 1)
        self._probe_at_s = self._clock() + rules.probe_interval_s * varied


class Prober:
    """
    Run a thread that sleeps until the breaker opens, then probes until one succeeds.

    Args:
        breaker: The circuit breaker.
        probe: Calls the store once; must end within the store's deadline, and raise
            nothing. No other thread uses the store while the breaker is open.
    """

    def __init__(self, breaker: CircuitBreaker, probe: Callable[[], bool]) -> None:
        self._breaker = breaker
        self._probe = probe
        # A daemon thread: it must not prevent a step's process from ending.
        self._worker = Worker("store-prober", self._probe_if_due, pause_s=self._pause_s)

    def wake(self) -> None:
        """Start to probe; the breaker has just opened."""
        self._worker.start()
        self._worker.wake()

    def close(self) -> None:
        """Stop the thread."""
        self._worker.stop()

    def _pause_s(self) -> float | None:
        is_open = self._breaker.state is BreakerState.OPEN
        return self._breaker.until_probe_s() if is_open else None

    def _probe_if_due(self) -> None:
        if (
            self._breaker.state is BreakerState.OPEN
            and not self._breaker.until_probe_s()
        ):
            self._breaker.probed(self._probe())
