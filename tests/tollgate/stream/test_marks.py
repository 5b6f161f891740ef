"""Watermarks of feeds: as far as the slowest partition, and never back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import redis

from tests.support.stream.watermarks import HOUR_US, NOW_US, Clock, mark_of
from tollgate.store.lookups import (
    PURCHASES,
    feed_key,
    pack_watermark,
    partition_key,
)
from tollgate.store.redis.redis_store import RedisStore
from tollgate.stream.consumer import FeedMarks, StreamMetrics
from tollgate.stream.source import DeadLetter, Message


class Reading:
    """A source of which the test says how far it is."""

    name = "feed"

    def __init__(self, *, partitions: int) -> None:
        self.partitions_of_all = partitions
        self.until_us: dict[int, int] = {}

    def poll(self, *, most: int, wait_s: float) -> list[Message]:
        """Give nothing."""
        return []

    def add_dead_letters(self, letters: list[DeadLetter]) -> None:
        """Keep nothing."""

    def commit(self) -> None:
        """Do nothing."""

    def backlog(self) -> int:
        """Have none."""
        return 0

    def partitions(self) -> int:
        """Count those held."""
        return len(self.until_us)

    def partition_count(self) -> int:
        """Count all."""
        return self.partitions_of_all

    def caught_up(self) -> Mapping[int, int]:
        """Tell what the test says."""
        return self.until_us

    def close(self) -> None:
        """Do nothing."""


def marks_of(source: Reading, store: RedisStore, clock: Clock) -> FeedMarks:
    """Keep the purchases' mark of such a source."""
    return FeedMarks(
        source,  # type: ignore[arg-type]
        store,
        product="fraud",
        feeds=(PURCHASES,),
        metrics=StreamMetrics("fraud"),
        now_us=clock,
        interval_s=0,
    )


def test_the_slowest_partition_of_all_consumers_is_the_feeds(
    store_url: str,
    redis_client: redis.Redis,
    open_store: Callable[..., RedisStore],
    clock: Clock,
) -> None:
    """Two consumers, three partitions; without all of them there is no watermark."""
    one, other = Reading(partitions=3), Reading(partitions=3)
    first = marks_of(one, open_store(store_url), clock)
    second = marks_of(other, open_store(store_url), clock)
    one.until_us = {0: NOW_US - 5, 1: NOW_US - 7}
    first.update()
    assert mark_of(redis_client, PURCHASES) is None  # of the third nothing is known
    other.until_us = {2: NOW_US - 100}
    second.update()
    assert mark_of(redis_client, PURCHASES) == NOW_US - 100
    one.until_us = {0: NOW_US, 1: NOW_US}
    first.update()
    assert mark_of(redis_client, PURCHASES) == NOW_US - 100
    one.until_us = {0: NOW_US, 1: NOW_US, 2: NOW_US - 50}  # the second is dead
    first.update()
    assert mark_of(redis_client, PURCHASES) == NOW_US - 50


def test_a_mark_goes_forward_only_unless_a_clock_was_wrong(
    store_url: str,
    redis_client: redis.Redis,
    open_store: Callable[..., RedisStore],
    clock: Clock,
) -> None:
    """A group that reads from the beginning drags nothing back; a lie is put right."""
    source = Reading(partitions=1)
    fed = feed_key("fraud", PURCHASES)
    redis_client.set(fed, pack_watermark(NOW_US - 5, now_us=NOW_US))
    source.until_us = {0: NOW_US - HOUR_US}
    marks = marks_of(source, open_store(store_url), clock)
    marks.update()
    assert mark_of(redis_client, PURCHASES) == NOW_US - 5
    part = partition_key("fraud", PURCHASES, source="feed", partition=0)
    for key in (fed, part):
        ahead_us = NOW_US + HOUR_US
        redis_client.set(key, pack_watermark(ahead_us, now_us=ahead_us))
    marks.update()
    assert mark_of(redis_client, PURCHASES) == NOW_US - HOUR_US


def test_a_store_that_refuses_costs_the_marks_and_nothing_else(
    store_url: str,
    redis_client: redis.Redis,
    open_store: Callable[..., RedisStore],
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Said once; and one that does not reply gets it the next time."""
    source = Reading(partitions=1)
    source.until_us = {0: NOW_US}
    marks = marks_of(source, open_store(store_url), clock)
    redis_client.lpush(feed_key("fraud", PURCHASES), "a list, which GET refuses")
    marks.update()
    marks.update()
    assert caplog.text.count("the store refuses watermarks") == 1
    assert mark_of(redis_client, PURCHASES) == NOW_US
    away = marks_of(source, open_store("unix:///nowhere.sock"), clock)
    away.update()
