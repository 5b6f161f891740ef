"""A clock that the test sets, and a feed's watermark by it."""

from __future__ import annotations

import time

import redis

from tollgate.store.lookups import feed_key, unpack_watermark

SECOND_US, HOUR_US = 1_000_000, 3_600_000_000
# Ahead of the real clock, which goes on while other tests run: what was asked for by
# that one must be old here.
NOW_US = time.time_ns() // 1000 + 3 * HOUR_US


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.us = NOW_US

    def __call__(self) -> int:
        """Tell the time, µs since the epoch."""
        return self.us


def mark_of(client: redis.Redis, feed: str) -> int | None:
    """Read a feed's watermark, as a step does."""
    return unpack_watermark(client.get(feed_key("fraud", feed)))
