"""A consumer over real feeds: applied events, dead letters, and restarts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import redis
from prometheus_client import generate_latest

from tests.support.store.hot_entities import (
    HOUR_US,
    Served,
    busy_history,
    busy_spec,
    serve_after,
)
from tests.support.stream.feeds import (
    DAY_US,
    LEASE_S,
    LONG_S,
    NOW_US,
    WAIT_S,
    Made,
    drain,
    labels,
    purchases,
    send,
)
from tollgate.errors import StoreError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import (
    FRAUD,
    LABELLED,
    PURCHASE,
    unpack_values,
)
from tollgate.replay import purchases_of
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.event_writer import INCOMPATIBLE, TOO_LATE, EventWriter
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Labels, Packer, Purchases
from tollgate.stream.consumer import StreamConsumer, StreamMetrics
from tollgate.stream.redis_streams import RedisFeed, RedisSource


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
    assert entries.fraud_at.tolist() == []  # revision 1 took it back
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
    assert consumer.tally.dead_letters == len(buried) == 4
    reasons = [one["reason"] for one in buried]
    assert sorted(reasons)[0].startswith("JSON") or "event" in " ".join(reasons)
    assert TOO_LATE in reasons
    assert INCOMPATIBLE in reasons
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
    """A batch is tried until the store takes it; after a stop it is not committed."""
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
    """An early label is stored as a label, and joins its purchase later."""
    feed, source, _ = of_redis
    consumer = consumer_of(source())
    drain(consumer, send(feed, spec, labels(b"1")))
    assert entries_of(spec, redis_client).purchase.tolist() == [0]
    drain(consumer, send(feed, spec, purchases(b"1")))
    entries = entries_of(spec, redis_client)
    assert (entries.purchase.tolist(), entries.fraud_at.tolist()) == ([1], [0])
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


def test_tiles_filled_by_a_feed_serve_the_offline_vectors(
    tmp_path: Path,
    store_url: str,
    open_store: Callable[..., RedisStore],
    redis_client: redis.Redis,
) -> None:
    """A batch that is delivered again is not counted again."""
    feed = RedisFeed(store_url, feed="feed")
    spec = busy_spec(tmp_path)
    history = busy_history(spec, count=3_000, days=20)
    history = msgspec.structs.replace(history, label=np.zeros(3_000, np.int8))
    sent = send(feed, spec, purchases_of(spec, history, np.arange(2_000)))
    now_us = int(history.event_time_us[-1]) + HOUR_US
    metrics = StreamMetrics(spec.product)

    def consumer() -> StreamConsumer:
        return StreamConsumer(
            RedisSource(store_url, feed="feed", group="g", lease_s=LEASE_S),
            EventWriter(spec, open_store(store_url)),
            metrics=metrics,
            batch_events=500,
            now_us=lambda: now_us,
        )

    killed = consumer()
    killed._source.commit = lambda: None  # type: ignore[method-assign]
    killed.step(threading.Event(), wait_s=LONG_S)
    applied = killed.tally.applied
    assert applied > 0
    killed._source.close()
    again = consumer()
    drain(again, sent)
    assert applied + again.tally.applied == sent
    assert again.tally.duplicates + again.tally.dead_letters == applied
    letters = redis_client.xrange("feed:dead-letters")
    reasons = [one[b"reason"] for _, one in letters]
    assert len(reasons) == again.tally.dead_letters > applied // 2
    assert all(b"in tiles" in one for one in reasons)
    again._source.close()
    served = serve_after(
        spec, history, open_store(store_url), after_us=int(history.event_time_us[1_999])
    )
    assert served == Served(rows=1_000, different=0, marked=0)
