"""
Poll, apply, dead-letter and commit events: at-least-once delivery, exactly-once effect.

The store's one function applies events; it recognises by its id an event that it has
seen. So a batch that is delivered again, because its consumer died between applying and
committing, changes nothing.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import StoreError
from tollgate.store.event_writer import EventWriter, WriteOutcome
from tollgate.store.lookups import LABELS, PURCHASES
from tollgate.stream.events import LABEL, PURCHASE, EventCodec
from tollgate.stream.marks import FeedMarks
from tollgate.stream.metrics import StreamMetrics
from tollgate.stream.source import Buried, Message, Source
from tollgate.worker import run_until_idle

log = logging.getLogger(__name__)

BATCH_EVENTS = 1_000
WAIT_S = 0.25
BACKLOG_EVERY_S = 1.0
RETRY_S = (0.05, 0.1, 0.25, 0.5, 1.0)  # then the last one, for as long as it takes


class Tally(msgspec.Struct):
    """Count the results of a consumer since its start; events, except for `batches`."""

    batches: int = 0
    applied: int = 0
    duplicates: int = 0
    buried: int = 0
    retries: int = 0


class StreamConsumer:
    """
    Apply the events of one source to one product's store.

    Args:
        source: Source of the events.
        writer: Writes them to the store.
        metrics: The metrics to update.
        marks: The feeds' watermarks; None writes none.
        batch_events: Events polled at once.
        now_us: The wall clock, µs since the epoch.
    """

    def __init__(
        self,
        source: Source,
        writer: EventWriter,
        *,
        metrics: StreamMetrics,
        marks: FeedMarks | None = None,
        batch_events: int = BATCH_EVENTS,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._source = source
        self._writer = writer
        self._codec = EventCodec(writer.spec)
        self._metrics = metrics
        self._marks = marks
        self._batch_events = batch_events
        self._now_us = now_us
        self._backlog_at_s = 0.0
        self._messages: list[Message] = []  # polled, and not committed yet
        self.tally = Tally()

    def run(
        self, stopped: threading.Event, *, until_idle_s: float | None = None
    ) -> None:
        """
        Apply events until stopped; a batch in progress is finished first.

        Args:
            stopped: Ends the run when it is set.
            until_idle_s: Ends the run when no event came for so long; None never does.
        """
        run_until_idle(
            "stream-consumer",
            lambda: self.step(stopped),
            stopped=stopped,
            until_idle_s=until_idle_s,
        )

    def step(self, stopped: threading.Event, *, wait_s: float = WAIT_S) -> int:
        """
        Poll, apply and commit one batch; return the number of its messages.

        A store or a feed that is unavailable is retried until it is back, or until
        `stopped` is set: then nothing of the batch is committed.
        """

        def polled() -> None:
            self._messages = list(
                self._source.poll(most=self._batch_events, wait_s=wait_s)
            )

        # After an unforeseen error, the batch that was polled comes first.
        if not self._messages and not self._until_done(polled, stopped):
            return 0
        messages = self._messages
        if messages:
            done = self._until_done(lambda: self._take(messages), stopped)
            done = done and self._until_done(self._source.commit, stopped)
            self._messages = []
            if not done:
                return len(messages)
            self.tally.batches += 1
        self._observe_backlog()
        if self._marks is not None:
            self._marks.update()
        return len(messages)

    def _take(self, messages: Sequence[Message]) -> None:
        """Apply one batch, and send its invalid events to the dead letters."""
        decoded = self._codec.decode(
            [message.value for message in messages], now_us=self._now_us()
        )
        started_s = time.monotonic()
        refused = dict(decoded.poison)
        for kind, at, outcome in (
            (PURCHASE, decoded.purchase_at, self._writer.purchases(decoded.purchases)),
            (LABEL, decoded.label_at, self._writer.labels(decoded.labels)),
        ):
            self._count(kind, outcome)
            refused |= {at[row]: reason for row, reason in outcome.refused()}
        self._metrics.apply_s.observe(time.monotonic() - started_s)
        self._bury(messages, refused)
        self._metrics.count("unknown", "poison", len(decoded.poison))
        for feed, at, time_us in (
            (PURCHASES, decoded.purchase_at, decoded.purchases.event_time_us),
            (LABELS, decoded.label_at, decoded.labels.label_time_us),
        ):
            if at:
                self._observe_lag(feed, time_us)
                partitions = np.array([messages[one].partition for one in at])
                if self._marks is not None:
                    self._marks.applied(feed, partitions, time_us)

    def _bury(self, messages: Sequence[Message], refused: dict[int, str]) -> None:
        if not refused:
            return
        self._source.bury(
            [Buried(messages[at], reason) for at, reason in sorted(refused.items())]
        )
        self.tally.buried += len(refused)
        log.warning("%d of %d events are dead letters", len(refused), len(messages))

    def _count(self, kind: str, outcome: WriteOutcome) -> None:
        applied, duplicate = int(outcome.applied.sum()), int(outcome.duplicate.sum())
        self.tally.applied += applied
        self.tally.duplicates += duplicate
        self._metrics.count(kind, "applied", applied)
        self._metrics.count(kind, "duplicate", duplicate)
        self._metrics.count(kind, "too_late", int(outcome.too_late.sum()))
        self._metrics.count(kind, "foreign", int(outcome.foreign.sum()))

    def _observe_lag(self, feed: str, time_us: npt.NDArray[np.int64]) -> None:
        now_us = self._now_us()
        oldest_us, newest_us = int(time_us.min()), int(time_us.max())
        self._metrics.lag(
            feed,
            oldest_s=max(0, now_us - oldest_us) / 1e6,
            newest_s=max(0, now_us - newest_us) / 1e6,
        )

    def _observe_backlog(self) -> None:
        if time.monotonic() < self._backlog_at_s:
            return
        self._backlog_at_s = time.monotonic() + BACKLOG_EVERY_S
        try:
            waiting = self._source.backlog()
        except StoreError as exc:
            log.warning("%s", exc)
            return
        self._metrics.backlog.set(waiting)
        self._metrics.partitions.set(self._source.partitions())
        if not waiting:
            self._metrics.no_lag()

    def _until_done(self, work: Callable[[], None], stopped: threading.Event) -> bool:
        """Retry until it succeeds; return False if `stopped` is set before."""
        for pause_s in itertools.chain(RETRY_S, itertools.repeat(RETRY_S[-1])):
            try:
                work()
            except StoreError as exc:
                log.warning("%s", exc)
                self.tally.retries += 1
                self._metrics.retries.inc()
                if stopped.wait(pause_s):
                    break
            else:
                return True
        return False
