"""A table in the store: extended, resumed, and expired after its last use."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import redis

from tollgate.backfill.tables import load_table
from tollgate.errors import StoreError
from tollgate.features.feature_tables import TableRows, unpack_slots
from tollgate.features.spec.feature_spec import FeatureSpec, Table, load_spec
from tollgate.store.lookups import table_prefix, unpack_ids
from tollgate.store.redis.redis_store import RedisStore

OpenStore = Callable[..., RedisStore]

DAY_S = 86_400
NOW_US = 1_700_006_400_000_000
SPEC = """
version: 1
product: shop
lateness: 1d
entities:
  customer: {key: customer_id}
tables:
  nightly: {entity: customer, max_age: 10d}
  always: {entity: customer, refresh: 1h}
features:
  - {name: n_1d, entity: customer, aggregate: count, window: 1d}
  - {name: risk, table: nightly, column: risk}
  - {name: limit, table: always, column: limit}
"""


@pytest.fixture
def shop(tmp_path: Path) -> FeatureSpec:
    """Return a product with two tables."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    return load_spec(path)


@pytest.fixture
def nightly(shop: FeatureSpec) -> Table:
    """Return the table with a maximum age."""
    return shop.tables[0]


def rows_of(count: int, *, days: float = 0.0, number: float = 1.0) -> TableRows:
    """Return a row for each of some ids, valid from some days ago."""
    return TableRows(
        source="a test",
        ids=[b"c%d" % one for one in range(count)],
        valid_us=np.full(count, NOW_US - int(days * DAY_S * 10**6)),
        values=number + np.arange(count, dtype=np.float64)[:, None],
    )


def now_us() -> int:
    """Return the current time."""
    return NOW_US


def test_values_expire_after_their_last_use_and_not_together(
    shop: FeatureSpec,
    nightly: Table,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
) -> None:
    """Ten days and a day of lateness, and up to a tenth more by the id."""
    rows = rows_of(200, days=4)
    done = load_table(
        shop, nightly, rows, open_store(store_url), rate_per_s=0, wall_us=now_us
    )
    assert (done.rows, done.ids, done.written, done.too_old) == (200, 200, 200, 0)
    prefix = table_prefix(shop, nightly)
    left_s = [redis_client.ttl(b"%b:%b" % (prefix, one)) for one in rows.ids]
    assert min(left_s) >= (10 + 1 - 4) * DAY_S - 5
    assert max(left_s) <= (10 + 1 + 1 - 4) * DAY_S + 1
    assert len({one // 3600 for one in left_s}) > 15  # over a day, hour by hour


def test_rows_that_are_too_old_are_left_out(
    shop: FeatureSpec,
    nightly: Table,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
) -> None:
    """Older than max_age and lateness: only the checkpoint is written."""
    done = load_table(
        shop, nightly, rows_of(3, days=12), open_store(store_url), wall_us=now_us
    )
    assert (done.written, done.too_old) == (0, 3)
    assert not redis_client.keys(table_prefix(shop, nightly) + b"*")


def test_values_without_an_age_stay_and_are_listed(
    shop: FeatureSpec,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
) -> None:
    """No time to live; a second file adds its ids to the list."""
    store, always = open_store(store_url), shop.tables[1]
    load_table(shop, always, rows_of(3), store, wall_us=now_us)
    load_table(shop, always, rows_of(5, number=7.0), store, wall_us=now_us)
    prefix = table_prefix(shop, always)
    assert redis_client.ttl(prefix + b":c1") == -1
    assert sorted(unpack_ids(redis_client.get(prefix))) == rows_of(5).ids
    redis_client.setrange(prefix, 5, b"?")
    assert unpack_ids(redis_client.get(prefix)) == []


def test_load_adds_to_stored_rows(
    shop: FeatureSpec,
    nightly: Table,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
) -> None:
    """Today's rows join yesterday's; a damaged value is replaced, and counted."""
    store = open_store(store_url)
    for days, number in ((1, 1.0), (0, 2.0)):
        load_table(
            shop, nightly, rows_of(2, days=days, number=number), store, wall_us=now_us
        )
    prefix = table_prefix(shop, nightly)
    values = redis_client.mget(prefix + b":c0", prefix + b":c1")
    slots = unpack_slots(nightly, values)
    times_us = np.array([NOW_US - 1, NOW_US])
    for one in range(2):
        taken = slots.as_of(nightly, np.full(2, one), times_us)
        assert taken[:, 0].tolist() == [1.0 + one, 2.0 + one]
    redis_client.set(prefix + b":c1", b"foreign")
    done = load_table(shop, nightly, rows_of(2, number=3.0), store, wall_us=now_us)
    assert (done.damaged, done.written) == (1, 2)
    assert not unpack_slots(nightly, [redis_client.get(prefix + b":c1")]).corrupt[0]


def test_broken_run_continues_and_a_complete_one_can_repeat(
    shop: FeatureSpec,
    nightly: Table,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
) -> None:
    """The first run stops after some calls; the second has the rest; a third all."""
    calls = itertools.count()

    class Breaking(RedisStore):
        """A store that is lost after some calls."""

        def flush(self, asked, *, extra_commands):  # type: ignore[no-untyped-def]
            """Answer, for now."""
            if next(calls) > 10:
                raise StoreError("it is lost")
            return super().flush(asked, extra_commands=extra_commands)

    rows = rows_of(1_000)
    breaking = Breaking(store_url, deadline_s=5.0)
    with pytest.raises(StoreError, match="lost"):
        load_table(shop, nightly, rows, breaking, wall_us=now_us)
    breaking.close()
    store = open_store(store_url)
    seen: list[tuple[int, int]] = []
    done = load_table(
        shop,
        nightly,
        rows,
        store,
        progress=lambda *one: seen.append(one),
        wall_us=now_us,
    )
    assert 0 < done.done_before < 1_000
    assert done.done_before + done.written == 1_000
    assert seen[-1] == (1_000, 1_000)
    keys = redis_client.keys(table_prefix(shop, nightly) + b":*")
    assert len(keys) == 1_000
    again = load_table(shop, nightly, rows, store, wall_us=now_us)
    assert (again.done_before, again.written) == (0, 1_000)
