"""
Kill consumers at random moments and compare the store with an undisturbed one.

    python tests/tollgate/stream/kill_consumers.py --kills 100 [--kafka]

Two real Redis servers, a simulated history, one consumer at a time, each killed with
SIGKILL while it works; prints one JSON object. "identical" says whether every
entity's value has the same bytes in both stores at the end. Kafka's partitions are
not in step with one another, so there the history must fit the shortest horizon.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import redis

from tests.support.checkout import checkout_environment
from tests.support.stream.mock_kafka import MockCluster
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import history_of
from tollgate.replay import labels_of, purchases_of, spans
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.simulate import simulate
from tollgate.store.event_writer import EventWriter
from tollgate.store.lookups import FEEDS
from tollgate.store.redis.redis_store import RedisStore
from tollgate.stream.consumer import FeedMarks, StreamConsumer, StreamMetrics
from tollgate.stream.events import EventCodec
from tollgate.stream.kafka import KafkaFeed, KafkaSource
from tollgate.stream.redis_streams import RedisFeed, RedisSource

SPEC = Path(__file__).resolve().parents[3] / (
    "model_repository/fraud_features/1/features.yaml"
)
TOPIC, GROUP = "events", "kill"
BATCH_EVENTS = 200
LEASE_S = 0.2
LONGEST_LIFE_S = 0.3  # with partitions in hand: some thousand events


def events_of(
    spec: FeatureSpec, *, customers: int, days: int
) -> tuple[list[bytes], list[bytes]]:
    """Simulate purchases and labels; their keys and messages, in order."""
    frame = simulate(
        customers=customers,
        terminals=customers * 2,
        days=days,
        start=date(2024, 4, 1),
        seed=1,
    )
    history = history_of(frame, spec=spec, source="simulated")
    codec = EventCodec(spec)
    keys: list[bytes] = []
    messages: list[bytes] = []
    for span in spans(spec, history):
        labels = labels_of(spec, history, span.labels)
        purchases = purchases_of(spec, history, span.purchases)
        for events, texts in (
            (labels, codec.encode_labels(labels)),
            (purchases, codec.encode_purchases(purchases)),
        ):
            keys += events.entity_id[0]
            messages += texts
    return keys, messages


def consume(store_url: str, feed: dict[str, Any]) -> None:
    """Apply a feed until it is empty for a while; run in a process of its own."""
    spec = load_spec(SPEC)
    source: Any
    if "brokers" in feed:
        settings = {
            "session.timeout.ms": 1000,
            "heartbeat.interval.ms": 200,
            "group.instance.id": "one",
        }
        source = KafkaSource(
            feed["brokers"], topic=TOPIC, group=GROUP, settings=settings
        )
    else:
        source = RedisSource(feed["url"], feed=TOPIC, group=GROUP, lease_s=LEASE_S)
    store, metrics = RedisStore(store_url, deadline_s=5), StreamMetrics(spec.product)
    consumer = StreamConsumer(
        source,
        EventWriter(spec, store),
        metrics=metrics,
        marks=FeedMarks(
            source, store, product=spec.product, feeds=FEEDS, metrics=metrics
        ),
        batch_events=BATCH_EVENTS,
    )
    stopped = threading.Event()
    while not source.partitions():  # those of the one before are not free at once
        consumer.step(stopped)
        source.backlog()
    print("ready", flush=True)
    while consumer.step(stopped) or source.backlog() > 0 or not source.partitions():
        pass
    source.close()
    print(json.dumps({"applied": consumer.tally.applied}), flush=True)


def start(store_url: str, feed: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a consumer and wait until it works."""
    arguments = [sys.executable, __file__, "--consume", store_url, json.dumps(feed)]
    child = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, env=checkout_environment()
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


def values_of(url: str) -> dict[bytes, bytes]:
    """Read every entity's value."""
    client = redis.Redis.from_url(url)
    keys = sorted(
        key
        for key in client.scan_iter(b"tollgate:*", count=10_000)
        if b":feed:" not in key  # what a killed one wrote of its progress
    )
    return dict(zip(keys, client.mget(keys), strict=True)) if keys else {}


def apply_undisturbed(url: str, spec: FeatureSpec, messages: list[bytes]) -> None:
    """Apply messages in their order, with nobody in the way."""
    codec = EventCodec(spec)
    writer = EventWriter(spec, RedisStore(url, deadline_s=30))
    for start_at in range(0, len(messages), BATCH_EVENTS):
        decoded = codec.decode(
            messages[start_at : start_at + BATCH_EVENTS],
            now_us=time.time_ns() // 1000,
        )
        writer.purchases(decoded.purchases)
        writer.labels(decoded.labels)


def kill_one(store_url: str, feed: dict[str, Any], *, after_s: float) -> bool:
    """Start a consumer and kill it; was it at work?"""
    child = start(store_url, feed)
    time.sleep(after_s)
    child.kill()
    return not child.communicate()[0]


def run(
    *, kills: int, kafka: bool, customers: int, days: int, seed: int = 0
) -> dict[str, Any]:
    """Do it; what was found."""
    spec = load_spec(SPEC)
    keys, messages = events_of(spec, customers=customers, days=days)
    chance = random.Random(seed)
    with ExitStack() as stack:
        kept, killed = (
            stack.enter_context(
                EmbeddedRedis(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            )
            for _ in range(2)
        )
        apply_undisturbed(kept.url, spec, messages)
        feed = _send(stack, killed.url, keys, messages, kafka=kafka)
        at_work = sum(
            kill_one(killed.url, feed, after_s=chance.uniform(0, LONGEST_LIFE_S))
            for _ in range(kills)
        )
        last = start(killed.url, feed)
        reported = json.loads(last.communicate()[0])
        values = values_of(killed.url)
        same = bool(values) and values == values_of(kept.url)
    return {
        "feed": "kafka" if kafka else "redis streams",
        "events": len(messages),
        "kills": kills,
        "killed_at_work": at_work,
        "left_to_the_last": reported["applied"],
        "entities": len(values),
        "identical": same,
    }


def _send(
    stack: ExitStack,
    url: str,
    keys: list[bytes],
    messages: list[bytes],
    *,
    kafka: bool,
) -> dict[str, Any]:
    """Put all messages on a feed; how to reach it."""
    feed: Any
    if kafka:
        cluster = MockCluster(1)
        stack.callback(cluster.close)
        # A mock broker keeps the last 5 MB of a partition, and drops what is older.
        partitions = 2 + sum(map(len, messages)) // 2_000_000
        cluster.create_topic(TOPIC, partitions=partitions)
        feed = KafkaFeed(cluster.brokers, topic=TOPIC, settings={})
        reported = {"brokers": cluster.brokers}
    else:
        feed = RedisFeed(url, feed=TOPIC)
        reported = {"url": url}
    for start_at in range(0, len(messages), 5_000):
        part = slice(start_at, start_at + 5_000)
        feed.send(keys[part], messages[part])
    feed.close()
    return reported


def main() -> None:
    """Read the arguments and print what was found."""
    if "--consume" in sys.argv:
        consume(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--customers", type=int, default=3_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    found = run(**vars(parser.parse_args()))
    print(json.dumps(found, indent=2))
    sys.exit(0 if found["identical"] else 1)


if __name__ == "__main__":
    main()
