"""A history driven through the online path gives what offline gives, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import redis

from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History, history_of, read_history
from tollgate.replay import replay, spans
from tollgate.schema import Applied, Degraded
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore

DAY_US = 86_400_000_000
OpenStore = Callable[..., RedisStore]


@pytest.fixture
def online(spec: FeatureSpec, store_url: str, open_store: OpenStore) -> OnlineFeatures:
    """The product's features over an empty store."""
    return OnlineFeatures(spec, open_store(store_url, deadline_s=30.0))


@pytest.fixture(scope="module")
def history(spec: FeatureSpec, simulated: pl.DataFrame) -> History:
    """
    Half of the simulated history with everything that is awkward.

    Times of three hours (ties by the dozen), labels up to weeks late, some not
    known, ids of all lengths of which many agree in fifteen bytes, rows shuffled.
    """
    source = np.random.default_rng(11)
    count = len(simulated)
    extra = pl.Series(source.choice([0, 0, 6, 12, 40], count))
    kind = source.integers(0, 4, count).tolist()
    ids = [
        ("", "", "fifteen-bytes-..", "é" * 61)[which] + str(number)
        for number, which in enumerate(kind)
    ]
    awkward = simulated.with_columns(
        event_time=pl.col("event_time").dt.truncate("3h"),
        transaction_id=pl.Series(ids),
        label=pl.when(pl.Series(source.random(count) < 0.9)).then("label"),
        label_time=pl.col("label_time") + pl.duration(days=extra),
    )
    return history_of(
        awkward.sample(n=count // 2, shuffle=True, seed=4), spec=spec, source=""
    )


def replayed(
    online: OnlineFeatures, history: History, *, batch_rows: int, read_from_us: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, float32 vectors and degraded bits, put together."""
    rows, features, degraded = [], [], []
    for position, vectors in replay(
        online, history, read_from_us=read_from_us, batch_rows=batch_rows
    ):
        assert set(vectors.applied.tolist()) == {Applied.YES}
        rows.append(position)
        features.append(vectors.features)
        degraded.append(vectors.degraded)
    return (
        np.concatenate(rows),
        np.concatenate(features).astype(np.float32),
        np.concatenate(degraded),
    )


def assert_same_bits(online_vectors: np.ndarray, offline_vectors: np.ndarray) -> None:
    """Compare float32 as bits: a NaN or a negative zero would show."""
    served = offline_vectors.astype(np.float32)
    np.testing.assert_array_equal(
        online_vectors.view(np.uint32), served.view(np.uint32)
    )


@pytest.mark.parametrize("batch_rows", [1, 7, 32, 1000])
def test_online_equals_offline_to_the_bit(
    spec: FeatureSpec, online: OnlineFeatures, history: History, batch_rows: int
) -> None:
    """All rows, in batches of any size; only first purchases carry a bit."""
    rows, features, degraded = replayed(online, history, batch_rows=batch_rows)
    assert sorted(rows.tolist()) == list(range(len(history)))
    wanted = build(spec, history)
    assert_same_bits(features, wanted[rows])
    assert set(degraded.tolist()) == {0, Degraded.COLD_START}
    customers = {history.entity_id["customer_id"][row] for row in range(len(history))}
    assert len(customers) <= (degraded == Degraded.COLD_START).sum() <= 60
    assert (wanted[:, -1] > 0).mean() > 0.1


def test_reading_may_begin_in_the_middle(
    spec: FeatureSpec, online: OnlineFeatures, history: History
) -> None:
    """Earlier purchases are fed without being read, and count all the same."""
    middle_us = int(np.median(history.event_time_us))
    rows, features, _ = replayed(online, history, batch_rows=50, read_from_us=middle_us)
    assert (
        sorted(rows.tolist())
        == np.flatnonzero(history.event_time_us >= middle_us).tolist()
    )
    assert_same_bits(features, build(spec, history)[rows])


def test_feeding_again_changes_no_stored_byte(
    online: OnlineFeatures, history: History, redis_client: redis.Redis
) -> None:
    """A replay of what is there already leaves every value as it was."""
    last = history.take(np.argsort(history.event_time_us, kind="stable")[-400:])
    never_us = int(history.event_time_us.max()) + 1
    seen: list[tuple[int, int]] = []
    for batch_rows in (37, 400):
        read = replay(
            online,
            last,
            read_from_us=never_us,
            batch_rows=batch_rows,
            progress=lambda *done: seen.append(done),
        )
        assert list(read) == []
        values = {key: redis_client.get(key) for key in redis_client.scan_iter()}
        if batch_rows == 37:
            kept = values
    assert values == kept
    assert seen[-1] == (400, 400)


@pytest.mark.parametrize("batch_rows", [1, 40, 10_000])
def test_spans_cover_all_in_order_and_stay_short(
    spec: FeatureSpec, history: History, batch_rows: int
) -> None:
    """
    Each purchase once, in the order of time; each known fraud label once.

    A label goes with the first span that reaches its time: not later, or reads of
    that span would miss it; the last ones may never come.
    """
    cut = list(spans(spec, history, batch_rows=batch_rows))
    time_us = history.event_time_us
    order = np.concatenate([span.purchases for span in cut])
    assert sorted(order.tolist()) == list(range(len(history)))
    assert (np.diff(time_us[order]) >= 0).all()
    fed: set[int] = set()
    for span in cut:
        assert 1 <= len(span.purchases) <= batch_rows
        assert np.ptp(time_us[span.purchases]) <= spec.lateness_us // 2
        assert not fed & set(span.labels.tolist())
        fed |= set(span.labels.tolist())
        due = history.label_time_us <= time_us[span.purchases].max()
        assert fed == set(np.flatnonzero((history.label == 1) & due).tolist())


def test_ties_are_fed_in_the_order_of_ids(spec: FeatureSpec, history: History) -> None:
    """A tie cut by a batch's end is cut by (length, bytes), as reading needs it."""
    order = np.concatenate([span.purchases for span in spans(spec, history)])
    keys = [
        (history.event_time_us[row], len(one), one[:15])
        for row in order
        for one in [history.transaction_id[row]]
    ]
    assert keys == sorted(keys)


@pytest.mark.slow
def test_handbook_slice_online_equals_offline(
    spec: FeatureSpec, online: OnlineFeatures, shared_data: Path
) -> None:
    """Forty customers and forty terminals of the handbook, half a year, to the bit."""
    whole = read_history(shared_data / "handbook" / "transactions.parquet", spec=spec)
    customers = set(sorted(set(whole.entity_id["customer_id"]))[::125])
    terminals = set(sorted(set(whole.entity_id["terminal_id"]))[::250])
    chosen = [
        row
        for row, (customer, terminal) in enumerate(
            zip(*whole.entity_id.values(), strict=True)
        )
        if customer in customers or terminal in terminals
    ]
    history = whole.take(np.array(chosen))
    rows, features, degraded = replayed(online, history, batch_rows=1_000)
    assert len(rows) == len(history) > 15_000
    assert_same_bits(features, build(spec, history)[rows])
    assert set(degraded.tolist()) == {0, Degraded.COLD_START}
