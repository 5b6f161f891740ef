"""Numbers out of tables: offline, loaded into Redis and served are the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import redis

from tollgate.backfill.tables import TableLoadCounts, load_table
from tollgate.errors import InputError, SpecError
from tollgate.features.feature_tables import TableRows
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of, read_table_rows
from tollgate.replay import replay
from tollgate.schema import Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.lookups import table_prefix
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases
from tollgate.store.store_opening import StoreSettings, open_fallback_chain

DAY_US = 86_400_000_000
START_US = 1_700_006_400_000_000  # a midnight
NIGHTLY, REGIONS = 0, 1
SPEC = """
version: 1
product: shop
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id}
tables:
  nightly: {entity: customer, max_age: 2d}
  regions: {entity: terminal, refresh: 1h}
features:
  - {name: amount, field: amount}
  - {name: n_1d, entity: customer, aggregate: count, window: 1d}
  - {name: m_1d, entity: terminal, aggregate: count, window: 1d}
  - {name: risk, table: nightly, column: risk, default: 0.1, range: [0, 0.9]}
  - {name: limit, table: nightly, column: limit, default: -1, essential: true}
  - {name: region, table: regions, column: risk, default: 0.5}
  - {name: above, ratio: [amount, limit], default: -2}
"""
SETTINGS = StoreSettings(deadline_s=0.5, breaker=BreakerRules(probe_interval_s=0.02))


@pytest.fixture
def shop_path(tmp_path: Path) -> Path:
    """A product with a nightly score and a look-up."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def shop(shop_path: Path) -> FeatureSpec:
    """Its features."""
    return load_spec(shop_path)


def file_of(folder: Path, name: str, frame: pl.DataFrame) -> Path:
    """Write a table's file."""
    path = folder / f"{name}.parquet"
    frame.write_parquet(path)
    return path


@pytest.fixture
def rows(shop: FeatureSpec, tmp_path: Path) -> dict[str, TableRows]:
    """Four nights of most customers, with gaps; and regions of most terminals."""
    draw = np.random.default_rng(5)
    nights = [(c, n) for c in range(25) for n in range(4) if draw.random() < 0.7]
    nightly = pl.DataFrame(
        {
            "customer_id": [str(c) for c, _ in nights],
            "valid_from": [START_US + n * DAY_US for _, n in nights],
            "risk": draw.random(len(nights)),
            "limit": [None if draw.random() < 0.2 else draw.random() for _ in nights],
        }
    )
    regions = pl.DataFrame(
        {"terminal_id": [str(t) for t in range(15)], "risk": draw.random(15)}
    )
    frames = {"nightly": nightly, "regions": regions}
    return {
        table.name: read_table_rows(
            file_of(tmp_path, table.name, frames[table.name]), spec=shop, table=table
        )
        for table in shop.tables
    }


@pytest.fixture
def history(shop: FeatureSpec) -> History:
    """A week of purchases around those nights, also of ids without rows."""
    draw = np.random.default_rng(6)
    time_us = np.sort(START_US + draw.integers(-DAY_US, 6 * DAY_US, 600))
    frame = pl.DataFrame(
        {
            "transaction_id": [f"t{n}" for n in range(600)],
            "event_time": time_us,
            "customer_id": [str(one) for one in draw.integers(0, 30, 600)],
            "terminal_id": [str(one) for one in draw.integers(0, 20, 600)],
            "amount": draw.integers(1, 10_000, 600) / 100,
        }
    )
    return history_of(frame, spec=shop, source="drawn")


def load(
    spec: FeatureSpec, rows: dict[str, TableRows], store: RedisStore
) -> list[TableLoadCounts]:
    """Load all tables, as of the beginning."""
    return [
        load_table(spec, one, rows[one.name], store, wall_us=lambda: START_US)
        for one in spec.tables
    ]


def some(names: str, at_us: int, first: int = 0) -> Purchases:
    """Purchases of customer and terminal, named like `1/2`."""
    pairs = [name.split("/") for name in names.split()]
    return Purchases(
        transaction_id=[b"x%d" % (first + row) for row in range(len(pairs))],
        entity_id=[
            [one.encode() for one in column] for column in zip(*pairs, strict=True)
        ],
        event_time_us=np.full(len(pairs), at_us),
        cents=np.full(len(pairs), 1_000),
    )


def test_online_is_offline_to_the_last_bit(
    shop: FeatureSpec,
    rows: dict[str, TableRows],
    history: History,
    store_url: str,
    open_store: Callable[..., RedisStore],
) -> None:
    """600 purchases over gaps, nulls, old rows and unknown ids; all are met."""
    store = open_store(store_url)
    load(shop, rows, store)
    offline = build(shop, history, tables=rows).astype(np.float32)
    missing = 0
    for at, read in replay(OnlineFeatures(shop, store), history, read_from_us=0):
        served = read.features.astype(np.float32)
        assert served.tobytes() == offline[at].tobytes()
        missing += int(((read.degraded & Degraded.TABLE_MISSING) != 0).sum())
    assert 100 < missing < 550
    risk, limit, region = (offline[:, at] for at in (3, 4, 5))
    for column, default in ((risk, 0.1), (limit, -1), (region, 0.5)):
        assert 0 < (column == np.float32(default)).sum() < 500
    assert risk.max() == np.float32(0.9)  # its range


def test_offline_takes_what_a_loop_would(
    shop: FeatureSpec, rows: dict[str, TableRows], history: History
) -> None:
    """The newest night of the customer by then, two days old at most."""
    offline = build(shop, history, tables=rows)
    nightly = rows["nightly"]
    column = shop.tables[NIGHTLY].columns.index("limit")
    for row, (one, at_us) in enumerate(
        zip(history.entity_id["customer_id"], history.event_time_us, strict=True)
    ):
        found = [
            (valid_us, values[column])
            for own, valid_us, values in zip(
                nightly.ids, nightly.valid_us, nightly.values, strict=True
            )
            if own == one and at_us - 2 * DAY_US <= valid_us <= at_us
        ]
        wanted = max(found)[1] if found else np.nan
        assert offline[row, 4] == (-1 if np.isnan(wanted) else wanted)


def test_offline_asks_for_every_table(shop: FeatureSpec, history: History) -> None:
    """A vector of defaults that nobody asked for would train a wrong model."""
    with pytest.raises(InputError, match="nightly: is a table"):
        build(shop, history)


def test_one_round_trip_and_the_hit_rate_counts(
    shop: FeatureSpec,
    rows: dict[str, TableRows],
    store_url: str,
    redis_client: redis.Redis,
    open_store: Callable[..., RedisStore],
) -> None:
    """
    The look-up is in memory from the start; only nightly scores are asked for.

    One MGET for them, one for earlier decisions, both in the one flush.
    """
    load(shop, rows, open_store(store_url))
    ladder = open_fallback_chain(shop, store_url, settings=SETTINGS)
    assert len(ladder.tables.memory) >= 15
    at_us = START_US + DAY_US // 2
    ladder.score([some("1/1", at_us)], write=[True])  # with the watermarks
    before = redis_client.info("commandstats")
    ladder.tables.counts.clear()
    ladder.score([some("1/1 2/1 99/77", at_us)], write=[True])
    after = redis_client.info("commandstats")
    calls = {
        name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"]
        for name in ("cmdstat_mget", "cmdstat_evalsha")
    }
    assert calls == {"cmdstat_mget": 2, "cmdstat_evalsha": 1}
    counts = dict(ladder.tables.counts)
    there = sum(one in rows["nightly"].ids for one in (b"1", b"2"))
    wanted = {"memory": 1, "store": there, "absent": 4 - there}
    assert {name: number for name, number in counts.items() if number} == wanted
    ladder.score([some("3/77", at_us)], write=[True])
    assert ladder.tables.counts["memory"] == 2  # that it is not there, too
    ladder.close()


def test_missing_too_old_and_damaged_numbers_are_defaults_and_told(
    shop: FeatureSpec,
    rows: dict[str, TableRows],
    store_url: str,
    redis_client: redis.Redis,
    open_store: Callable[..., RedisStore],
) -> None:
    """Each with its bits; essential where the limit is what lacks."""
    load(shop, rows, open_store(store_url))
    nightly = table_prefix(shop, shop.tables[NIGHTLY])
    regions = table_prefix(shop, shop.tables[REGIONS])
    redis_client.set(nightly + b":5", b"foreign")
    redis_client.set(regions + b":5", redis_client.get(regions + b":6")[:-1] + b"?")
    whole = next(
        one.decode()
        for one, at_us, held in zip(
            rows["nightly"].ids,
            rows["nightly"].valid_us,
            rows["nightly"].values,
            strict=True,
        )
        if at_us == START_US and not np.isnan(held).any() and one != b"5"
    )
    ladder = open_fallback_chain(shop, store_url, settings=SETTINGS)
    batch = some(f"{whole}/1 99/1 5/1 {whole}/5", START_US)
    (read,) = ladder.score([batch], write=[True])
    cold = np.uint32(Degraded.COLD_START)
    lost, corrupt = Degraded.TABLE_MISSING, Degraded.STATE_CORRUPT
    assert (read.degraded & ~cold).tolist() == [
        0,
        lost | Degraded.ESSENTIAL_MISSING,
        lost | corrupt | Degraded.ESSENTIAL_MISSING,
        lost | corrupt,
    ]
    assert read.features[1:3, 3:5].tolist() == [[0.1, -1], [0.1, -1]]
    assert read.features[1, 6] == -2  # made of a default
    assert read.features[3, 5] == 0.5
    assert ladder.tables.counts["corrupt"] == 1  # the other one was in memory
    (late,) = ladder.score([some("1/1", START_US + 9 * DAY_US)], write=[False])
    assert late.degraded[0] & lost
    assert late.features[0, 3] == 0.1
    ladder.close()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis that the test may stop."""
    with EmbeddedRedis(tmp_path / "redis") as server:
        yield server
        os.kill(server.pid, signal.SIGCONT)


def test_what_was_read_last_stands_in_while_the_store_is_away(
    shop: FeatureSpec, rows: dict[str, TableRows], own_redis: EmbeddedRedis
) -> None:
    """Known ids keep their numbers, marked and with their age; others have none."""
    store = RedisStore(own_redis.url, deadline_s=5.0)
    load(shop, rows, store)
    store.close()
    known = rows["nightly"].ids[0].decode()
    at_us = START_US + 3 * DAY_US
    ladder: FallbackChain = open_fallback_chain(shop, own_redis.url, settings=SETTINGS)
    (before,) = ladder.score([some(f"{known}/1", at_us)], write=[True])
    os.kill(own_redis.pid, signal.SIGSTOP)
    again = some(f"{known}/1 {known}/77", at_us, first=5)
    (during,) = ladder.score([again], write=[True])
    assert during.features[0, 3:6].tolist() == before.features[0, 3:6].tolist()
    assert during.degraded[0] & Degraded.LAST_KNOWN_VECTOR
    assert not during.degraded[0] & Degraded.STORE_UNAVAILABLE
    assert during.age_us[0] > 0
    assert during.degraded[1] & Degraded.STORE_UNAVAILABLE
    assert during.features[1, 5] == 0.5
    assert ladder.tables.counts["unread"] >= 2
    ladder.close()


def test_a_table_changes_the_vector_and_not_what_is_kept(
    shop: FeatureSpec, shop_path: Path
) -> None:
    """max_age and columns are in the spec hash, refresh is not; the state stays."""

    def changed(old: str, new: str) -> FeatureSpec:
        assert old in SPEC
        shop_path.write_text(SPEC.replace(old, new))
        return load_spec(shop_path)

    assert changed("refresh: 1h", "refresh: 2h").spec_hash == shop.spec_hash
    older = changed("max_age: 2d", "max_age: 3d")
    assert older.spec_hash != shop.spec_hash
    other = changed("column: limit", "column: cap")
    assert other.spec_hash != shop.spec_hash
    assert other.state_hash == older.state_hash == shop.state_hash
    prefixes = [table_prefix(one, one.tables[NIGHTLY]) for one in (shop, older, other)]
    assert prefixes[0] == prefixes[1] != prefixes[2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("entity: customer, max", "entity: card, max", "nightly.entity: 'card' is"),
        ("table: regions, col", "table: region, col", "'region' is no table"),
        (", column: limit", "", "limit: table and column go together"),
        ("column: limit", "column: valid_from", "'valid_from' is another column's"),
        ("refresh: 1h", "refresh: often", "regions.refresh: 'often' is not"),
        ("table: regions, column: risk", "field: amount", "regions: no feature takes"),
        ("essential: true", "max_age: 1d", "limit.max_age: its table has one"),
    ],
)
def test_what_does_not_fit_is_refused(
    shop_path: Path, old: str, new: str, message: str
) -> None:
    """In one line that names file and key."""
    assert old in SPEC
    shop_path.write_text(SPEC.replace(old, new))
    with pytest.raises(SpecError, match=message):
        load_spec(shop_path)
