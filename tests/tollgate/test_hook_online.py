"""A hook online over a real Redis: the bits of offline, on every rung of the ladder."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.replay import replay
from tollgate.schema import MISSING, Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases
from tollgate.store.store_opening import StoreSettings, open_fallback_chain

Hooked = Callable[..., Path]
START_US = 1_700_006_400_000_000
LAST = '    return {"km": km, "risk": RISK[request["channel"]]}\n'
FRAGILE = (
    LAST,
    f"    km = RISK[np.where(km < 15_000, 0, 7).astype(np.int64)] + km\n{LAST}",
)
AWAY = Degraded.STORE_UNAVAILABLE | Degraded.LOOKUPS_UNREAD
KNOWN = Degraded.LAST_KNOWN_VECTOR | Degraded.LOOKUPS_UNREAD
SETTINGS = StoreSettings(
    deadline_s=0.5,
    breaker=BreakerRules(probe_interval_s=0.02),
    last_known_bytes=10**7,
    last_known_max_age_s=3600.0,
)
KM, RISK = 4, 5  # columns


@pytest.fixture
def spec(hooked: Hooked) -> FeatureSpec:
    """The shop, with a hook."""
    return load_spec(hooked())


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis that the test may stop."""
    with EmbeddedRedis(tmp_path / "redis") as server:
        yield server
        if server.pid:
            os.kill(server.pid, signal.SIGCONT)


def drawn(spec: FeatureSpec) -> History:
    """600 purchases of a week, some without a place or with a new channel."""
    draw = np.random.default_rng(6)
    places = {"lat": draw.uniform(-90, 90, 600), "lon": draw.uniform(-180, 180, 600)}
    for column in places.values():
        column[draw.random(600) < 0.1] = np.nan
    frame = pl.DataFrame(
        {
            "transaction_id": [f"t{n}" for n in range(600)],
            "event_time": np.sort(START_US + draw.integers(0, 7 * 86_400_000_000, 600)),
            "customer_id": [str(one) for one in draw.integers(0, 30, 600)],
            "terminal_id": [str(one) for one in draw.integers(0, 20, 600)],
            "amount": draw.integers(1, 10_000, 600) / 100,
            "channel": draw.choice(["web", "app", "fax", ""], 600).tolist(),
            **{name: np.round(column, 4) for name, column in places.items()},
        }
    )
    return history_of(frame, spec=spec, source="drawn")


def test_online_is_offline_to_the_last_bit(
    spec: FeatureSpec, store_url: str, open_store: Callable[..., RedisStore]
) -> None:
    """One definition, one code: whatever the batches, over gaps and new words."""
    history = drawn(spec)
    offline = build(spec, history).astype(np.float32)
    online = OnlineFeatures(spec, open_store(store_url))
    seen = 0
    for at, read in replay(online, history, read_from_us=0):
        assert read.features.astype(np.float32).tobytes() == offline[at].tobytes()
        assert not (read.degraded & Degraded.HOOK_FAILED).any()
        seen += len(at)
    assert seen == 600
    assert 100 < (offline[:, KM] == -1).sum() < 300
    assert len(np.unique(offline[:, KM])) > 300


def at_place(*customers: str, lat: int, first: int = 0) -> Purchases:
    """Purchases of customers somewhere on a meridian; degrees in ten thousandths."""
    count = len(customers)
    return Purchases(
        transaction_id=[b"x%d" % (first + row) for row in range(count)],
        entity_id=[[one.encode() for one in customers], [b"t"] * count],
        event_time_us=START_US + first + np.arange(count),
        cents=np.full(count, 1_000),
        fields={
            "lat": np.full(count, lat),
            "lon": np.zeros(count, np.int64),
            "channel": np.full(count, MISSING),
        },
    )


def test_it_runs_on_every_rung(spec: FeatureSpec, own_redis: EmbeddedRedis) -> None:
    """
    With the store, on last known values, on defaults: a row's own number each time.

    What is not known of a customer is NaN to the hook, as offline; the column that
    hangs on the request alone is there even so.
    """
    ladder = open_fallback_chain(spec, own_redis.url, settings=SETTINGS)
    ladder.score([at_place("a", "b", lat=0)], write=[True])
    later = at_place("a", "c", lat=100_000, first=10)  # ten degrees to the north
    (fresh,) = ladder.score([later], write=[False])
    tenth = 6371.0 * np.radians(10.0)
    np.testing.assert_allclose(fresh.features[:, KM], [tenth, -1], rtol=1e-12)
    os.kill(own_redis.pid, signal.SIGSTOP)
    (away,) = ladder.score([later], write=[False])
    os.kill(own_redis.pid, signal.SIGCONT)
    ladder.close()
    assert away.features[:, [KM, RISK]].tobytes() == (
        fresh.features[:, [KM, RISK]].tobytes()
    )
    assert away.features[:, RISK].tolist() == [0.75, 0.75]
    lost = Degraded.LOOKUPS_UNREAD | Degraded.LAST_KNOWN_VECTOR
    assert (away.degraded & (AWAY | KNOWN)).tolist() == [lost, AWAY | KNOWN]


def test_a_failing_row_keeps_its_batch(
    hooked: Hooked, own_redis: EmbeddedRedis
) -> None:
    """Its features are their defaults, it is marked; its neighbours are as ever."""
    ladder = open_fallback_chain(
        load_spec(hooked(FRAGILE)), own_redis.url, settings=SETTINGS
    )
    ladder.score([at_place("a", "b", lat=-900_000)], write=[True])
    (read,) = ladder.score([at_place("a", "b", lat=0, first=10)], write=[False])
    assert not (read.degraded & Degraded.HOOK_FAILED).any()
    batch = at_place("a", "b", lat=0, first=20)
    batch.fields["lat"][0] = 900_000  # from pole to pole: over 15,000 km
    (mixed,) = ladder.score([batch], write=[False])
    failed = (mixed.degraded & Degraded.HOOK_FAILED) != 0
    assert failed.tolist() == [True, False]
    assert mixed.features[0, [KM, RISK]].tolist() == [-1, 0.5]
    assert mixed.features[1].tobytes() == read.features[1].tobytes()
    os.kill(own_redis.pid, signal.SIGSTOP)
    (away,) = ladder.score([batch], write=[False])
    os.kill(own_redis.pid, signal.SIGCONT)
    ladder.close()
    assert ((away.degraded & Degraded.HOOK_FAILED) != 0).tolist() == [True, False]
    assert away.features.tobytes() == mixed.features.tobytes()


def test_a_product_without_windows_has_a_hook_too(
    tmp_path: Path, open_store: Callable[..., RedisStore], store_url: str
) -> None:
    """Nothing is in the store, and the hook's rows are marked all the same."""
    (tmp_path / "hook.py").write_text(
        "import numpy as np\n\nTABLE = np.array([1.0, 2.0])\n\n\n"
        "def hook(request, features):\n"
        '    at = np.where(np.isnan(features["x"]), 0.0, features["x"])\n'
        '    return {"y": TABLE[at.astype(np.int64)] + at, "z": request["x"]}\n'
    )
    path = tmp_path / "features.yaml"
    path.write_text(
        "version: 1\nproduct: plain\namount: false\nhook: hook.py\n"
        "fields: [{name: x, type: number, range: [0, 9]}]\n"
        "features: [{name: x, field: x, default: .nan}, {name: y, hook: y},\n"
        "  {name: z, hook: z, default: .nan}]\n"
    )
    spec = load_spec(path)
    online = OnlineFeatures(spec, open_store(store_url))
    batch = Purchases(
        transaction_id=[b"1", b"2", b"3"],
        entity_id=[],
        event_time_us=np.full(3, START_US),
        cents=np.zeros(3, np.int64),
        fields={"x": np.array([1, 5, MISSING])},
    )
    (read,) = online.score([batch], write=[True])
    nan = np.nan
    np.testing.assert_array_equal(
        read.features, [[1, 3, 1], [5, 0, nan], [nan, 1, nan]]
    )
    assert read.degraded.tolist() == [0, Degraded.HOOK_FAILED, 0]
