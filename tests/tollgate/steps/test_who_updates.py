"""Who writes what is scored: the call, a stream, or both; and never a dry run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.repair.drain import SpoolDrain
from tollgate.repair.event_spool import PurchaseSpool
from tollgate.repair.spool_segments import segments
from tollgate.schema import STORE_DEADLINE_PARAMETER, UPDATES, UPDATES_PARAMETER
from tollgate.schema import Applied as A
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.steps.store_parameters import store_settings
from tollgate.store.event_writer import EventWriter
from tollgate.store.fallback.fallback_chain import FallbackChain, Spool
from tollgate.store.lookups import FEEDS, PURCHASES, feed_key
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Labels, Packer, Purchases
from tollgate.store.store_opening import open_fallback_chain
from tollgate.stream.consumer import FeedMarks, StreamConsumer, StreamMetrics
from tollgate.stream.events import EventCodec
from tollgate.stream.redis_streams import RedisFeed, RedisSource

NOW_US = time.time_ns() // 1000
DAY_US = 86_400_000_000
ROWS = 24
OpenLadder = Callable[..., FallbackChain]
Dump = dict[bytes, bytes]


def purchases(first: int, rows: int, *, at_us: int = NOW_US) -> Purchases:
    """Purchases with numbered ids, of four customers at three terminals."""
    number = np.arange(first, first + rows)
    return Purchases(
        transaction_id=[b"t%d" % one for one in number],
        entity_id=[
            [b"c%d" % (one % 4) for one in number],
            [b"m%d" % (one % 3) for one in number],
        ],
        event_time_us=at_us + 1_000 * number,
        cents=100 + number,
    )


def batches() -> list[Purchases]:
    """The purchases of a test, as they are scored."""
    return [purchases(first, 8) for first in range(0, ROWS, 8)]


@pytest.fixture
def ladder_of(spec: FeatureSpec, store_url: str) -> Iterator[OpenLadder]:
    """Open a step's ladder by its `updates`; closed after the test."""
    opened = []

    def open_(
        updates: str, *, url: str = store_url, spool: Spool | None = None
    ) -> FallbackChain:
        parameters = {UPDATES_PARAMETER: updates, STORE_DEADLINE_PARAMETER: "5000"}
        ladder = open_fallback_chain(
            spec, url, settings=store_settings(parameters), spool=spool
        )
        opened.append(ladder)
        return ladder

    yield open_
    for ladder in opened:
        ladder.close()


@pytest.fixture
def bring(
    spec: FeatureSpec, store_url: str, open_store: Callable[..., RedisStore]
) -> Callable[..., tuple[int, int]]:
    """Let a stream bring purchases; how many it applied, and how many were there."""

    def bring_(*batches: Purchases, url: str = store_url) -> tuple[int, int]:
        feed, codec = RedisFeed(url, feed="feed"), EventCodec(spec)
        for batch in batches:
            feed.send(batch.entity_id[0], codec.encode_purchases(batch))
        feed.close()
        source = RedisSource(url, feed="feed", group="g")
        store, metrics = open_store(url), StreamMetrics(spec.product)
        consumer = StreamConsumer(
            source,
            EventWriter(spec, store),
            metrics=metrics,
            marks=FeedMarks(
                source, store, product=spec.product, feeds=FEEDS, metrics=metrics
            ),
        )
        while consumer.step(threading.Event(), wait_s=0.02):
            pass
        source.close()
        return consumer.tally.applied, consumer.tally.duplicates

    return bring_


def values(client: redis.Redis) -> Dump:
    """Read every entity's value."""
    keys = [*client.keys(b"*:customer:*"), *client.keys(b"*:terminal:*")]
    return {key: client.dump(key) for key in keys}  # type: ignore[misc]


def everything(client: redis.Redis) -> tuple[Dump, int]:
    """Read every key there is, and how many changes Redis has ever counted."""
    found = {key: client.dump(key) for key in client.keys(b"*")}
    changes = client.info("persistence")["rdb_changes_since_last_save"]
    return found, changes  # type: ignore[return-value]


def score(ladder: FallbackChain, *, batch: Purchases) -> tuple[bytes, list[int]]:
    """Score a batch for good; its features, and what is known of its effect."""
    (scored,) = ladder.score([batch], write=[True])
    return scored.features.tobytes(), scored.applied.tolist()


@pytest.mark.parametrize("updates", UPDATES)
def test_a_dry_run_leaves_no_trace_at_all(
    updates: str,
    ladder_of: OpenLadder,
    spec: FeatureSpec,
    open_store: Callable[..., RedisStore],
    store_url: str,
    redis_client: redis.Redis,
) -> None:
    """
    Known and new entities, a known id, one too late, a damaged value, a label there.

    No key is added, changed, kept for longer or removed, and Redis counts no change.
    """
    writer = EventWriter(spec, open_store(store_url))
    known = purchases(0, 8)
    writer.purchases(known)
    writer.labels(
        Labels(
            transaction_id=known.transaction_id[:2],
            entity_id=[column[:2] for column in known.entity_id],
            event_time_us=known.event_time_us[:2],
            label=np.ones(2, np.int8),
            label_time_us=known.event_time_us[:2] + 1,
            revision=np.zeros(2, np.int64),
        )
    )
    redis_client.set(Packer(spec).key(0, b"c3"), b"damaged" * 9)
    keys = redis_client.keys(b"*")
    living_ms = {key: redis_client.pttl(key) for key in keys}
    before = everything(redis_client)
    ladder = ladder_of(updates)
    for batch in (
        known,
        purchases(100, 8),
        purchases(3, 2, at_us=NOW_US - 90 * DAY_US),
    ):
        new = [b"n%d" % row for row in range(len(batch))]
        other = Purchases(
            transaction_id=batch.transaction_id,
            entity_id=[new, new],
            event_time_us=batch.event_time_us,
            cents=batch.cents,
        )
        for _ in range(2):
            ladder.score([batch, other], write=[False, False])
    assert everything(redis_client) == before
    assert all(redis_client.pttl(key) <= living_ms[key] for key in keys)  # type: ignore[operator]


def test_a_stream_alone_writes_what_the_call_would_have(
    ladder_of: OpenLadder,
    bring: Callable[..., tuple[int, int]],
    redis_client: redis.Redis,
) -> None:
    """
    Each call answers as if it had written; the values are the stream's work.

    Its own purchase is in a call's windows at once, that of an earlier call as soon as
    the stream has brought it.
    """
    scoring = ladder_of("scoring")
    answered = [score(scoring, batch=batch) for batch in batches()]
    wanted = values(redis_client)
    redis_client.flushall()
    ladder = ladder_of("stream")
    for batch, answer in zip(batches(), answered, strict=True):
        before = everything(redis_client)
        assert score(ladder, batch=batch) == answer
        assert score(ladder, batch=batch) == answer  # for nothing was written
        assert everything(redis_client) == before
        assert bring(batch) == (len(batch), 0)
        features, applied = score(ladder, batch=batch)
        assert (features, set(applied)) == (answer[0], {A.DUPLICATE})
    assert values(redis_client) == wanted


@pytest.mark.parametrize("first", ["the call", "the stream"])
def test_what_both_bring_counts_once(
    first: str,
    ladder_of: OpenLadder,
    bring: Callable[..., tuple[int, int]],
    redis_client: redis.Redis,
) -> None:
    """Whoever is faster, values and answers are those of the call alone."""
    alone = ladder_of("scoring")
    answered = [score(alone, batch=batch)[0] for batch in batches()]
    wanted = values(redis_client)
    redis_client.flushall()
    both = ladder_of("both")
    for batch, answer in zip(batches(), answered, strict=True):
        if first == "the stream":
            assert bring(batch) == (len(batch), 0)
        features, applied = score(both, batch=batch)
        assert features == answer
        assert set(applied) == {A.YES if first == "the call" else A.DUPLICATE}
        if first == "the call":
            assert bring(batch) == (0, len(batch))
    assert values(redis_client) == wanted


@pytest.mark.parametrize(
    ("updates", "writes"), [("scoring", True), ("both", False), ("stream", False)]
)
def test_the_watermark_of_purchases_has_one_keeper(
    updates: str, writes: bool, ladder_of: OpenLadder, redis_client: redis.Redis
) -> None:
    """Where a stream brings them, only that knows how far all of them have come."""
    score(ladder_of(updates), batch=purchases(0, 3))
    assert bool(redis_client.exists(feed_key("fraud", PURCHASES))) is writes


@pytest.mark.parametrize("updates", ["both", "stream"])
def test_an_outage_costs_nothing_whoever_updates(
    updates: str,
    tmp_path: Path,
    spec: FeatureSpec,
    spec_path: Path,
    open_store: Callable[..., RedisStore],
    ladder_of: OpenLadder,
    bring: Callable[..., tuple[int, int]],
    store_url: str,
    redis_client: redis.Redis,
) -> None:
    """
    What is scored while the store is away is in it once when it is back.

    With `both` it is in the spool and on the feed; with `stream` on the feed alone.
    """
    EventWriter(spec, open_store(store_url)).purchases(purchases(0, ROWS))
    wanted = values(redis_client)
    folder = tmp_path / "spool"
    spool = PurchaseSpool(folder, spec_path)
    with EmbeddedRedis(tmp_path / "store") as store:
        ladder = ladder_of(updates, url=store.url, spool=spool)
        before, during, after = batches()
        assert set(score(ladder, batch=before)[1]) == {A.YES}
        bring(before, url=store.url)
        store.stop()
        assert set(score(ladder, batch=during)[1]) == {A.NO}
        spool.close()
        assert len(segments(folder)) == (1 if updates == "both" else 0)
        assert ladder.counts.spooled == (len(during) if updates == "both" else 0)
        assert ladder.counts.spool_full == 0
        store.__enter__()
        bring(during, url=store.url)
        drained = SpoolDrain(folder, open_store(store.url)).run()
        assert drained is not None
        assert drained.applied == 0  # the stream was faster
        assert drained.duplicates == ladder.counts.spooled
        score(ladder, batch=after)
        bring(after, url=store.url)
        with redis.Redis.from_url(store.url) as client:
            assert values(client) == wanted
