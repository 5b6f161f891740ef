"""Ask a store that is away for a sign of life, at no request's cost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tollgate.store.breaker import Breaker, State

log = logging.getLogger(__name__)


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
        self._opened = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Begin to probe; the breaker has just opened."""
        if self._thread is None:
            # A daemon: it must not keep a step's process from ending.
            self._thread = threading.Thread(
                target=self._run, name="store-prober", daemon=True
            )
            self._thread.start()
        self._opened.set()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._opened.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._opened.wait()
            self._opened.clear()
            while self._breaker.state is State.OPEN and not self._closing.is_set():
                if not self._closing.wait(self._breaker.until_probe_s()):
                    self._breaker.probed(self._probe())
            if self._closing.is_set():
                return
