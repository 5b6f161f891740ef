"""
Probe each product with one decision a second, so that "ready" means that it decides.

Triton calls a model ready whose process is dead; only an answer proves that it works.
The requests are dry runs and leave no trace. Each has a different amount, so that a
cache in front of the model, if there is one, has no stored answer to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tollgate.errors import ServerError
from tollgate.server.triton import control
from tollgate.server.triton.control import Reachable
from tollgate.server.triton.probe import AMOUNT, Prober
from tollgate.worker import Worker

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
TIMEOUT_S = 1.0
STALE_S = 3.0  # a product without a decision for longer is not ready
_AMOUNTS = 10_000_000  # different amounts, a cent apart; 116 days of seconds


class HealthProbe:
    """
    Probe one product repeatedly, from its own thread.

    Args:
        server: The server; its address may not change.
        observe: Called with the seconds that each answer took.

    Attributes:
        release: Release that answered last.
        problem: Reason why the last request failed; empty if it did not.
        failures: Number of failed requests in a row.
    """

    def __init__(
        self,
        server: Reachable,
        product: str,
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        observe: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.product = product
        self.release = ""
        self.problem = ""
        self.failures = 0
        self._server = server
        self._prober = Prober(server, product)
        self._timeout_s = timeout_s
        self._observe = observe
        self._sent = 0
        self._answered_s = -STALE_S
        self._decided: int | None = None  # in all, when the failures began to count
        self._worker = Worker(
            f"heartbeat-{product}",
            self.send,
            pause_s=interval_s,
            at_once=True,
            finish=self._prober.close,
            failed=lambda error: self._fail(f"unforeseen: {error!r}"),
        )

    @property
    def ready(self) -> bool:
        """Return whether the last request was answered, within the last 3 seconds."""
        fresh = time.monotonic() - self._answered_s < STALE_S
        return fresh and not self.failures

    def start(self) -> None:
        """Start to send requests."""
        self._worker.start()

    def stop(self) -> None:
        """Stop sending requests."""
        self._worker.stop()

    def reset_failures(self) -> None:
        """Reset failures whose cause was repaired, and send a request at once."""
        self.failures = 0
        self._answered_s = -STALE_S  # ready only with the next answer
        self._worker.wake()

    def others_get_answers(self) -> bool:
        """
        Return whether other callers got decisions since the first of these failures,
        or since `note_overload`.

        A product that answers others, but not this probe in time, is overloaded, not
        dead.
        """
        decided, before = self._count(), self._decided
        if decided is None or before is None:
            return False
        if decided < before:
            before = 0  # it was loaded again, and counts from the beginning
        return decided > before

    def note_overload(self) -> None:
        """Note that others get answers: count this failure as the first again."""
        self.failures = 1
        self._decided = self._count()

    def _count(self) -> int | None:
        """Read how many decisions the product has made; None if that fails."""
        try:
            counters = control.statistics(self._server, self.product, timeout_s=1.0)
            return int(counters[self.product].get("inference_count", 0))
        except Exception as exc:  # noqa: BLE001 - the probe goes on
            log.debug("the decisions of %s cannot be counted: %s", self.product, exc)
            return None

    def send(self) -> None:
        """Send one request."""
        started_s = time.monotonic()
        self._sent = self._sent % _AMOUNTS + 1
        try:
            release = self._prober.ask(
                timeout_s=self._timeout_s, amount=AMOUNT + self._sent / 100
            )
        except ServerError as error:
            self._fail(str(error))
            return
        self._answered_s = time.monotonic()
        self._observe(self._answered_s - started_s)
        if self.failures:
            log.warning("%s decides again", self.product)
        self.release, self.problem, self.failures = release, "", 0

    def _fail(self, problem: str) -> None:
        if not self.failures:
            log.warning("%s does not decide: %s", self.product, problem)
            self._decided = self._count()
        self.problem = problem
        self.failures += 1
