"""
Write the watermarks of a consumer's partitions to the store, for the steps to read.

Each partition of a feed has its own watermark in the store; the watermark of the feed
is the lowest of them. So one consumer that lags, or a partition that no consumer reads,
holds the feed's watermark back, whatever the others do. A watermark only goes forward:
events that were applied stay applied, and a group that reads old events again moves
nothing back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.errors import StoreError
from tollgate.store.lookups import (
    feed_key,
    pack_watermark,
    partition_key,
    unpack_watermark,
)
from tollgate.store.redis.redis_store import RedisStore, describe_error
from tollgate.stream.metrics import StreamMetrics
from tollgate.stream.source import Source

log = logging.getLogger(__name__)

INTERVAL_S = 1.0  # the steps read them equally often
_MOST_AHEAD_US = 60_000_000  # clocks of two machines differ by less than that

I64 = npt.NDArray[np.int64]
Mark = tuple[str, int]  # a feed and a partition


class FeedMarks:
    """
    Write the watermarks of one consumer.

    Args:
        source: Source of the events.
        store: Store of the watermarks.
        product: The product.
        feeds: Feeds that the source carries; others are not written.
        metrics: The metrics to update.
        now_us: The wall clock, µs since the epoch.
        interval_s: Interval between writes.
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
            feed: Feed of the events.
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
    """
    Read a watermark; 0 if it is invalid, or so far ahead that a clock must be wrong.
    """
    time_us = unpack_watermark(value) or 0
    return min(time_us, now_us) if time_us <= now_us + _MOST_AHEAD_US else 0
