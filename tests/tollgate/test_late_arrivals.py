"""A history with times of arrival: offline and online see what had arrived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, concatenate, history_of
from tollgate.replay import arrival_order, replay, spans
from tollgate.schema import Applied, Degraded
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore

OpenStore = Callable[..., RedisStore]

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
START_US = 1_700_000_000 * SECOND_US
EXACT = """\
version: 1
product: late
lateness: 12h
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id, delay: 2h}
fields:
  - {name: items, type: number, decimals: 1}
features:
  - {name: amount, field: amount}
  - {name: n, entity: customer, aggregate: count, window: 6h}
  - {name: spent, entity: customer, aggregate: sum, window: 1d}
  - {name: most, entity: customer, aggregate: max, window: 6h}
  - {name: last, entity: customer, aggregate: last, window: 1d, default: -1}
  - {name: items_last, entity: customer, aggregate: last, of: items, window: 6h}
  - {name: gap, time_since_last: customer, window: 1d, default: -1}
  - {name: frauds, entity: terminal, aggregate: flagged, window: 1d}
  - {name: risk, entity: terminal, aggregate: share, window: 6h}
"""
MANY_KINDS = """\
  - {name: places, entity: customer, aggregate: distinct, of: terminal_id, window: 1d}
  - {name: spread, entity: customer, aggregate: std, window: 1d}
  - {name: trend, entity: customer, aggregate: slope, window: 6h}
  - {name: step, entity: customer, aggregate: change, window: 1d}
  - {name: lately, entity: customer, aggregate: ewm, half_life: 1h, window: 1d}
  - {name: visits, entity: customer, aggregate: sessions, gap: 30m, window: 1d}
"""
TILED = EXACT.replace("{key: customer_id}", "{key: customer_id, hop: 1h, cap: 64}")
TILED = TILED.replace("delay: 2h}", "delay: 2h, hop: 15m, cap: 64}")
SPECS = {"exact": EXACT + MANY_KINDS, "tiled": TILED}


def spec_of(folder: Path, kind: str) -> FeatureSpec:
    """Load one of the specs."""
    path = folder / "features.yaml"
    path.write_text(SPECS[kind])
    return load_spec(path)


def late_rows(seed: int, *, count: int = 700, late_share: float = 0.2) -> pl.DataFrame:
    """Return purchases of three days, with ties; a share comes up to 10 hours late."""
    random = np.random.default_rng(seed)
    time_us = START_US + random.integers(0, 3 * 24 * 12, count) * 300 * SECOND_US
    lag_us = random.integers(0, 10 * HOUR_US, count)
    lag_us[random.random(count) >= late_share] = 0
    label = (random.random(count) < 0.15).astype(np.int8)
    label_us = time_us + lag_us + random.integers(0, 20 * HOUR_US, count)
    return pl.DataFrame(
        {
            "transaction_id": [f"p{row}" for row in random.permutation(count)],
            "customer_id": random.choice(["anna", "ben", "cleo"], count).tolist(),
            "terminal_id": random.choice(["t1", "t2"], count).tolist(),
            "amount": random.integers(1, 5000, count) / 100,
            "items": random.integers(0, 90, count) / 10,
            "event_time": pl.Series(time_us).cast(pl.Datetime("us")),
            "received": pl.Series(time_us + lag_us).cast(pl.Datetime("us")),
            "label": label,
            "label_time": pl.Series(label_us).cast(pl.Datetime("us")),
        }
    )


def history(spec: FeatureSpec, frame: pl.DataFrame) -> History:
    """Read the rows with their times of arrival."""
    return history_of(frame, spec=spec, source="late.csv", arrival="received")


def plain_windows(frame: pl.DataFrame) -> list[tuple[float, float, float]]:
    """Compute n, spent and frauds of each row in loops, over what had arrived."""
    rows = frame.with_columns(
        pl.col("event_time", "received", "label_time").cast(pl.Int64)
    ).to_dicts()
    found = []
    for own in rows:
        now_us, key = (
            own["event_time"],
            (len(own["transaction_id"]), own["transaction_id"]),
        )
        seen = [one for one in rows if one["received"] <= own["received"]]
        mine = [
            (one, now_us - one["event_time"])
            for one in seen
            if one["customer_id"] == own["customer_id"]
            and (one["event_time"], len(one["transaction_id"]), one["transaction_id"])
            <= (now_us, *key)
        ]
        there = [
            (one, now_us - 2 * HOUR_US - one["event_time"])
            for one in seen
            if one["terminal_id"] == own["terminal_id"]
        ]
        found.append(
            (
                sum(age < 6 * HOUR_US for _, age in mine),
                round(sum(one["amount"] for one, age in mine if age < 24 * HOUR_US), 2),
                sum(
                    one["label"] == 1 and one["label_time"] <= now_us
                    for one, age in there
                    if 0 <= age < 24 * HOUR_US
                ),
            )
        )
    return found


def test_windows_count_the_events_that_had_arrived(tmp_path: Path) -> None:
    """Compared with loops over all pairs of rows."""
    spec, frame = spec_of(tmp_path, "exact"), late_rows(1, count=400)
    vectors = build(spec, history(spec, frame))
    names = [spec.feature_names.index(one) for one in ("n", "spent", "frauds")]
    np.testing.assert_allclose(vectors[:, names], plain_windows(frame), rtol=1e-12)
    in_turn = build(spec, history_of(frame, spec=spec, source=""))
    assert 50 < (in_turn != vectors).any(axis=1).sum() < 400


@pytest.mark.parametrize("kind", SPECS)
def test_on_time_histories_are_as_without_arrivals(tmp_path: Path, kind: str) -> None:
    """Also with rows that arrive late together, in the order of their times."""
    spec = spec_of(tmp_path, kind)
    frame = late_rows(2, late_share=0.0)
    wanted = build(spec, history_of(frame, spec=spec, source=""))
    np.testing.assert_array_equal(build(spec, history(spec, frame)), wanted)
    together = frame.with_columns(pl.lit(frame["received"].max()).alias("received"))
    np.testing.assert_array_equal(build(spec, history(spec, together)), wanted)


@pytest.mark.parametrize("batch_rows", [1, 37, 1000])
@pytest.mark.parametrize("kind", SPECS)
def test_replay_in_the_order_of_arrival_equals_offline(
    tmp_path: Path,
    kind: str,
    batch_rows: int,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """
    In every bit.

    Where tiles count a label that became known after the time of a late row, that row
    is marked instead.
    """
    spec = spec_of(tmp_path, kind)
    late = history(spec, late_rows(batch_rows, late_share=0.1))
    offline = build(spec, late).astype(np.float32)
    online = OnlineFeatures(spec, open_store(store_url, deadline_s=30.0))
    assert late.arrival_us is not None
    is_late = late.arrival_us > late.event_time_us
    compared = 0
    for rows, vectors in replay(online, late, read_from_us=0, batch_rows=batch_rows):
        on_time = (vectors.degraded & np.uint32(Degraded.EVENT_TOO_LATE)) == 0
        np.testing.assert_array_equal(
            vectors.features[on_time].astype(np.float32), offline[rows][on_time]
        )
        assert is_late[rows[~on_time]].all()
        assert (vectors.applied == Applied.YES).all()
        compared += int(on_time.sum())
    assert compared > 600 if kind == "tiled" else compared == len(late)


def test_spans_follow_the_arrival_and_keep_older_events_apart(tmp_path: Path) -> None:
    """Each purchase once; no span has a purchase older than one of its id before it."""
    spec = spec_of(tmp_path, "exact")
    late = history(spec, late_rows(5))
    assert late.arrival_us is not None
    cut = list(spans(spec, late))
    order = np.concatenate([one.purchases for one in cut])
    np.testing.assert_array_equal(order, arrival_order(late))
    assert (np.diff(late.arrival_us[order]) >= 0).all()
    for one in cut:
        for ids in late.entity_id.values():
            own: dict[bytes, int] = {}
            for row in one.purchases.tolist():
                assert own.get(ids[row], 0) <= late.event_time_us[row]
                own[ids[row]] = int(late.event_time_us[row])
    assert 10 < len(cut) < len(late)


def test_selected_and_joined_histories_have_their_arrivals(tmp_path: Path) -> None:
    """A join with a history without arrivals has none."""
    spec, frame = spec_of(tmp_path, "exact"), late_rows(6, count=50)
    late = history(spec, frame)
    parts = [late.take(np.arange(20)), late.take(slice(20, None))]
    assert late.arrival_us is not None
    np.testing.assert_array_equal(concatenate(parts).arrival_us, late.arrival_us)
    on_time = history_of(frame[:20], spec=spec, source="")
    assert concatenate([on_time, parts[1]]).arrival_us is None


@pytest.mark.parametrize(
    ("received", "problem"),
    [
        ("2023-11-14T00:00:00", "row 3: .* is before the event_time of its row"),
        ("soon", "row 3: 'soon' is not a time"),
    ],
)
def test_an_impossible_arrival_is_refused(
    tmp_path: Path, received: str, problem: str
) -> None:
    """With file, column and row; an empty one is the purchase's own time."""
    spec, frame = spec_of(tmp_path, "exact"), late_rows(7, count=5)
    texts = frame["received"].dt.strftime("%Y-%m-%dT%H:%M:%S").to_list()
    blank = frame.with_columns(pl.Series("received", [None, *texts[1:]]))
    found = history(spec, blank)
    assert found.arrival_us is not None
    assert found.arrival_us[0] == found.event_time_us[0]
    texts[3] = received
    with pytest.raises(InputError, match=f"late.csv: received: {problem}"):
        history(spec, frame.with_columns(pl.Series("received", texts)))
    with pytest.raises(InputError, match="received: column missing; the file has"):
        history(spec, frame.drop("received"))
