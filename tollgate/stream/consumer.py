"""
Poll, apply, dead-letter and commit events: at-least-once delivery, exactly-once effect.

The store's one function applies events; it recognises by its id an event that it has
seen. So a batch that is delivered again, because its consumer died between applying and
committing, changes nothing. docs/streams.md has the table of the metrics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry

from tollgate.errors import StoreError
from tollgate.metrics import counter, gauge, histogram
from tollgate.store.event_writer import EventWriter, WriteOutcome
from tollgate.store.lookups import (
    FEEDS,
    LABELS,
    PURCHASES,
    feed_key,
    pack_watermark,
    partition_key,
    unpack_watermark,
)
from tollgate.store.redis.redis_store import RedisStore, describe_error
from tollgate.stream.events import LABEL, PURCHASE, EventCodec
from tollgate.stream.source import DeadLetter, Message, Source
from tollgate.worker import retry, run_until_idle

log = logging.getLogger(__name__)

BATCH_EVENTS = 1_000
WAIT_S = 0.25
BACKLOG_EVERY_S = 1.0


class Tally(msgspec.Struct):
    """Count the results of a consumer since its start; events, except for `batches`."""

    batches: int = 0
    applied: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    retries: int = 0


class StreamConsumer:
    """
    Apply the events of one source to one product's store.

    Args:
        marks: The feeds' watermarks; None writes none.
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
        self._add_dead_letters(messages, refused)
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

    def _add_dead_letters(
        self, messages: Sequence[Message], refused: dict[int, str]
    ) -> None:
        if not refused:
            return
        self._source.add_dead_letters(
            [DeadLetter(messages[at], reason) for at, reason in sorted(refused.items())]
        )
        self.tally.dead_letters += len(refused)
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

        def failed(error: Exception) -> None:
            log.warning("%s", error)
            self.tally.retries += 1
            self._metrics.retries.inc()

        return retry(work, errors=(StoreError,), failed=failed, stopped=stopped)


INTERVAL_S = 1.0  # the steps read them equally often
_MOST_AHEAD_US = 60_000_000  # clocks of two machines differ by less than that

I64 = npt.NDArray[np.int64]
Mark = tuple[str, int]  # a feed and a partition


class FeedMarks:
    """
    Write the watermarks of one consumer to the store, for the steps to read.

    Each partition of a feed has its own watermark in the store; the watermark of the
    feed is the lowest of them. So one consumer that lags, or a partition that no
    consumer reads, holds the feed's watermark back, whatever the others do. A watermark
    only goes forward: events that were applied stay applied, and a group that reads old
    events again moves nothing back.

    Args:
        feeds: Feeds that the source carries; others are not written.
        now_us: The wall clock, µs since the epoch.
    """

    def __init__(
        self,
        source: Source,
        store: RedisStore,
        *,
        product: str,
        feeds: Sequence[str],
        metrics: StreamMetrics,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._source = source
        self._store = store
        self._product = product
        self._feeds = tuple(feeds)
        self._metrics = metrics
        self._now_us = now_us
        self._interval_s = interval_s
        self._update_at_s = 0.0
        self._own_us: dict[Mark, int] = {}
        self._refused = False

    def applied(self, feed: str, partition: I64, time_us: I64) -> None:
        """
        Record the events of a batch that is applied.

        The oldest of them counts: while a feed lags, it is only known to have come this
        far, and a single clock that is ahead must not hide it.

        Args:
            partition: Partition of each; int64 [N].
            time_us: Time of each; int64 [N].
        """
        if feed in self._feeds:
            for at in np.unique(partition).tolist():
                self._raise((feed, at), int(time_us[partition == at].min()))

    def update(self) -> None:
        """
        Bring the store's watermarks up to date, once per interval.

        Call it when everything polled is applied. If the store does not reply, the next
        call writes them.
        """
        if not self._feeds or time.monotonic() < self._update_at_s:
            return
        self._update_at_s = time.monotonic() + self._interval_s
        try:
            for partition, until_us in self._source.caught_up().items():
                for feed in self._feeds:
                    self._raise((feed, partition), until_us)
            self._write(self._now_us())
        except StoreError as exc:
            log.debug("watermarks: %s", exc)

    def _raise(self, mark: Mark, time_us: int) -> None:
        self._own_us[mark] = max(time_us, self._own_us.get(mark, 0))

    def _write(self, now_us: int) -> None:
        """Read all watermarks of the feeds, and write those that have advanced."""
        partitions = range(self._source.partition_count())
        marks = [(feed, at) for feed in self._feeds for at in partitions]
        keys = [self._key(mark) for mark in marks]
        keys += [feed_key(self._product, feed) for feed in self._feeds]
        found = dict(zip(keys, self._run([(b"GET", key) for key in keys]), strict=True))
        known = {key: _valid_us(value, now_us) for key, value in found.items()}
        commands = []
        for feed in self._feeds:
            reached = []
            for at in partitions:
                key = self._key((feed, at))
                mark_us = min(self._own_us.get((feed, at), 0), now_us)
                if mark_us > known[key]:
                    commands.append((b"SET", key, mark_us))
                reached.append(max(mark_us, known[key]))
            whole_us = min(reached, default=0)
            key = feed_key(self._product, feed)
            if whole_us > known[key]:
                commands.append((b"SET", key, whole_us))
            if whole_us:
                self._metrics.feed(feed, watermark_us=whole_us, now_us=now_us)
        self._run(
            [
                (verb, key, pack_watermark(mark_us, now_us=now_us))
                for verb, key, mark_us in commands
            ]
        )

    def _key(self, mark: Mark) -> bytes:
        feed, partition = mark
        return partition_key(
            self._product, feed, source=self._source.name, partition=partition
        )

    def _run(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        if not commands:
            return []
        _, replies = self._store.flush([], extra_commands=commands)
        for reply in replies:
            if isinstance(reply, Exception) and not self._refused:
                self._refused = True  # log it once: the store would refuse again
                log.warning("the store refuses watermarks: %s", describe_error(reply))
        return replies


def _valid_us(value: object, now_us: int) -> int:
    """Read a watermark; 0 if it is invalid, or too far ahead of the clock."""
    time_us = unpack_watermark(value) or 0
    return min(time_us, now_us) if time_us <= now_us + _MOST_AHEAD_US else 0


# From an event's time to its effect in the store: live feeds are milliseconds behind, a
# feed that catches up is hours behind.
LAG_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 3600, 86_400)
APPLY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
# Watermarks are exported once a second, and compared with limits of minutes.
AGE_BUCKETS_S = (1, 5, 30, 60, 300, 900, 3_600, 21_600, 86_400)


class StreamMetrics:
    """Hold the metrics of one consumer, in a separate registry."""

    def __init__(self, product: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._product = product
        self._events = counter("tollgate_stream_events_total", registry)
        retries = counter("tollgate_stream_retries_total", registry)
        self.retries = retries.labels(product)
        self.backlog = gauge("tollgate_stream_backlog", registry).labels(product)
        self.partitions = gauge("tollgate_stream_partitions", registry).labels(product)
        self._lag_s = gauge("tollgate_stream_lag_seconds", registry)
        self._event_lag_s = histogram(
            "tollgate_stream_event_lag_seconds", registry, buckets=LAG_BUCKETS_S
        )
        self._mark_s = gauge("tollgate_stream_feed_watermark_seconds", registry)
        self._mark_age_s = histogram(
            "tollgate_stream_feed_age_seconds", registry, buckets=AGE_BUCKETS_S
        )
        self.apply_s = histogram(
            "tollgate_stream_apply_seconds", registry, buckets=APPLY_BUCKETS_S
        ).labels(product)

    def count(self, kind: str, outcome: str, number: int) -> None:
        """Add events of a kind (purchase, label, unknown) with an outcome."""
        if number:
            self._events.labels(self._product, kind, outcome).inc(number)

    def lag(self, feed: str, *, oldest_s: float, newest_s: float) -> None:
        """Export the ages of the oldest and the newest event of a batch."""
        self._event_lag_s.labels(self._product, feed).observe(oldest_s)
        self._lag_s.labels(self._product, feed).set(newest_s)

    def no_lag(self) -> None:
        """Export a lag of 0: no event is pending."""
        for feed in FEEDS:
            self._lag_s.labels(self._product, feed).set(0)

    def feed(self, feed: str, *, watermark_us: int, now_us: int) -> None:
        """Export a feed's watermark and its age, given µs since the epoch."""
        self._mark_s.labels(self._product, feed).set(watermark_us / 1e6)
        age_s = max(0, now_us - watermark_us) / 1e6
        self._mark_age_s.labels(self._product, feed).observe(age_s)
