"""A consumer over real feeds keeps their watermarks, and rows say how old these are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import redis
from prometheus_client import generate_latest

from tests.support.stream.mock_kafka import MockCluster
from tests.support.stream.watermarks import HOUR_US, NOW_US, SECOND_US, Clock, mark_of
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import Degraded
from tollgate.store.event_writer import EventWriter
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.lookups import FEEDS, LABELS, PURCHASES
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Labels, Purchases
from tollgate.store.store_opening import StoreSettings, open_fallback_chain
from tollgate.stream.consumer import FeedMarks, StreamConsumer, StreamMetrics
from tollgate.stream.events import EventCodec
from tollgate.stream.kafka import KafkaFeed, KafkaSource
from tollgate.stream.redis_streams import RedisFeed, RedisSource
from tollgate.stream.source import Feed, Source

LEASE_S, WAIT_S, LONG_S = 0.3, 0.05, 60.0


Carried = tuple[Feed, Callable[[], Source]]


@pytest.fixture(params=["redis", "kafka"])
def carried(
    request: pytest.FixtureRequest,
    kafka_cluster: MockCluster,
    make_topic: Callable[..., str],
    store_url: str,
    clock: Clock,
) -> Carried:
    """A feed of one partition, and the way to read it."""
    if request.param == "redis":

        def read() -> Source:
            return RedisSource(
                store_url, feed="feed", group="g", lease_s=LEASE_S, now_us=clock
            )

        return RedisFeed(store_url, feed="feed"), read
    topic, brokers = make_topic(partitions=1), kafka_cluster.brokers

    def poll() -> Source:
        settings = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200}
        return KafkaSource(
            brokers, topic=topic, group=topic, settings=settings, now_us=clock
        )

    return KafkaFeed(brokers, topic=topic, settings={}), poll


@pytest.fixture
def consumer_of(
    spec: FeatureSpec,
    store_url: str,
    open_store: Callable[..., RedisStore],
    clock: Clock,
) -> Iterator[Callable[..., StreamConsumer]]:
    """Make consumers that keep watermarks; they are closed after the test."""
    sources: list[Source] = []

    def make(source: Source, *, feeds: tuple[str, ...] = FEEDS, **options: Any) -> Any:
        sources.append(source)
        store = open_store(store_url, deadline_s=5)
        metrics = StreamMetrics(spec.product)
        marks = FeedMarks(
            source,
            store,
            product=spec.product,
            feeds=feeds,
            metrics=metrics,
            now_us=clock,
            interval_s=0,
        )
        return StreamConsumer(
            source,
            EventWriter(spec, store),
            metrics=metrics,
            marks=marks,
            now_us=clock,
            **options,
        )

    yield make
    for source in sources:
        source.close()


def bought(spec: FeatureSpec, *times_us: int, customer: bytes = b"c") -> list[bytes]:
    """Make purchase events of one customer."""
    count = len(times_us)
    return EventCodec(spec).encode_purchases(
        Purchases(
            transaction_id=[b"%d" % time_us for time_us in times_us],
            entity_id=[[customer] * count, [b"m"] * count],
            event_time_us=np.array(times_us),
            cents=np.full(count, 500),
        )
    )


def labelled(spec: FeatureSpec, time_us: int, *, known_us: int) -> list[bytes]:
    """Make the label of such a purchase."""
    return EventCodec(spec).encode_labels(
        Labels(
            transaction_id=[b"%d" % time_us],
            entity_id=[[b"c"], [b"m"]],
            event_time_us=np.array([time_us]),
            label=np.array([1], np.int8),
            label_time_us=np.array([known_us]),
            revision=np.array([0]),
        )
    )


def send(feed: Feed, events: list[bytes]) -> None:
    """Put a customer's events on a feed."""
    feed.send([b"c"] * len(events), events)


def step(consumer: StreamConsumer) -> int:
    """Step until something came; how many events."""
    until_s = time.monotonic() + LONG_S
    while time.monotonic() < until_s:
        if taken := consumer.step(threading.Event(), wait_s=WAIT_S):
            return taken
    raise AssertionError("nothing came")


def rest_until(consumer: StreamConsumer, done: Callable[[], bool]) -> None:
    """Step until something is so."""
    until_s = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < until_s
        consumer.step(threading.Event(), wait_s=WAIT_S)


def test_a_feed_that_lags_has_come_as_far_as_its_oldest_event(
    carried: Carried,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
    clock: Clock,
) -> None:
    """Six events of an hour ago, taken one by one: the mark follows, none ahead."""
    feed, read = carried
    begun_us = NOW_US - HOUR_US
    times_us = [begun_us + at * SECOND_US for at in range(6)]
    send(feed, bought(spec, *times_us[:5], NOW_US + HOUR_US))  # one clock is wrong
    send(feed, labelled(spec, begun_us, known_us=NOW_US - 9 * SECOND_US))
    consumer = consumer_of(read(), batch_events=1)
    for time_us in times_us[:5]:
        assert step(consumer) == 1
        assert mark_of(redis_client, PURCHASES) == time_us
        assert mark_of(redis_client, LABELS) is None
    assert step(consumer) == 1
    assert mark_of(redis_client, PURCHASES) == NOW_US  # held back to the clock
    assert step(consumer) == 1
    assert mark_of(redis_client, LABELS) in (NOW_US - 9 * SECOND_US, NOW_US)


def test_a_batch_is_as_old_as_its_oldest_event(
    spec: FeatureSpec,
    store_url: str,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
    clock: Clock,
) -> None:
    """A clock that is ahead moves nothing, and one that is late takes nothing back."""
    feed = RedisFeed(store_url, feed="feed")
    old_us = NOW_US - HOUR_US
    send(feed, bought(spec, old_us, NOW_US, old_us + 1))
    send(feed, bought(spec, old_us - HOUR_US, old_us + 2, old_us + 3))
    send(feed, bought(spec, old_us + 4))
    source = RedisSource(store_url, feed="feed", group="g", now_us=clock)
    consumer = consumer_of(source, batch_events=3)
    for _ in range(2):
        assert step(consumer) == 3
        assert mark_of(redis_client, PURCHASES) == old_us


def test_a_quiet_feed_is_not_a_stale_one(
    carried: Carried,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
    clock: Clock,
) -> None:
    """When all is applied and nothing comes, every feed moves on with the clock."""
    feed, read = carried
    send(feed, bought(spec, NOW_US - HOUR_US))
    consumer = consumer_of(read())
    assert step(consumer) == 1
    rest_until(consumer, lambda: mark_of(redis_client, PURCHASES) == NOW_US)
    clock.us += 5 * HOUR_US
    assert mark_of(redis_client, LABELS) == NOW_US
    for name in FEEDS:
        rest_until(consumer, lambda: mark_of(redis_client, name) == clock.us)  # noqa: B023


def test_a_feed_without_any_event_is_caught_up(
    carried: Carried,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
    clock: Clock,
) -> None:
    """An empty stream, or a topic of which this consumer has read nothing yet."""
    _, read = carried
    consumer = consumer_of(read())
    rest_until(consumer, lambda: mark_of(redis_client, LABELS) == NOW_US)
    consumer._source.close()
    clock.us += HOUR_US
    again = consumer_of(read())
    rest_until(again, lambda: mark_of(redis_client, LABELS) == clock.us)


def test_a_restarted_consumer_is_caught_up_where_the_last_one_ended(
    carried: Carried,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
    clock: Clock,
) -> None:
    """All was committed before it started, so nothing comes, and the mark moves on."""
    feed, read = carried
    send(feed, bought(spec, NOW_US - HOUR_US))
    first = consumer_of(read())
    step(first)
    first._source.close()
    clock.us += HOUR_US
    second = consumer_of(read())
    rest_until(second, lambda: mark_of(redis_client, PURCHASES) == clock.us)
    assert second.tally.applied == 0
    assert second._source.backlog() == 0  # of what it never polled, too
    assert second._source.partitions() == 1


def test_a_feed_that_cannot_be_reached_is_not_a_quiet_one(
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
    clock: Clock,
) -> None:
    """While Kafka is away nothing comes, either; the mark stays until it is back."""
    cluster = MockCluster(1)
    cluster.create_topic("events", partitions=1)
    source = KafkaSource(
        cluster.brokers, topic="events", group="g", settings={}, now_us=clock
    )
    consumer = consumer_of(source)
    rest_until(consumer, lambda: mark_of(redis_client, PURCHASES) == NOW_US)
    cluster.set_reachable(False)
    clock.us += HOUR_US
    for _ in range(8):
        consumer.step(threading.Event(), wait_s=WAIT_S)
    assert mark_of(redis_client, PURCHASES) == NOW_US
    cluster.set_reachable(True)
    rest_until(consumer, lambda: mark_of(redis_client, PURCHASES) == clock.us)
    source.close()
    cluster.close()


def test_only_the_feeds_that_it_brings_are_its_own(
    spec: FeatureSpec,
    store_url: str,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
    clock: Clock,
) -> None:
    """A feed of labels says nothing of purchases, be it quiet or not."""
    feed = RedisFeed(store_url, feed="feed")
    send(feed, bought(spec, NOW_US - HOUR_US))
    source = RedisSource(store_url, feed="feed", group="g", now_us=clock)
    consumer = consumer_of(source, feeds=(LABELS,))
    step(consumer)
    assert mark_of(redis_client, LABELS) == NOW_US
    assert mark_of(redis_client, PURCHASES) is None


@pytest.fixture
def ladder(spec: FeatureSpec, store_url: str, clock: Clock) -> Iterator[FallbackChain]:
    """A step's ladder that wants both feeds within ten minutes; streams update."""
    declared = msgspec.structs.replace(
        spec, feeds=dict.fromkeys(FEEDS, 600 * SECOND_US)
    )
    settings = StoreSettings(deadline_s=5.0, updates=False, marks=False)
    opened = open_fallback_chain(declared, store_url, settings=settings)
    opened._wall_us = clock
    yield opened
    opened.close()


def test_rows_say_so_while_a_feed_is_behind(
    carried: Carried,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
    ladder: FallbackChain,
    clock: Clock,
) -> None:
    """FEED_STALE before the stream runs, not while it does, and when it has stopped."""
    feed, read = carried
    customer = 0

    def stale() -> bool:
        nonlocal customer
        customer += 1
        clock.us += SECOND_US  # watermarks are read once a second
        row = Purchases(
            transaction_id=[b"r%d" % customer],
            entity_id=[[b"r%d" % customer], [b"m"]],
            event_time_us=np.array([clock.us]),
            cents=np.array([100]),
        )
        (scored,) = ladder.score([row], write=[True])
        return bool(scored.degraded[0] & Degraded.FEED_STALE)

    assert stale()
    send(feed, bought(spec, NOW_US - HOUR_US))
    consumer = consumer_of(read())
    step(consumer)
    rest_until(consumer, lambda: not stale())
    clock.us += HOUR_US  # an hour without an event
    rest_until(consumer, lambda: not stale())
    clock.us += 300 * SECOND_US  # and more than ten minutes without a consumer
    assert not stale()
    clock.us += 400 * SECOND_US
    assert stale()


def test_metrics_report_the_watermark_of_each_feed(
    spec: FeatureSpec,
    store_url: str,
    consumer_of: Callable[..., StreamConsumer],
    clock: Clock,
) -> None:
    """Watermark, its age once a second, and lag, feed by feed."""
    feed = RedisFeed(store_url, feed="feed")
    send(feed, bought(spec, NOW_US - 10 * SECOND_US))
    send(feed, labelled(spec, NOW_US - HOUR_US, known_us=NOW_US - 20 * SECOND_US))
    source = RedisSource(store_url, feed="feed", group="g", now_us=clock)
    consumer = consumer_of(source)
    consumer._backlog_at_s = np.inf  # or the lag is reported as 0
    assert step(consumer) == 2
    text = generate_latest(consumer._metrics.registry).decode().splitlines()
    for name, lag_s in ((PURCHASES, 10.0), (LABELS, 20.0)):
        of = f'{{feed="{name}",product="fraud"}}'
        assert f"tollgate_stream_lag_seconds{of} {lag_s}" in text
        assert f"tollgate_stream_event_lag_seconds_sum{of} {lag_s}" in text
        assert f"tollgate_stream_feed_age_seconds_count{of} 1.0" in text
        (mark,) = [
            line
            for line in text
            if line.startswith(f"tollgate_stream_feed_watermark_seconds{of}")
        ]
        assert float(mark.split()[-1]) == NOW_US / 1e6
