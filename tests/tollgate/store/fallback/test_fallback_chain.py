"""The ladder over a real Redis that stops, hangs and comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis

from tests.support.store.hot_entities import with_hop
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import Applied, Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.fallback.circuit_breaker import BreakerRules, BreakerState
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.lookups import feed_key, unpack_watermark
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases
from tollgate.store.store_opening import StoreSettings, open_fallback_chain

NOW_US = time.time_ns() // 1000
# A deadline that no answer misses, and so many last known values as there may be.
SETTINGS = StoreSettings(
    deadline_s=0.5,
    breaker=BreakerRules(probe_interval_s=0.02),
    last_known_bytes=10**7,
    last_known_max_age_s=3600.0,
)
DEFAULTED = Degraded.STORE_UNAVAILABLE | Degraded.LOOKUPS_UNREAD
KNOWN = Degraded.LAST_KNOWN_VECTOR | Degraded.LOOKUPS_UNREAD


class Kept:
    """A spool that keeps what it is given."""

    def __init__(self) -> None:
        self.purchases: list[Purchases] = []

    def append(self, purchases: Purchases) -> bool:
        """Keep them."""
        self.purchases.append(purchases)
        return True


@pytest.fixture(params=["0", "1h"])
def spec(
    request: pytest.FixtureRequest, spec_path: Path, tmp_path: Path
) -> FeatureSpec:
    """The features of the fraud product, without and with tiles."""
    return with_hop(spec_path, tmp_path, request.param)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis that the test may stop."""
    with EmbeddedRedis(tmp_path) as server:
        yield server
        if server.pid:
            os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
def spool() -> Kept:
    """Where rows go that were not applied."""
    return Kept()


@pytest.fixture
def ladder(
    own_redis: EmbeddedRedis, spec: FeatureSpec, spool: Kept
) -> Iterator[FallbackChain]:
    """A ladder over that Redis."""
    opened = open_fallback_chain(spec, own_redis.url, settings=SETTINGS, spool=spool)
    yield opened
    opened.close()


def rows(*names: str, first: int = 0, at_us: int = NOW_US) -> Purchases:
    """Purchases of customer and terminal, named like `c1m2`; a second apart."""
    return Purchases(
        transaction_id=[b"t%d" % (first + row) for row in range(len(names))],
        entity_id=[
            [name[:2].encode() for name in names],
            [name[2:].encode() for name in names],
        ],
        event_time_us=at_us + 1_000_000 * np.arange(len(names)),
        cents=np.arange(1, len(names) + 1) * 1_000,
    )


def test_with_a_store_it_is_the_online_path(
    ladder: FallbackChain, own_redis: EmbeddedRedis, spec: FeatureSpec
) -> None:
    """Features, bits and effect are those of OnlineFeatures, dry and wet."""
    batch = rows("c1m1", "c2m1", "c1m2")
    (dry,) = ladder.score([batch], write=[False])
    store = RedisStore(own_redis.url, deadline_s=5.0)
    (expected,) = OnlineFeatures(spec, store).score([batch], write=[True])
    (again,) = ladder.score([batch], write=[True])
    store.close()
    for scored in (dry, again):
        assert scored.features.tobytes() == expected.features.tobytes()
        assert scored.degraded.tolist() == expected.degraded.tolist()
        assert scored.age_us.tolist() == [0, 0, 0]
    assert again.applied.tolist() == [Applied.DUPLICATE] * 3


def test_last_known_values_give_what_the_store_would(
    ladder: FallbackChain, own_redis: EmbeddedRedis, spec: FeatureSpec, spool: Kept
) -> None:
    """The store hangs: windows move on with the row, its own event in them."""
    ladder.score([rows("c1m1", "c2m2", "c1m2")], write=[True])
    later = rows("c1m2", "c2m1", first=10, at_us=NOW_US + 3_600_000_000)
    store = RedisStore(own_redis.url, deadline_s=5.0)
    (expected,) = OnlineFeatures(spec, store).score([later], write=[False])
    store.close()
    os.kill(own_redis.pid, signal.SIGSTOP)
    (scored,) = ladder.score([later], write=[True])
    os.kill(own_redis.pid, signal.SIGCONT)
    assert scored.features.tobytes() == expected.features.tobytes()
    assert scored.degraded.tolist() == [KNOWN, KNOWN]
    assert scored.applied.tolist() == [Applied.UNKNOWN] * 2
    assert (scored.age_us > 0).all()
    assert [one.transaction_id for one in spool.purchases] == [[b"t10", b"t11"]]
    assert ladder.counts.spooled == 2


def test_only_the_features_of_an_unknown_entity_are_defaults(
    ladder: FallbackChain, own_redis: EmbeddedRedis, spec: FeatureSpec
) -> None:
    """A known customer at a terminal never seen; and the other way round; and both."""
    ladder.score([rows("c1m1")], write=[True])
    own_redis.stop()
    (scored,) = ladder.score([rows("c1m9", "c9m1", "c8m8", first=5)], write=[True])
    assert scored.degraded.tolist() == [DEFAULTED | KNOWN, DEFAULTED | KNOWN, DEFAULTED]
    assert scored.applied.tolist() == [Applied.NO] * 3
    for column, feature in enumerate(spec.features):
        given = scored.features[:, column].tolist()
        if feature.aggregate is None:
            continue
        assert given[2] == feature.default
        customer = spec.entities[feature.entity].name == "customer"
        assert given[1 if customer else 0] == feature.default
        if customer and feature.aggregate == "count":
            assert given[0] == 2  # the one that was applied, and its own


def test_purchases_of_the_outage_see_each_other(
    ladder: FallbackChain, own_redis: EmbeddedRedis, spec: FeatureSpec
) -> None:
    """Three wet ones count one after the other; a dry one leaves no trace."""
    names = spec.feature_names
    count = names.index("customer_nb_tx_1d")
    ladder.score([rows("c1m1")], write=[True])
    own_redis.stop()
    seen = []
    for number, wet in enumerate((True, True, False, True)):
        batch = rows("c1m1", first=10 + number, at_us=NOW_US + number)
        (scored,) = ladder.score([batch], write=[wet])
        seen.append(scored.features[0, count])
    assert seen == [2, 3, 4, 4]


def test_the_breaker_spares_a_store_that_is_away_and_finds_it_back(
    ladder: FallbackChain, own_redis: EmbeddedRedis, spool: Kept
) -> None:
    """No call while it is open; when Redis is back, rows are whole again."""
    batch = rows("c1m1", first=1)
    ladder.score([rows("c1m1", at_us=NOW_US - 1), batch], write=[True, True])
    own_redis.stop()
    while ladder.breaker.state is not BreakerState.OPEN:
        ladder.score([batch], write=[True])
    made = ladder.counts.calls["failed"]
    (scored,) = ladder.score([batch], write=[True])
    assert ladder.counts.calls["failed"] == made
    assert ladder.counts.calls["not_made"] >= 1
    assert scored.degraded.tolist() == [KNOWN]
    with own_redis:
        until_s = time.monotonic() + 600
        while scored.degraded.any() and time.monotonic() < until_s:
            time.sleep(0.01)
            (scored,) = ladder.score([batch], write=[True])
        assert scored.degraded.tolist() == [0]
        assert scored.applied.tolist() == [Applied.DUPLICATE]
    assert ladder.breaker.state is BreakerState.CLOSED
    assert len(spool.purchases) == ladder.counts.spooled


def with_essential(spec: FeatureSpec, name: str, *, max_age_us: int = 0) -> FeatureSpec:
    """The same spec with one feature that is essential."""
    features = [
        msgspec.structs.replace(one, essential=True, max_age_us=max_age_us)
        if one.name == name
        else one
        for one in spec.features
    ]
    return msgspec.structs.replace(spec, features=tuple(features))


@pytest.mark.parametrize(
    ("max_age_us", "missing"),
    [
        (0, [False, True, False]),
        (1, [True, True, True]),
        (10**12, [False, True, False]),
    ],
)
def test_an_essential_feature_is_missing_or_too_old(
    own_redis: EmbeddedRedis, spec: FeatureSpec, max_age_us: int, missing: list[bool]
) -> None:
    """Its entity is not known, or known of old; another's absence is no matter."""
    wanting = with_essential(spec, "customer_nb_tx_1d", max_age_us=max_age_us)
    ladder = open_fallback_chain(wanting, own_redis.url, settings=SETTINGS)
    (fresh,) = ladder.score([rows("c1m1")], write=[True])
    own_redis.stop()
    (scored,) = ladder.score([rows("c1m1", "c9m1", "c1m9", first=5)], write=[True])
    ladder.close()
    assert fresh.degraded.tolist() == [Degraded.COLD_START]
    bit = Degraded.ESSENTIAL_MISSING
    assert [bool(one & bit) for one in scored.degraded.tolist()] == missing


def test_a_stale_feed_is_reported_and_degrades_its_features(
    store_url: str, redis_client: redis.Redis, spec: FeatureSpec
) -> None:
    """No watermark of labels: FEED_STALE; and a share, not a count, is missing."""
    declared = msgspec.structs.replace(
        spec, feeds={"labels": 3_600_000_000, "purchases": 3_600_000_000}
    )
    reported = {}
    for name in ("customer_nb_tx_1d", "terminal_risk_1d"):
        ladder = open_fallback_chain(
            with_essential(declared, name), store_url, settings=SETTINGS
        )
        ladder.score([rows("c1m1")], write=[True])
        (scored,) = ladder.score([rows("c1m1")], write=[True])
        reported[name] = Degraded(int(scored.degraded[0]))
        ladder.close()
    assert reported["customer_nb_tx_1d"] & ~Degraded.COLD_START == Degraded.FEED_STALE
    assert Degraded.ESSENTIAL_MISSING in reported["terminal_risk_1d"]
    mark = unpack_watermark(redis_client.get(feed_key(spec.product, "purchases")))
    assert mark == NOW_US


def test_a_batch_costs_one_round_trip(
    own_redis: EmbeddedRedis, ladder: FallbackChain
) -> None:
    """Redis reads once per batch, watermarks included, however many rows it has."""
    batches = [rows(*(["c1m1"] * count), first=100 * count) for count in (1, 8, 32)]
    with redis.Redis.from_url(own_redis.url) as client:
        for batch in batches:
            before = client.info("stats")["total_reads_processed"]
            ladder.score([batch], write=[True])
            after = client.info("stats")["total_reads_processed"]
            assert after - before == 1 + 1  # the batch, and the question itself


def test_a_damaged_value_is_not_cached(
    own_redis: EmbeddedRedis, ladder: FallbackChain
) -> None:
    """The last known value stays the sound one."""
    ladder.score([rows("c1m1")], write=[True])
    with redis.Redis.from_url(own_redis.url) as client:
        (key,) = client.keys("*:customer:c1")
        client.set(key, b"damaged" * 9)
    (scored,) = ladder.score([rows("c1m1", first=1)], write=[True])
    assert scored.degraded[0] & Degraded.STATE_CORRUPT
    own_redis.stop()
    (scored,) = ladder.score([rows("c1m1", first=2)], write=[True])
    assert scored.degraded.tolist() == [KNOWN]


def test_without_a_store_every_row_is_answered(
    spec: FeatureSpec, caplog: pytest.LogCaptureFixture
) -> None:
    """No address: defaults, named as such."""
    ladder = open_fallback_chain(spec, "", settings=SETTINGS)
    for number in range(10):
        (scored,) = ladder.score([rows("c1m1", first=number)], write=[True])
        assert scored.degraded.tolist() == [DEFAULTED]
        assert scored.applied.tolist() == [Applied.NO]
    ladder.close()


def test_two_dry_requests_and_a_wet_one_keep_apart(
    ladder: FallbackChain, own_redis: EmbeddedRedis, spec: FeatureSpec
) -> None:
    """Down to the last rung, too: a dry batch is seen by no other."""
    count = spec.feature_names.index("customer_nb_tx_1d")
    ladder.score([rows("c1m1")], write=[True])
    own_redis.stop()
    batches = [rows("c1m1", first=at, at_us=NOW_US + at) for at in (1, 2, 3)]
    scored = ladder.score(batches, write=[False, True, False])
    assert [one.features[0, count] for one in scored] == [2, 2, 3]


def test_where_a_stream_updates_nothing_is_written(
    own_redis: EmbeddedRedis, spec: FeatureSpec, spool: Kept
) -> None:
    """Answers as if applied, last known values too; store, feed and spool get none."""
    settings = msgspec.structs.replace(SETTINGS, updates=False)
    ladder = open_fallback_chain(spec, own_redis.url, settings=settings, spool=spool)
    batch = rows("c1m1", "c1m2")
    (first,) = ladder.score([batch], write=[True])
    (again,) = ladder.score([batch], write=[True])
    assert first.applied.tolist() == [Applied.YES] * 2
    assert again.features.tobytes() == first.features.tobytes()
    with redis.Redis.from_url(own_redis.url) as client:
        assert client.keys(b"*") == []
    own_redis.stop()
    later = rows("c1m2", first=9, at_us=NOW_US + 9_000_000)
    (known,) = ladder.score([later], write=[True])
    assert known.degraded.tolist() == [KNOWN]
    assert spool.purchases == []
    ladder.close()
