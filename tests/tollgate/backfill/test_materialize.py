"""A history in the store equals the values that a feed would have left."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
import redis

from tests.support.store.hot_entities import (
    Served,
    busy_history,
    busy_spec,
    known_at,
    serve_after,
    serve_until,
)
from tollgate.backfill.materialize import MaterializeCounts, materialize, within_reach
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History, history_of
from tollgate.replay import labels_of, purchases_of, spans
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.simulate import simulate
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import RedisStore

OpenStore = Callable[..., RedisStore]


@pytest.fixture(scope="module")
def history(spec: FeatureSpec) -> History:
    """Return half a year of a few customers; windows reach only its end."""
    frame = simulate(customers=40, terminals=60, days=150, radius=30.0, seed=4)
    return history_of(frame, spec=spec, source="simulated")


def values(url: str) -> dict[bytes, bytes]:
    """Read every entity's value."""
    with redis.Redis.from_url(url) as client:
        keys = sorted(
            key for key in client.keys(b"tollgate:*") if b".history:" not in key
        )
        return dict(zip(keys, client.mget(keys), strict=True)) if keys else {}


def feed_all(spec: FeatureSpec, history: History, store: RedisStore) -> None:
    """Apply every event in the order in which it became known."""
    writer = EventWriter(spec, store)
    for span in spans(spec, history, batch_rows=100):
        writer.labels(labels_of(spec, history, span.labels))
        writer.purchases(purchases_of(spec, history, span.purchases))
    writer.labels(labels_of(spec, history, frauds(history)))  # the last ones, too


def frauds(history: History) -> np.ndarray:
    """Return the purchases that are labelled as fraud."""
    return np.flatnonzero(history.label == 1)


def test_values_equal_those_of_a_feed(
    spec: FeatureSpec,
    history: History,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
) -> None:
    """Bit-identical values, although most of the history is never sent."""
    store = open_store(store_url)
    feed_all(spec, history, store)
    wanted = values(store_url)
    redis_client.flushall()
    seen: list[tuple[int, int]] = []
    done = materialize(spec, history, store, progress=lambda *step: seen.append(step))
    assert values(store_url) == wanted
    assert done.history == len(history) == done.out_of_reach + done.sent
    assert done.out_of_reach > done.sent > 0
    assert done.applied + done.too_late == done.sent
    assert done.labels > 0
    assert seen[-1] == (done.sent, done.sent)


def test_events_beyond_the_cap_are_counted(
    spec: FeatureSpec, store_url: str, open_store: OpenStore
) -> None:
    """
    1,500 purchases of one customer, 1,024 of another, at terminals of their own.

    The values' headers, read by hand, have the same: bytes 8 to 11 are the overflow,
    12 to 15 the count.
    """
    count = 2_524
    frame = pl.DataFrame(
        {
            "transaction_id": [f"t{row}" for row in range(count)],
            "customer_id": ["busy"] * 1_500 + ["full"] * 1_024,
            "terminal_id": [f"m{row}" for row in range(count)],
            "amount": [1.0] * count,
            "event_time": [1_600_000_000_000_000 + row for row in range(count)],
        }
    )
    history = history_of(frame, spec=spec, source="busy.csv")
    done = materialize(spec, history, open_store(store_url))
    assert (done.full, done.over_cap) == (1, 476)
    found = {
        key.rsplit(b":", 1)[1]: struct.unpack("<II", value[8:16])
        for key, value in values(store_url).items()
        if b":customer:" in key
    }
    assert found == {b"busy": (476, 1_024), b"full": (0, 1_024)}


def test_second_run_has_nothing_to_do(
    spec: FeatureSpec,
    history: History,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
) -> None:
    """The checkpoint is stored next to the values; without it all are duplicates."""
    store = open_store(store_url)
    first = materialize(spec, history, store)
    wanted = values(store_url)
    again = materialize(spec, history, store)
    assert (again.done_before, again.sent) == (first.sent, 0)
    (place,) = redis_client.keys(b"tollgate:*.history:*")
    assert 0 < redis_client.ttl(place) <= 7 * 86_400
    redis_client.delete(place)
    third = materialize(spec, history, store)
    assert third.duplicates + third.too_late == first.sent > third.too_late
    assert third.applied == 0
    assert values(store_url) == wanted


def test_each_history_has_its_own_checkpoint(
    spec: FeatureSpec,
    history: History,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
) -> None:
    """Two halves of a history, loaded separately, equal the whole."""
    store = open_store(store_url)
    materialize(spec, history, store)
    wanted = values(store_url)
    redis_client.flushall()
    order = np.argsort(history.event_time_us, kind="stable")
    half = len(order) // 2
    for rows in (order[:half], order[half:]):
        done = materialize(spec, history.take(rows), store)
        assert done.done_before == 0
    assert values(store_url) == wanted


def test_events_during_the_load_are_not_lost(
    spec: FeatureSpec,
    history: History,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
) -> None:
    """Newer purchases between its parts give the same values."""
    order = np.argsort(history.event_time_us, kind="stable")
    old, new = history.take(order[:-600]), history.take(order[-600:])
    store, live = open_store(store_url), open_store(store_url)
    feed_all(spec, history, store)
    wanted = values(store_url)
    redis_client.flushall()
    writer = EventWriter(spec, live)
    writer.purchases(purchases_of(spec, new, np.arange(200)))

    def meanwhile(done: int, total: int) -> None:
        assert done == total  # one part: the rest comes after it
        writer.purchases(purchases_of(spec, new, np.arange(200, 600)))

    materialize(spec, old, store, progress=meanwhile)
    writer.labels(labels_of(spec, new, frauds(new)))
    assert values(store_url) == wanted


@pytest.mark.parametrize("live", [0, 300])
def test_materialized_tiles_serve_the_offline_vectors(
    tmp_path: Path,
    store_url: str,
    redis_client: redis.Redis,
    open_store: OpenStore,
    live: int,
) -> None:
    """In several parts while hot entities go on, and again after a kill between two."""
    spec = busy_spec(tmp_path)
    history = busy_history(spec, count=20_000, days=30)
    at_us, known_us = history.event_time_us, history.label_time_us
    store = open_store(store_url)
    writer = EventWriter(spec, store)
    after = np.arange(16_000, 16_000 + live)
    writer.purchases(purchases_of(spec, history, after))
    past = known_at(history, int(at_us[15_999]))
    done = materialize(spec, past, store)
    assert done.sent == done.applied + done.too_late > 4_096  # more than one part
    assert live or not done.too_late
    before = values(store_url)
    (place,) = redis_client.keys(b"tollgate:*.history:*")
    redis_client.set(place, b"4096")  # a part was sent, its progress was not stored
    again = materialize(spec, past, store)
    assert (again.done_before, again.applied) == (4_096, 0)
    assert again.too_late + again.duplicates == again.sent == done.sent - 4_096
    assert values(store_url) == before
    start_us = int(at_us[15_999 + live])
    known = (history.label == 1) & (known_us > at_us[15_999]) & (known_us <= start_us)
    writer.labels(labels_of(spec, history, np.flatnonzero(known)))
    served = serve_after(spec, history, store, after_us=start_us)
    assert served == Served(rows=4_000 - live, different=0, marked=0)


def test_labels_that_came_before_the_load_do_not_displace_older_ones(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """A value lists four labels of folded purchases; dozens came while it served."""
    spec = busy_spec(tmp_path, terminal="1d")
    history = busy_history(spec, count=9_000, days=30)
    at_us, known_us = history.event_time_us, history.label_time_us
    start_us, until_us = int(at_us[5_999]), int(at_us[7_499])
    lost = (at_us <= start_us) & (known_us > start_us) & (known_us <= until_us)
    history = msgspec.structs.replace(history, label=history.label * ~lost)
    store = open_store(store_url)
    serve_until(spec, history, store, until_us=until_us, after_us=start_us)
    materialize(spec, known_at(history, start_us), store)
    served = serve_after(spec, history, store, after_us=until_us)
    assert served == Served(rows=1_500, different=0, marked=0)


def test_labels_dated_by_day_are_all_loaded(
    tmp_path: Path, store_url: str, redis_client: redis.Redis, open_store: OpenStore
) -> None:
    """A label joins its purchase even if its time is before it; a repeat adds none."""
    spec = busy_spec(tmp_path)
    history = busy_history(spec, count=11_000, days=8)
    at_us = history.event_time_us
    midnight_us = at_us - at_us % 86_400_000_000
    history = msgspec.structs.replace(history, label_time_us=midnight_us)
    until_us = int(at_us[9_999])
    past = known_at(history, until_us)
    store = open_store(store_url)
    done = materialize(spec, past, store)
    assert (done.labels, done.late_labels) == (len(frauds(past)), 0)
    before = values(store_url)
    (place,) = redis_client.keys(b"tollgate:*.history:*")
    redis_client.set(place, b"4096")  # parts were sent, their progress was not stored
    assert materialize(spec, past, store).applied == 0
    assert values(store_url) == before
    served = serve_after(spec, history, store, after_us=until_us)
    assert served == Served(rows=1_000, different=0, marked=0)


def test_rate_is_not_exceeded(
    spec: FeatureSpec, history: History, store_url: str, open_store: OpenStore
) -> None:
    """With 2,000 a second, 1,000 purchases take half a second at least."""
    last = np.argsort(history.event_time_us)[-1_000:]
    begun_s = time.monotonic()
    done = materialize(
        spec, history.take(last), open_store(store_url), rate_per_s=2_000
    )
    assert time.monotonic() - begun_s >= 0.98 * done.sent / 2_000


def test_empty_history_is_no_error(
    spec: FeatureSpec, history: History, store_url: str, open_store: OpenStore
) -> None:
    """All counts are 0."""
    none = history.take(np.empty(0, np.int64))
    assert len(within_reach(spec, none)) == 0
    assert materialize(spec, none, open_store(store_url)) == MaterializeCounts()


RUN = """
import sys
from pathlib import Path
from tollgate.backfill.materialize import materialize
from tollgate.features.spec.feature_spec import load_spec
from tollgate.history import read_history
from tollgate.store.redis.redis_store import RedisStore
spec = load_spec(Path(sys.argv[1]))
history = read_history(Path(sys.argv[2]), spec=spec)
store = RedisStore(sys.argv[3], deadline_s=10)
report = lambda done, total: print(done, flush=True)
print(materialize(spec, history, store, progress=report).done_before)
"""


def test_killed_run_continues(
    tmp_path: Path, spec: FeatureSpec, spec_path: Path, open_store: OpenStore
) -> None:
    """SIGKILL after its second part: the next run continues to the same values."""
    frame = simulate(customers=400, terminals=600, days=40, radius=30.0, seed=5)
    file = tmp_path / "history.parquet"
    frame.with_columns(pl.col("transaction_id")).write_parquet(file)
    whole = history_of(frame, spec=spec, source="simulated")
    with (
        EmbeddedRedis(tmp_path / "killed") as killed,
        EmbeddedRedis(tmp_path / "reference") as reference,
    ):
        command = [sys.executable, "-c", RUN, str(spec_path), str(file), killed.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            child.stdout.readline()
            second = int(child.stdout.readline())
            child.kill()
        again = subprocess.run(command, capture_output=True, text=True, check=True)
        began = int(again.stdout.splitlines()[-1])
        assert second <= began < len(whole)
        materialize(spec, whole, open_store(reference.url))
        assert values(killed.url) == values(reference.url) != {}
