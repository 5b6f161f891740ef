"""Probe an unavailable store from a separate thread, so that no request waits."""

from __future__ import annotations

from collections.abc import Callable

from tollgate.store.fallback.circuit_breaker import BreakerState, CircuitBreaker
from tollgate.worker import Worker


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
