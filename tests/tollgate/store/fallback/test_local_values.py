"""What is applied here is what apply.lua would have answered, byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import redis

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.store.fallback.local_values import apply_purchases
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import Mode, RedisStore
from tollgate.store.store_events import Labels, Packer, Purchases, purchase_entries

NOW_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000


def purchases(
    generator: np.random.Generator, count: int, *, first: int, spread_us: int = DAY_US
) -> Purchases:
    """Draw purchases of few customers and terminals, some at the same instant."""
    return Purchases(
        transaction_id=[b"t%d" % (first + row) for row in range(count)],
        entity_id=[
            [b"c%d" % one for one in generator.integers(0, 4, count)],
            [b"m%d" % one for one in generator.integers(0, 3, count)],
        ],
        event_time_us=NOW_US
        + generator.integers(0, spread_us, count) // 3_600_000_000 * 3_600_000_000,
        cents=generator.integers(0, 100_000, count),
    )


def both(
    spec: FeatureSpec, store: RedisStore, *, known: list[bytes], batch: Purchases
) -> tuple[tuple[list[bytes], bytes], tuple[list[bytes], bytes]]:
    """Apply a batch here to known values, and dry in the store."""
    call = Packer(spec).pack(purchase_entries(batch), batch.entity_id)
    here = apply_purchases(known, call)
    ((values, statuses),) = store.apply([(call, Mode.DRY)])
    return here, (values, statuses)


def known_values(
    spec: FeatureSpec, client: redis.Redis, batch: Purchases
) -> list[bytes]:
    """Read the values of a batch's keys as they are."""
    call = Packer(spec).pack(purchase_entries(batch), batch.entity_id)
    return [value or b"" for value in client.mget(call.keys)]


@pytest.mark.parametrize("seed", range(6))
def test_values_are_those_of_the_store(
    spec: FeatureSpec,
    store_url: str,
    redis_client: redis.Redis,
    open_store: Callable[..., RedisStore],
    seed: int,
) -> None:
    """New entities, ties, twins in a batch, duplicates of what is known, labels."""
    generator = np.random.default_rng(seed)
    store = open_store(store_url)
    online = OnlineFeatures(spec, store)
    before = purchases(generator, 40, first=0)
    online.load(before)
    labelled = generator.permutation(40)[:10]
    ahead = purchases(generator, 5, first=100)  # labels that wait for these
    for of, rows in ((before, labelled), (ahead, np.arange(5))):
        online.label(
            Labels(
                transaction_id=[of.transaction_id[row] for row in rows],
                entity_id=[[column[row] for row in rows] for column in of.entity_id],
                event_time_us=of.event_time_us[rows],
                label=generator.integers(0, 2, len(rows)).astype(np.int8),
                label_time_us=of.event_time_us[rows] + DAY_US,
                revision=np.ones(len(rows), np.int64),
            )
        )
    new = purchases(generator, 20, first=200, spread_us=3 * DAY_US)
    batch = joined(
        new,
        ahead,
        taken(before, generator.permutation(40)[:5]),
        taken(new, np.arange(2)),
    )
    here, there = both(
        spec, store, known=known_values(spec, redis_client, batch), batch=batch
    )
    assert here[0] == there[0]
    late = np.frombuffer(there[1], np.uint8) == 3
    assert (np.frombuffer(here[1], np.uint8) == 3).tolist() == late.tolist()


def test_a_full_value_drops_its_oldest_as_the_store_does(
    spec: FeatureSpec,
    store_url: str,
    redis_client: redis.Redis,
    open_store: Callable[..., RedisStore],
) -> None:
    """Counted, with the time of the newest that was dropped; and what is too late."""
    small = msgspec.structs.replace(
        spec,
        entities=tuple(
            msgspec.structs.replace(one, cap=8, horizon_us=2 * DAY_US)
            for one in spec.entities
        ),
    )
    generator = np.random.default_rng(1)
    store = open_store(store_url)
    OnlineFeatures(small, store).load(purchases(generator, 30, first=0))
    ordered = purchases(generator, 30, first=100, spread_us=6 * DAY_US)
    order = np.argsort(ordered.event_time_us, kind="stable")
    batch = taken(ordered, order)
    here, there = both(
        small, store, known=known_values(small, redis_client, batch), batch=batch
    )
    assert any(value[8:12] != bytes(4) for value in there[0])
    assert here[0] == there[0]
    old = taken(ordered, np.array([order[0]]))
    early = Purchases(
        transaction_id=[b"early"],
        entity_id=old.entity_id,
        event_time_us=old.event_time_us - 30 * DAY_US,
        cents=old.cents,
    )
    here, there = both(
        small, store, known=known_values(small, redis_client, early), batch=early
    )
    assert here == there
    assert 3 in there[1]


def taken(batch: Purchases, rows: np.ndarray) -> Purchases:
    """Take some rows."""
    return Purchases(
        transaction_id=[batch.transaction_id[row] for row in rows],
        entity_id=[[column[row] for row in rows] for column in batch.entity_id],
        event_time_us=batch.event_time_us[rows],
        cents=batch.cents[rows],
    )


def joined(*batches: Purchases) -> Purchases:
    """Put batches one after the other."""
    return Purchases(
        transaction_id=[one for batch in batches for one in batch.transaction_id],
        entity_id=[
            [one for batch in batches for one in batch.entity_id[entity]]
            for entity in range(2)
        ],
        event_time_us=np.concatenate([batch.event_time_us for batch in batches]),
        cents=np.concatenate([batch.cents for batch in batches]),
    )
