"""Values with tiles: hot entities read online what offline has, within the bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
import redis

from tests.support.store.hot_entities import (
    HOUR_US,
    MOMENTS,
    START_US,
    busy_history,
    busy_spec,
)
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import load_spec
from tollgate.history import History, history_of
from tollgate.replay import labels_of, purchases_of, replay
from tollgate.schema import Degraded
from tollgate.store.event_writer import EventWriter
from tollgate.store.fallback.local_values import apply_purchases
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import Mode, RedisStore
from tollgate.store.store_events import Labels, Purchases

pytestmark = pytest.mark.usefixtures("both_readers")

OpenStore = Callable[..., RedisStore]


@pytest.mark.parametrize(
    ("hops", "more", "count", "days", "step_us", "batch_rows"),
    [
        (("1h", "1h"), MOMENTS, 1_500, 20, 1, 1),
        (("15m", "1d"), "", 3_000, 60, 1, 32),
        (("1d", "6h"), MOMENTS, 6_000, 10, HOUR_US, 1_000),
        (("0", "1h"), MOMENTS, 2_000, 40, 1_000_000_000, 32),
    ],
)
def test_replay_of_busy_ids_equals_offline(
    tmp_path: Path,
    store_url: str,
    open_store: OpenStore,
    redis_client: redis.Redis,
    hops: tuple[str, str],
    more: str,
    count: int,
    days: int,
    step_us: int,
    batch_rows: int,
) -> None:
    """Every feature of every row, no row marked, and no value above its bound."""
    spec = busy_spec(tmp_path, customer=hops[0], terminal=hops[1], more=more)
    history = busy_history(spec, count=count, days=days, step_us=step_us)
    expected = build(spec, history)
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=30.0))
    marked = 0
    for rows, vectors in replay(online, history, read_from_us=0, batch_rows=batch_rows):
        np.testing.assert_array_equal(vectors.features, expected[rows])
        marked += np.count_nonzero(vectors.degraded & ~np.uint32(Degraded.COLD_START))
    assert marked == 0
    folded = 0
    for entity in spec.entities:
        for key in redis_client.scan_iter(f"tollgate:busy:*:{entity.name}:*"):
            value = redis_client.get(key)
            if entity.tiles:
                folded += int.from_bytes(value[8:12], "little")
                assert len(value) <= entity.value_bytes
    assert folded > count // 4


def test_values_applied_locally_are_those_of_the_store(
    tmp_path: Path, store_url: str, open_store: OpenStore, redis_client: redis.Redis
) -> None:
    """The same vectors for later and late purchases, on top of values with tiles."""
    spec = busy_spec(tmp_path, customer="1h", terminal="6h")
    history = busy_history(spec, count=2_000, days=3, step_us=1_000_000)
    store = open_store(store_url, deadline_s=30.0)
    online = OnlineFeatures(spec, store)
    order = np.argsort(history.event_time_us, kind="stable")
    online.load(purchases_of(spec, history, order[:1_950]))
    late = purchases_of(spec, history, order[[*range(1_900, 1_990), 3, 500]])
    batch = msgspec.structs.replace(
        late,
        transaction_id=[b"new" + one for one in late.transaction_id],
        event_time_us=np.where(
            late.event_time_us > history.event_time_us[order[1_949]],
            history.event_time_us[order[1_949]],
            late.event_time_us,
        ),
    )
    packed = online.pack(batch)
    known = [value or b"" for value in redis_client.mget(packed.call.keys)]
    (there,) = store.apply([(packed.call, Mode.DRY)])
    here = apply_purchases(known, packed.call)
    assert {1, 3} == set(there[1])
    assert here[1] == there[1]
    own, expected = online.read(packed, here), online.read(packed, there)
    np.testing.assert_array_equal(own.features, expected.features)
    np.testing.assert_array_equal(own.degraded, expected.degraded)


def test_purchase_older_than_the_folded_ones_is_marked_and_not_counted(
    tmp_path: Path, store_url: str, open_store: OpenStore, redis_client: redis.Redis
) -> None:
    """The state stays as it was, and the answer has EVENT_TOO_LATE."""
    spec = busy_spec(tmp_path, customer="1h", terminal="6h")
    history = busy_history(spec, count=500, days=1, step_us=1_000_000)
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=30.0))
    order = np.argsort(history.event_time_us, kind="stable")
    online.load(purchases_of(spec, history, order))
    before = {key: redis_client.get(key) for key in redis_client.scan_iter()}
    late = purchases_of(spec, history, order[100:101])
    late = msgspec.structs.replace(late, transaction_id=[b"other"])
    (vectors,) = online.score([late], write=[True])
    assert vectors.degraded[0] & Degraded.EVENT_TOO_LATE
    assert {key: redis_client.get(key) for key in redis_client.scan_iter()} == before


@pytest.mark.parametrize("at", [9, 20, 64, 65, 69])
def test_damaged_value_fails_alone(
    tmp_path: Path,
    store_url: str,
    open_store: OpenStore,
    redis_client: redis.Redis,
    at: int,
) -> None:
    """A wrong count in one id's value does not fail the call for the others."""
    spec = busy_spec(tmp_path, customer="1h", terminal="1h")
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=30.0))

    def purchases(first: int, count: int) -> Purchases:
        return Purchases(
            transaction_id=[b"p%d" % one for one in range(first, first + count)],
            entity_id=[[b"c"] * count, [b"t%d" % one for one in range(count)]],
            event_time_us=START_US + np.arange(first, first + count) * 60_000_000,
            cents=np.full(count, 100),
        )

    for minute in range(202):  # the next two fold others
        online.load(purchases(minute, 1))
    (key,) = redis_client.scan_iter("tollgate:*:customer:c")
    value = bytearray(redis_client.get(key) or b"")
    value[at] ^= 1
    redis_client.set(key, bytes(value))
    for count in range(1, 9):
        rows = purchases(202, count)
        other = msgspec.structs.replace(
            purchases(300, 1), entity_id=[[b"other"], [b"t"]]
        )
        damaged, whole = online.score([rows, other], write=[False, False])
        assert (damaged.degraded & Degraded.STATE_CORRUPT != 0).all()
        assert not whole.degraded[0] & Degraded.STATE_CORRUPT


def test_newest_value_of_a_history_loaded_later_is_of_its_last_purchase(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """Of two purchases of one instant, the later id; live ones have no number."""
    spec = busy_spec(tmp_path, customer="1h", terminal="0")
    count = 300
    time_us = START_US + np.arange(count) * 10_000_000
    time_us[1] = time_us[0]
    table = pl.DataFrame(
        {
            "transaction_id": [f"x{one:03d}" for one in range(count)],
            "event_time": pl.Series(time_us).cast(pl.Datetime("us")),
            "customer_id": ["c"] * count,
            "terminal_id": [f"t{one}" for one in range(count)],
            "amount": [1.0] * count,
            "items": [5.0, 9.0] + [None] * (count - 2),
        }
    )
    history = history_of(table, spec=spec, source="")
    store = open_store(store_url, deadline_s=30.0)
    online = OnlineFeatures(spec, store)
    for start in range(2, count - 1, 9):
        online.load(purchases_of(spec, history, np.arange(start, start + 9)))
    writer = EventWriter(spec, store, history=True)
    assert writer.purchases(purchases_of(spec, history, np.arange(2))).applied.all()
    row = purchases_of(spec, history, np.array([count - 1]))
    (vectors,) = online.score([row], write=[False])
    assert vectors.features[0, spec.feature_names.index("items_last")] == 9


def require_same_windows(
    online: OnlineFeatures,
    history: History,
    batches: Sequence[np.ndarray],
    *,
    names: Sequence[str],
) -> None:
    """Score purchases, and compare some of their features with the offline ones."""
    expected = build(online.spec, history)
    columns = [online.spec.feature_names.index(name) for name in names]
    for rows in batches:
        batch = purchases_of(online.spec, history, rows)
        (vectors,) = online.score([batch], write=[True])
        found = vectors.features[:, columns]
        np.testing.assert_array_equal(found, expected[rows][:, columns])


def test_history_loaded_after_live_purchases_is_complete(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """A store that was lost: purchases go on, then the history comes, twice."""
    spec = busy_spec(tmp_path, customer="1h", terminal="6h", more=MOMENTS)
    history = busy_history(spec, count=3_000, days=12, step_us=1_000_000)
    store = open_store(store_url, deadline_s=30.0)
    online = OnlineFeatures(spec, store)
    order = np.argsort(history.event_time_us, kind="stable")
    old, live, later = order[:2_000], order[2_000:2_300], order[2_300:]
    known = history.label_time_us <= history.event_time_us[live[-1]]
    for rows in np.split(live, 10):
        online.score([purchases_of(spec, history, rows)], write=[True])
    writer = EventWriter(spec, store, history=True)
    for _ in range(2):
        writer.purchases(purchases_of(spec, history, np.concatenate([old, live])))
        labelled = np.flatnonzero((history.label == 1) & known)
        labelled = labelled[np.argsort(history.label_time_us[labelled], kind="stable")]
        writer.labels(labels_of(spec, history, labelled))
    names = ("n_1d", "spent", "sold", "least", "largest", "spread", "trend_sold")
    require_same_windows(online, history, np.array_split(later, 50), names=names)


@pytest.mark.parametrize(("years", "size"), [(60, 5), (69, 1), (69, 5), (199, 5)])
def test_an_id_may_come_back_after_decades(
    tmp_path: Path, store_url: str, open_store: OpenStore, years: int, size: int
) -> None:
    """Tiles of a second are counted from another base."""
    path = tmp_path / "features.yaml"
    path.write_text(
        "{version: 1, product: p, lateness: 1s, entities: {c: {key: customer_id, "
        "hop: 1s, cap: 8}}, features: ["
        "{name: n, entity: c, aggregate: count, window: 100s},"
        "{name: s, entity: c, aggregate: sum, window: 20s}]}"
    )
    spec = load_spec(path)
    start_us, gap_us = 946_684_800_000_000, years * 365 * 24 * HOUR_US
    time_us = start_us + np.add.outer([0, gap_us], np.arange(120) * 1_000_000).ravel()
    table = pl.DataFrame(
        {
            "transaction_id": [f"x{one}" for one in range(240)],
            "event_time": pl.Series(time_us).cast(pl.Datetime("us")),
            "customer_id": ["c"] * 240,
            "amount": [1.0] * 240,
        }
    )
    history = history_of(table, spec=spec, source="")
    expected = build(spec, history)
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=30.0))
    for rows, found in replay(online, history, read_from_us=0, batch_rows=size):
        np.testing.assert_array_equal(found.features, expected[rows])


def test_labels_that_come_again_are_not_counted_again(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """Thirty frauds of one terminal, known at one instant, delivered three times."""
    spec = busy_spec(tmp_path, customer="0", terminal="1h")
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=30.0))
    first = Purchases(
        transaction_id=[b"p%d" % one for one in range(200)],
        entity_id=[[b"c"] * 200, [b"t"] * 200],
        event_time_us=START_US + np.arange(200) * 60_000_000,
        cents=np.full(200, 100),
    )
    online.load(first)
    labels = Labels(
        transaction_id=first.transaction_id[:30],
        entity_id=[column[:30] for column in first.entity_id],
        event_time_us=first.event_time_us[:30],
        label=np.ones(30, np.int8),
        label_time_us=np.full(30, START_US + 24 * HOUR_US),
        revision=np.zeros(30, np.int64),
    )
    row = Purchases(
        transaction_id=[b"row"],
        entity_id=[[b"d"], [b"t"]],
        event_time_us=np.array([START_US + 50 * HOUR_US]),
        cents=np.array([100]),
    )
    frauds = spec.feature_names.index("frauds")
    for _ in range(3):
        online.label(labels)
        (vectors,) = online.score([row], write=[False])
        assert vectors.features[0, frauds] == 30


def test_history_loaded_in_turns_with_live_purchases_is_complete(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """Parts of the history and live purchases take turns; then all is sent again."""
    spec = busy_spec(tmp_path, customer="1h", terminal="6h", more=MOMENTS)
    history = busy_history(spec, count=4_000, days=12, step_us=1_000_000)
    store = open_store(store_url, deadline_s=30.0)
    online = OnlineFeatures(spec, store)
    order = np.argsort(history.event_time_us, kind="stable")
    old, live, later = order[:2_000], order[2_000:3_000], order[3_000:]
    writer = EventWriter(spec, store, history=True)
    turns = zip(np.array_split(old, 10), np.array_split(live, 10), strict=True)
    for part, now in turns:
        writer.purchases(purchases_of(spec, history, part))
        for rows in np.array_split(now, 4):
            online.score([purchases_of(spec, history, rows)], write=[True])
    writer.purchases(purchases_of(spec, history, np.concatenate([old, live])))
    names = ("n_1d", "spent", "mean", "least", "largest", "sold", "items_last")
    names += ("spread", "spread_items", "trend", "trend_sold")
    require_same_windows(online, history, np.array_split(later, 20), names=names)


def test_purchase_behind_its_waiting_label_and_the_tiles_is_refused(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """A label that names a later time than its purchase does not let it in."""
    spec = busy_spec(tmp_path, customer="0", terminal="1h")
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=30.0))

    def purchase(name: bytes, minute: int) -> Purchases:
        return Purchases(
            transaction_id=[name],
            entity_id=[[name], [b"t"]],
            event_time_us=np.array([START_US + minute * 60_000_000]),
            cents=np.array([100]),
        )

    for minute in range(200):
        online.load(purchase(b"p%d" % minute, minute))
    wrong = purchase(b"x", 300)
    online.label(
        Labels(
            transaction_id=wrong.transaction_id,
            entity_id=wrong.entity_id,
            event_time_us=wrong.event_time_us,
            label=np.array([1], np.int8),
            label_time_us=wrong.event_time_us,
            revision=np.array([0]),
        )
    )
    (vectors,) = online.score([purchase(b"x", 10)], write=[True])
    assert vectors.degraded[0] & Degraded.EVENT_TOO_LATE
    (vectors,) = online.score([purchase(b"row", 60 * 53)], write=[False])
    assert vectors.features[0, spec.feature_names.index("sold")] == 200
