"""Readings and alarms over Kafka and MQTT: the same chain, and the same promises."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stream.alarm_chain import amounts, make_consumer
from tests.support.stream.mock_kafka import MockCluster
from tollgate.alarms.consumer import AlarmConsumer
from tollgate.errors import StoreError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.stream.kafka import KafkaFeed, KafkaSource
from tollgate.stream.mqtt import MqttFeed, MqttSource
from tollgate.stream.source import Feed, Source
from tollgate.testing import Answer, TestServer
from tollgate.testing.mosquitto import Mosquitto

LONG_S = 60.0
# A mock broker lets a group that all have left be joined after this time only.
SETTINGS = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200}
Feeds = tuple[Callable[[str], Source], Callable[[str], Feed]]
_groups = itertools.count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Feeds]:
    """Topics `readings` and `alarms` of a Kafka cluster."""
    cluster = MockCluster(1)
    for topic in ("readings", "alarms", "readings.dead-letters"):
        cluster.create_topic(topic, partitions=1)
    yield (
        lambda topic: KafkaSource(
            cluster.brokers, topic=topic, group=f"alarm-{topic}", settings=SETTINGS
        ),
        lambda topic: KafkaFeed(cluster.brokers, topic=topic, settings={}),
    )
    cluster.close()


@pytest.fixture(scope="module")
def mqtt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feeds]:
    """The same topics of a mosquitto, with sessions that wait for messages."""
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as broker:

        def source(topic: str) -> Source:
            return MqttSource(broker.url, topic=topic, group=f"alarm-{topic}")

        for topic in ("readings", "alarms"):
            first = source(topic)
            until_s = time.monotonic() + LONG_S
            while not first.partitions():
                assert time.monotonic() < until_s
                time.sleep(0.01)
            first.close()
        yield source, lambda topic: MqttFeed(broker.url, topic=topic)


@pytest.fixture(
    params=["kafka", pytest.param("mqtt", marks=pytest.mark.system("mosquitto"))]
)
def feeds(request: pytest.FixtureRequest) -> Feeds:
    """Either system."""
    found: Feeds = request.getfixturevalue(request.param)
    return found


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the consumer runs after it."""


def test_a_consumer_that_dies_loses_no_alarm(
    feeds: Feeds, spec: FeatureSpec, store_url: str, tmp_path: Path
) -> None:
    """The readings come again from the broker, and give alarms with the same ids."""
    make_source, make_feed = feeds

    def die(step: str) -> None:
        if step == "sent":
            raise Killed

    def consumer(server: TestServer, **options: Any) -> AlarmConsumer:
        return make_consumer(
            make_source("readings"),
            make_feed("alarms"),
            spec=spec,
            store_url=store_url,
            server_url=server.url,
            stopped=threading.Event(),
            **options,
        )

    with TestServer() as server:
        server.answer_by(
            lambda row: Answer("decline") if row.values["amount"] > 100 else None
        )
        publisher = make_feed("readings")
        publisher.send([b"m"] * 4, amounts([200, 1, 300, 1]))
        first = consumer(server, on_step=die)
        with pytest.raises(Killed):
            steps(first, 4)
        first._source.close()  # as its broker does when the process is gone
        second = consumer(server)
        steps(second, 4)
        reader = make_source("alarms")
        alarms = read(reader, 5)  # of the first consumer one or more, then four
        for one in (reader, publisher, second._source, second._alarms, second._scorer):
            one.close()  # type: ignore[attr-defined]
        first._alarms.close()
        first._scorer.close()
    names = [one["reading_id"] for one in alarms]
    assert set(names) == {"m-r0", "m-r1", "m-r2", "m-r3"}
    assert names.count("m-r0") == 2
    assert len({one["alarm_id"] for one in alarms}) == 4


def steps(consumer: AlarmConsumer, readings: int) -> None:
    """Step until so many readings were handled."""
    until_s = time.monotonic() + LONG_S
    while readings > 0:
        assert time.monotonic() < until_s
        readings -= consumer.step(wait_s=0.1)


def read(source: Source, count: int) -> list[dict[str, Any]]:
    """Read so many alarms."""
    found: list[dict[str, Any]] = []
    until_s = time.monotonic() + LONG_S
    while len(found) < count:
        assert time.monotonic() < until_s, found
        try:
            found += [json.loads(one.value) for one in source.poll(most=9, wait_s=0.2)]
        except StoreError:
            time.sleep(0.1)
        else:
            source.commit()
    return found
