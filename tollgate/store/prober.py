"""Ask a store that is away for a sign of life, at no request's cost."""

from __future__ import annotations

from collections.abc import Callable

from tollgate.store.breaker import Breaker, State
from tollgate.worker import Worker


class Prober:
    """
    A thread that sleeps until the breaker opens, then probes until it is answered.

    Args:
        breaker: Whose probes these are.
        probe: Asks the store once; must end within the store's deadline, and raise
            nothing. Nobody else uses the store while the breaker is open.
    """

    def __init__(self, breaker: Breaker, probe: Callable[[], bool]) -> None:
        self._breaker = breaker
        self._probe = probe
        # A daemon: it must not keep a step's process from ending.
        self._worker = Worker("store-prober", self._probe_if_due, pause_s=self._pause_s)

    def wake(self) -> None:
        """Begin to probe; the breaker has just opened."""
        self._worker.start()
        self._worker.wake()

    def close(self) -> None:
        """End the thread."""
        self._worker.stop()

    def _pause_s(self) -> float | None:
        is_open = self._breaker.state is State.OPEN
        return self._breaker.until_probe_s() if is_open else None

    def _probe_if_due(self) -> None:
        if self._breaker.state is State.OPEN and not self._breaker.until_probe_s():
            self._breaker.probed(self._probe())
