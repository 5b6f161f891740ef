"""Feeds and consumers for the tests of this folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
import redis

from tests.support.stream.feeds import LEASE_S, LONG_S, NOW_US, Made
from tests.support.stream.mock_kafka import MockCluster
from tests.support.stream.watermarks import Clock
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import RedisStore
from tollgate.stream.consumer import StreamConsumer, StreamMetrics
from tollgate.stream.kafka import KafkaFeed, KafkaSource
from tollgate.stream.redis_streams import RedisFeed, RedisSource
from tollgate.stream.source import Source

_numbers = itertools.count()


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[MockCluster]:
    """One cluster of three brokers for all tests."""
    cluster = MockCluster(3)
    yield cluster
    cluster.close()


@pytest.fixture
def make_topic(kafka_cluster: MockCluster) -> Callable[..., str]:
    """Make a topic that no other test uses; its name."""

    def make(*, partitions: int, name: str = "events") -> str:
        topic = f"{name}-{next(_numbers)}"
        kafka_cluster.create_topic(topic, partitions=partitions)
        kafka_cluster.create_topic(f"{topic}.dead-letters", partitions=1)
        return topic

    return make


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


@pytest.fixture
def clock() -> Clock:
    """The one clock of consumers, feeds and steps."""
    return Clock()
