"""A product without entities: what it asks the store, and what it does without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import redis

from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.replay import purchases_of, replay
from tollgate.schema import Applied, Degraded
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.id_lists import LookupList, list_key
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_opening import StoreSettings, open_fallback_chain

ROWS = 100
SPEC = """\
version: 1
product: loans
amount: false
fields:
  - {name: income, type: number, decimals: 2}
  - {name: debt, type: number, decimals: 4}
  - {name: housing, type: category, vocabulary: [own, rent]}
features:
  - {name: income, field: income, default: .nan, essential: true}
  - {name: debt, field: debt, default: .nan}
  - {name: housing, category: housing}
  - {name: night, calendar: night}
  - {name: burden, ratio: [debt, income], default: .nan}
"""


@pytest.fixture
def loans(tmp_path: Path) -> FeatureSpec:
    """A product of declared fields alone."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    return load_spec(path)


@pytest.fixture
def history(loans: FeatureSpec) -> History:
    """Applications, some with numbers missing and more decimals than are stored."""
    chance = np.random.default_rng(3)
    income, debt = chance.gamma(2.0, 1000.0, (2, ROWS))
    income[::7] = np.nan
    debt[::5] = np.nan
    frame = pl.DataFrame(
        {
            "transaction_id": [f"t{row}" for row in range(ROWS)],
            "event_time": 1_700_000_000_000_000 + np.arange(ROWS) * 3_600_000_000,
            "income": income,
            "debt": debt,
            "housing": [("own", "rent", "boat", None)[row % 4] for row in range(ROWS)],
            "label": [row % 2 for row in range(ROWS)],
        }
    )
    return history_of(frame, spec=loans, source="loans")


def opened(spec: FeatureSpec, url: str, *lists: LookupList) -> FallbackChain:
    """Open the product's ladder; its store has all the time it wants."""
    return open_fallback_chain(
        spec, url, settings=StoreSettings(deadline_s=5.0), lists=lists
    )


def test_online_vectors_are_the_offline_ones(
    loans: FeatureSpec, history: History, store_url: str
) -> None:
    """Bit for bit, whatever is missing, in one batch or in many."""
    offline = build(loans, history).astype(np.float32)
    assert np.isnan(offline).any()
    ladder = opened(loans, store_url)
    batch = purchases_of(loans, history, np.arange(ROWS))
    (whole,) = ladder.score([batch], write=[True])
    assert whole.features.astype(np.float32).tobytes() == offline.tobytes()
    parts = [
        purchases_of(loans, history, rows) for rows in np.array_split(np.arange(100), 9)
    ]
    split = ladder.score(parts, write=[True] * 9)
    joined = np.concatenate([one.features for one in split]).astype(np.float32)
    assert joined.tobytes() == offline.tobytes()
    ladder.close()


def test_a_replayed_history_agrees_without_a_store(
    loans: FeatureSpec, history: History, open_store: Callable[..., RedisStore]
) -> None:
    """Labels and purchases go nowhere; each vector is the offline one."""
    online = OnlineFeatures(loans, open_store("unix:///nowhere/redis.sock"))
    offline = build(loans, history).astype(np.float32)
    read = 0
    for rows, vectors in replay(online, history, read_from_us=0, batch_rows=7):
        served = vectors.features.astype(np.float32)
        assert served.tobytes() == offline[rows].tobytes()
        read += len(rows)
    assert read == ROWS


def test_only_decisions_and_lists_are_asked_for(
    loans: FeatureSpec, history: History, store_url: str, redis_client: redis.Redis
) -> None:
    """No script is run and nothing is written; a listed id is found."""
    key = list_key("loans", "withdrawn")
    redis_client.sadd(key, "t1")
    ladder = opened(loans, store_url, LookupList("withdrawn", "transaction_id", key))
    redis_client.config_resetstat()
    batch = purchases_of(loans, history, np.arange(4))
    (scored,) = ladder.score([batch], write=[True])
    asked = set(redis_client.info("commandstats")) - {"cmdstat_config"}
    assert asked - {"cmdstat_config|resetstat", "cmdstat_info"} <= {
        "cmdstat_mget",
        "cmdstat_smismember",
    }
    assert redis_client.keys() == [key]
    assert scored.lookups.list_hits.tolist() == [0, 1, 0, 0]
    assert scored.applied.tolist() == [Applied.NO] * 4
    essential = int(Degraded.ESSENTIAL_MISSING)
    assert scored.degraded.tolist() == [essential, 0, 0, 0]  # t0 states no income
    ladder.close()


def test_a_store_that_is_away_costs_the_look_ups_only(
    loans: FeatureSpec, history: History
) -> None:
    """The vector needs nothing of it: no default, no last known value, no other bit."""
    ladder = opened(loans, "unix:///nowhere/redis.sock")
    batch = purchases_of(loans, history, np.arange(1, 5))
    offline = build(loans, history)[1:5]
    for _ in range(10):  # before and after the breaker opens
        (scored,) = ladder.score([batch], write=[True])
        assert scored.features.tobytes() == offline.tobytes()
        assert scored.degraded.tolist() == [int(Degraded.LOOKUPS_UNREAD)] * 4
    assert ladder.counts.spooled == ladder.counts.spool_full == 0
    assert ladder.counts.calls["not_made"] > 0
    ladder.close()
