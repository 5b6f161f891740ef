"""Two consumers of one feed: they share its partitions, and no event is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import redis

from tests.support.stream.feeds import LONG_S, NOW_US, WAIT_S, Made, purchases, send
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases
from tollgate.stream.consumer import StreamConsumer


def test_two_consumers_share_the_partitions_of_a_feed(
    made: Made, spec: FeatureSpec, consumer_of: Callable[..., StreamConsumer]
) -> None:
    """Each of two consumers gets one of two partitions, and takes over the other."""
    _, source, _ = made
    both = [consumer_of(source()) for _ in range(2)]
    stopped = threading.Event()

    def held() -> list[int]:
        for consumer in both:
            consumer.step(stopped, wait_s=WAIT_S)
            consumer._source.backlog()
        return [consumer._source.partitions() for consumer in both]

    until_s = time.monotonic() + LONG_S
    while held() != [1, 1]:
        assert time.monotonic() < until_s, held()
    both.pop()._source.close()
    while held() != [2]:
        assert time.monotonic() < until_s, held()


def values(client: redis.Redis) -> dict[bytes, bytes]:
    """Read every entity's value."""
    keys = [*client.keys(b"*:customer:*"), *client.keys(b"*:terminal:*")]
    return dict(zip(keys, client.mget(keys), strict=True))


def test_events_that_come_during_a_rebalance_land_once(
    made: Made,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
    open_store: Callable[..., RedisStore],
    tmp_path: Path,
) -> None:
    """
    A second consumer joins, then the first one leaves, while events keep coming.

    Each customer's events come by one partition; in the end every value is that of a
    store which got all events in their order.
    """
    feed, source, dead = made
    sent: list[Purchases] = []
    stopped = threading.Event()

    def step(*consumers: StreamConsumer, done: Callable[[], bool]) -> None:
        until_s = time.monotonic() + LONG_S
        while not done():
            assert time.monotonic() < until_s
            number = len(sent)
            bought = purchases(
                *(b"%d-%d" % (number, row) for row in range(5)),
                time_us=NOW_US + 1_000 * number,
                customer=b"c%d" % (number % 7),
            )
            sent.append(bought)
            send(feed, spec, bought)
            for consumer in consumers:
                consumer.step(stopped, wait_s=0.01)

    first = consumer_of(source(), batch_events=20)
    step(first, done=lambda: first.tally.applied > 100)
    second = consumer_of(source(), batch_events=20)
    step(first, second, done=lambda: second.tally.applied > 100)
    first._source.close()
    step(second, done=lambda: second.tally.applied > 200)
    count = 5 * len(sent)
    until_s = time.monotonic() + LONG_S
    while first.tally.applied + second.tally.applied < count:
        assert time.monotonic() < until_s
        second.step(stopped, wait_s=WAIT_S)
    with EmbeddedRedis(tmp_path) as other, redis.Redis.from_url(other.url) as client:
        writer = EventWriter(spec, open_store(other.url))
        for bought in sent:
            writer.purchases(bought)
        assert values(redis_client) == values(client)
    assert dead() == []
