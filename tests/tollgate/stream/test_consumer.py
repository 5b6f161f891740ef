"""A consumer over real feeds: what lands, what is buried, what survives."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import pytest
import redis
from mock_kafka import MockCluster
from prometheus_client import generate_latest

from tollgate.errors import StoreError
from tollgate.features.entries import FRAUD, LABELLED, PURCHASE, unpack_values
from tollgate.features.spec import FeatureSpec
from tollgate.server.redis import EmbeddedRedis
from tollgate.store.events import Labels, Packer, Purchases
from tollgate.store.redis import RedisStore
from tollgate.store.writer import FOREIGN, TOO_LATE, EventWriter
from tollgate.stream.consumer import StreamConsumer
from tollgate.stream.events import EventCodec
from tollgate.stream.feed import Feed, KafkaFeed, RedisFeed
from tollgate.stream.kafka import KafkaSource
from tollgate.stream.metrics import StreamMetrics
from tollgate.stream.redis_streams import RedisSource
from tollgate.stream.source import Source

DAY_US = 86_400_000_000
NOW_US = 1_700_000_000_000_000
LEASE_S = 0.3
WAIT_S = 0.05
LONG_S = 30.0

Made = tuple[Feed, Callable[[], Source], Callable[[], list[dict[str, str]]]]


def purchases(
    *ids: bytes, time_us: int = NOW_US, customer: bytes = b"c", step_us: int = 1
) -> Purchases:
    """Purchases of one customer at one terminal, one after the other."""
    count = len(ids)
    return Purchases(
        transaction_id=list(ids),
        entity_id=[[customer] * count, [b"m"] * count],
        event_time_us=time_us + step_us * np.arange(count),
        cents=np.full(count, 500),
    )


def labels(*ids: bytes, revision: int = 0, label: int = 1) -> Labels:
    """Labels of such purchases."""
    bought = purchases(*ids)
    return Labels(
        transaction_id=bought.transaction_id,
        entity_id=bought.entity_id,
        event_time_us=bought.event_time_us,
        label=np.full(len(ids), label, np.int8),
        label_time_us=bought.event_time_us + 1,
        revision=np.full(len(ids), revision),
    )


@pytest.fixture
def of_redis(store_url: str) -> Made:
    """A feed of two Redis Streams."""
    client = redis.Redis.from_url(store_url, decode_responses=True)

    def dead() -> list[dict[str, str]]:
        return [fields for _, fields in client.xrange("feed:dead-letters")]

    def source() -> Source:
        return RedisSource(
            store_url, feed="feed", group="g", partitions=2, lease_s=LEASE_S
        )

    return RedisFeed(store_url, feed="feed", partitions=2), source, dead


@pytest.fixture
def of_kafka(
    kafka_cluster: MockCluster, make_topic: Callable[..., str], store_url: str
) -> Made:
    """A Kafka topic of two partitions."""
    topic = make_topic(partitions=2)
    brokers = kafka_cluster.brokers

    def dead() -> list[dict[str, str]]:
        reader = confluent_kafka.Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": f"{topic}.dead",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        reader.subscribe([f"{topic}.dead-letters"])
        found = []
        while (one := reader.poll(LONG_S)) is not None and one.error() is None:
            headers = {name: text.decode() for name, text in one.headers()}
            found.append({"event": one.value().decode("latin-1"), **headers})
        reader.close()
        return found

    # A mock broker lets a group that all have left be joined after this time only.
    settings = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200}

    def source() -> Source:
        return KafkaSource(
            brokers,
            topic=topic,
            group=topic,
            settings=settings,
        )

    return KafkaFeed(brokers, topic=topic, settings={}), source, dead


@pytest.fixture(params=["redis", "kafka"])
def made(request: pytest.FixtureRequest) -> Made:
    """Either feed."""
    found: Made = request.getfixturevalue(f"of_{request.param}")
    return found


@pytest.fixture
def consumer_of(
    spec: FeatureSpec, store_url: str, open_store: Callable[..., RedisStore]
) -> Iterator[Callable[..., StreamConsumer]]:
    """Make consumers; their sources are closed after the test."""
    sources: list[Source] = []

    def make(source: Source, **options: Any) -> StreamConsumer:
        sources.append(source)
        writer = EventWriter(spec, open_store(store_url, deadline_s=5))
        metrics = StreamMetrics(spec.product)
        return StreamConsumer(
            source, writer, metrics=metrics, now_us=lambda: NOW_US, **options
        )

    yield make
    for source in sources:
        source.close()


def drain(consumer: StreamConsumer, events: int) -> None:
    """Step until so many events were taken."""
    stopped = threading.Event()
    until_s = time.monotonic() + LONG_S
    while events > 0 and time.monotonic() < until_s:
        events -= consumer.step(stopped, wait_s=WAIT_S)
    assert events == 0


def send(feed: Feed, spec: FeatureSpec, *events: Purchases | Labels | bytes) -> int:
    """Put events on a feed, one after the other; how many."""
    codec, sent = EventCodec(spec), 0
    for one in events:
        if isinstance(one, bytes):
            feed.send([b"c"], [one])
            sent += 1
        else:
            write = (
                codec.encode_purchases
                if isinstance(one, Purchases)
                else codec.encode_labels
            )
            feed.send(one.entity_id[0], write(one))  # type: ignore[operator]
            sent += len(one)
    return sent


def entries_of(spec: FeatureSpec, client: redis.Redis, customer: bytes = b"c") -> Any:
    """Read a customer's entries."""
    value = client.get(Packer(spec).key(0, customer))
    return unpack_values([value or b""]).entries


def test_purchases_and_labels_land_once(
    made: Made,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
) -> None:
    """Duplicates change nothing, and a label that comes first waits."""
    feed, source, dead = made
    sent = send(feed, spec, labels(b"1"), purchases(b"1", b"2"), purchases(b"1"))
    sent += send(feed, spec, labels(b"1", revision=1, label=0), labels(b"1"))
    consumer = consumer_of(source())
    drain(consumer, sent)
    entries = entries_of(spec, redis_client)
    assert entries.purchase.astype(bool).tolist() == [True, True]
    assert entries.fraud.tolist() == [False, False]  # revision 1 took it back
    assert (consumer.tally.applied, consumer.tally.duplicates) == (4, 2)
    assert dead() == []


def test_what_cannot_be_applied_is_buried_with_the_reason(
    made: Made,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
) -> None:
    """Poison, events past the horizon and foreign values go to the dead letters."""
    feed, source, dead = made
    redis_client.set(Packer(spec).key(0, b"odd"), b"not ours")
    old = NOW_US - 60 * DAY_US
    sent = send(feed, spec, b"no event", purchases(b"1"))
    sent += send(feed, spec, purchases(b"0", time_us=old), b"{}")
    sent += send(feed, spec, purchases(b"2", customer=b"odd"))
    consumer = consumer_of(source())
    drain(consumer, sent)
    buried = dead()
    assert consumer.tally.buried == len(buried) == 4
    reasons = [one["reason"] for one in buried]
    assert sorted(reasons)[0].startswith("JSON") or "event" in " ".join(reasons)
    assert TOO_LATE in reasons
    assert FOREIGN in reasons
    assert "no event" in [one["event"] for one in buried]
    assert all(one["position"] for one in buried)
    assert entries_of(spec, redis_client).purchase.tolist() == [PURCHASE]
    assert redis_client.get(Packer(spec).key(0, b"odd")) == b"not ours"


def test_what_was_not_committed_is_handed_out_again(
    made: Made,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
) -> None:
    """A consumer that dies between applying and committing costs no event."""
    feed, source, _ = made
    sent = send(feed, spec, purchases(b"1", b"2", b"3"))
    first = source()
    until_s = time.monotonic() + LONG_S
    polled = 0
    while polled < sent and time.monotonic() < until_s:
        polled += len(first.poll(most=10, wait_s=WAIT_S))
    assert polled == sent
    first.close()  # without a commit
    second = consumer_of(source())
    drain(second, sent)
    assert second.tally.applied == sent
    third = consumer_of(source())
    second._source.close()
    assert third.step(threading.Event(), wait_s=1.0) == 0
    assert len(entries_of(spec, redis_client).time_us) == sent


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


class Flaky:
    """A writer whose store is away for a number of calls."""

    def __init__(self, writer: EventWriter, *, failures: int) -> None:
        self.spec = writer.spec
        self._writer = writer
        self.failures = failures

    def purchases(self, events: Purchases) -> Any:
        """Fail, or write."""
        self.failures -= 1
        if self.failures >= 0:
            raise StoreError("away")
        return self._writer.purchases(events)

    def labels(self, events: Labels) -> Any:
        """Write."""
        return self._writer.labels(events)


def test_a_store_that_is_away_is_waited_for(
    of_redis: Made,
    spec: FeatureSpec,
    store_url: str,
    open_store: Callable[..., RedisStore],
) -> None:
    """A batch is tried until the store takes it; told to stop, it is not committed."""
    feed, source, _ = of_redis
    sent = send(feed, spec, purchases(b"1"))
    writer = Flaky(EventWriter(spec, open_store(store_url, deadline_s=5)), failures=10)
    feeding: Any = writer
    metrics = StreamMetrics("fraud")
    one = source()
    consumer = StreamConsumer(one, feeding, metrics=metrics)
    stopped = threading.Event()
    threading.Timer(0.3, stopped.set).start()
    consumer.step(stopped, wait_s=1.0)
    assert consumer.tally.batches == 0
    writer.failures = 2
    drain(consumer, 0)
    again = StreamConsumer(source(), feeding, metrics=metrics)
    one.close()
    drain(again, sent)
    assert (again.tally.applied, again.tally.retries) == (1, 2)


def test_metrics_say_what_was_done(
    of_redis: Made, spec: FeatureSpec, consumer_of: Callable[..., StreamConsumer]
) -> None:
    """Counts by kind and outcome, backlog and lag are there to be scraped."""
    feed, source, _ = of_redis
    sent = send(feed, spec, purchases(b"1", b"2"), labels(b"1"), b"poison")
    consumer = consumer_of(source())
    drain(consumer, sent)
    consumer._backlog_at_s = 0.0
    consumer.step(threading.Event(), wait_s=WAIT_S)
    text = generate_latest(consumer._metrics.registry).decode()
    count = 'tollgate_stream_events_total{kind="%s",outcome="%s",product="fraud"} %s'
    for line in (
        count % ("purchase", "applied", 2.0),
        count % ("label", "applied", 1.0),
        count % ("unknown", "poison", 1.0),
        'tollgate_stream_backlog{product="fraud"} 0.0',
        'tollgate_stream_lag_seconds{feed="purchases",product="fraud"} 0.0',
        'tollgate_stream_lag_seconds{feed="labels",product="fraud"} 0.0',
    ):
        assert line in text.splitlines()


def test_applied_events_leave_the_stream_after_their_time(
    store_url: str,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
) -> None:
    """What is applied and older than retained is removed, what waits never."""
    feed = RedisFeed(store_url, feed="feed")
    source = RedisSource(store_url, feed="feed", group="g", retain_s=-60.0)
    consumer = consumer_of(source)
    drain(consumer, send(feed, spec, purchases(b"1", b"2")))
    send(feed, spec, purchases(b"3", b"4"))
    source._tidy()
    left = [json.loads(fields[b"event"]) for _, fields in redis_client.xrange("feed:0")]
    # The last one handed out marks the place, and stays.
    assert [one["transaction_id"] for one in left] == ["2", "3", "4"]


def test_a_label_alone_holds_its_place_until_the_purchase_comes(
    of_redis: Made,
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
    redis_client: redis.Redis,
) -> None:
    """An early label is kept as a label, and joins its purchase later."""
    feed, source, _ = of_redis
    consumer = consumer_of(source())
    drain(consumer, send(feed, spec, labels(b"1")))
    assert entries_of(spec, redis_client).purchase.tolist() == [0]
    drain(consumer, send(feed, spec, purchases(b"1")))
    entries = entries_of(spec, redis_client)
    assert (entries.purchase.tolist(), entries.fraud.tolist()) == ([1], [True])
    assert PURCHASE | LABELLED | FRAUD == 7


def test_a_store_that_dies_and_returns_gets_every_event(
    spec: FeatureSpec,
    tmp_path: Any,
    store_url: str,
    consumer_of: Callable[..., StreamConsumer],
    open_store: Callable[..., RedisStore],
) -> None:
    """The feed's Redis lives on while the store's is stopped for a while."""
    feed = RedisFeed(store_url, feed="feed")
    sent = send(feed, spec, purchases(*(b"%d" % n for n in range(50))))
    with EmbeddedRedis(tmp_path) as store:
        url = store.url
        client = redis.Redis.from_url(url)
        client.client_pause(300)  # it takes connections and answers nothing
        consumer = StreamConsumer(
            RedisSource(store_url, feed="feed", group="g", lease_s=LEASE_S),
            EventWriter(spec, open_store(url, deadline_s=0.05)),
            metrics=StreamMetrics("fraud"),
            now_us=lambda: NOW_US,
        )
        drain(consumer, sent)
        assert consumer.tally.retries > 0
        assert len(entries_of(spec, client).time_us) == sent
        client.close()
