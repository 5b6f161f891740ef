"""
Poll batches of messages, have each handled, and commit it: at least once.

A batch is committed when all of it is handled. Whatever is killed before, the source
delivers its messages again.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from tollgate.errors import StoreError, TollgateError
from tollgate.metrics import counter, gauge
from tollgate.stream.source import DeadLetter, Message, Source
from tollgate.worker import retry, run_until_idle

log = logging.getLogger(__name__)

WAIT_S = 0.25
_BACKLOG_EVERY_S = 1.0


class ConsumerMetrics:
    """
    Hold the metrics that every consumer of batches has, in a separate registry.

    Args:
        area: Second part of the names of the metrics, such as `alarms`.
    """

    def __init__(self, area: str, *, product: str) -> None:
        self.registry = registry = CollectorRegistry()
        self.product = product
        name = f"tollgate_{area}"
        self.ready = gauge(f"{name}_ready", registry).labels(product)
        self.backlog = gauge(f"{name}_backlog", registry).labels(product)
        self.partitions = gauge(f"{name}_partitions", registry).labels(product)
        self._retries = counter(f"{name}_retries_total", registry)

    def retried(self, part: str) -> None:
        """Count a call of a part that failed."""
        self._retries.labels(self.product, part).inc()


class BatchConsumer(ABC):
    """
    Consume one source in batches; one thread uses it.

    Args:
        name: Name of the loop in metrics and logs.
        most: Messages of a batch, at most.
        stopped: Ends the run, and each retry; a batch that is not committed stays.

    Attributes:
        name: As given.
        problem: The part that does not respond, and why; empty if all do.
        retries: Number of calls that failed since the start.
        dead_letters: Number of dead letters since the start.
    """

    def __init__(
        self,
        source: Source,
        *,
        name: str,
        most: int,
        metrics: ConsumerMetrics,
        stopped: threading.Event,
    ) -> None:
        self._source = source
        self.name = name
        self._most = most
        self._health = metrics
        self._stopped = stopped
        self._messages: list[Message] = []  # polled, and not committed yet
        self._backlog_at_s = 0.0
        self.problem = "nothing was polled yet"
        self.retries = 0
        self.dead_letters = 0

    def run(self, *, until_idle_s: float | None = None) -> None:
        """
        Consume until stopped; a batch in progress is finished first.

        Args:
            until_idle_s: Ends the run when no message came for so long; None never.
        """
        run_until_idle(
            self.name,
            self.step,
            stopped=self._stopped,
            until_idle_s=until_idle_s,
        )

    def step(self, *, wait_s: float = WAIT_S) -> int:
        """
        Handle and commit one batch; return the number of its messages.

        A part that is away is retried until it is back, or until the consumer is
        stopped: then nothing of the batch is committed.
        """

        def poll() -> None:
            self._messages = list(self._source.poll(most=self._most, wait_s=wait_s))

        # After an unforeseen error, the batch that was polled comes first.
        if not self._messages and not self._retry("source", poll):
            return 0
        messages = self._messages
        if messages:
            done = self._handle(messages)
            self._messages = []
            if not done:
                return len(messages)
        self._observe_backlog()
        return len(messages)

    @abstractmethod
    def _handle(self, messages: Sequence[Message]) -> bool:
        """Handle and commit a batch; return False if stopped before."""

    def _commit(
        self, messages: Sequence[Message], *, refused: Mapping[int, str]
    ) -> bool:
        """
        Store dead letters and commit; return False if stopped before.

        Args:
            refused: Index of a message -> the reason why it is a dead letter.
        """
        letters = [DeadLetter(messages[at], why) for at, why in sorted(refused.items())]
        if letters and not self._retry(
            "source", lambda: self._source.add_dead_letters(letters)
        ):
            return False
        if not self._retry("source", self._source.commit):
            return False
        self.dead_letters += len(letters)
        if letters:
            # Their reasons may name values.
            text = "%s: %d of %d messages are dead letters"
            log.warning(text, self.name, len(letters), len(messages))
        return True

    def _retry(self, part: str, work: Callable[[], object]) -> bool:
        """Repeat a call until it succeeds; return False if stopped before."""

        def failed(error: Exception) -> None:
            self._report(f"{part}: {error}")
            self._count_retry(part)

        if not retry(
            work, errors=(TollgateError,), failed=failed, stopped=self._stopped
        ):
            return False
        self._report("")
        return True

    def _count_retry(self, part: str) -> None:
        self.retries += 1
        self._health.retried(part)

    def _report(self, problem: str) -> None:
        """Log a problem when it begins or changes, and when it is over."""
        if problem == self.problem:
            return
        if problem:
            log.warning("%s: %s", self.name, problem)
        elif self.retries:
            log.warning("%s: all parts respond", self.name)
        self.problem = problem
        self._health.ready.set(not problem)

    def _observe_backlog(self) -> None:
        if time.monotonic() < self._backlog_at_s:
            return
        self._backlog_at_s = time.monotonic() + _BACKLOG_EVERY_S
        try:
            waiting = self._source.backlog()
        except StoreError as exc:
            log.warning("%s: %s", self.name, exc)
            return
        self._health.backlog.set(waiting)
        self._health.partitions.set(self._source.partitions())
