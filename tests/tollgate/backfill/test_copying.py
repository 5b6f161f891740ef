"""Copying the values of one state into another's while the first one serves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from msgspec import structs

from tests.support.store.hot_entities import (
    Served,
    busy_history,
    busy_spec,
    known_at,
    serve_after,
    serve_until,
)
from tollgate.backfill.copying import CopyCounts, copy_state, reach_warnings
from tollgate.backfill.materialize import materialize
from tollgate.backfill.pace import Pace
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.replay import label_order, labels_of, purchases_of
from tollgate.simulate import simulate
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import Answer, Mode, RedisStore
from tollgate.store.store_events import Call

OpenStore = Callable[..., RedisStore]


@pytest.fixture(scope="module")
def history(spec: FeatureSpec) -> History:
    """Return purchases of three weeks, in the order of time."""
    frame = simulate(customers=60, terminals=80, days=21, radius=30.0, seed=6)
    found = history_of(frame, spec=spec, source="simulated")
    return found.take(np.argsort(found.event_time_us, kind="stable"))


@pytest.fixture
def next_spec(spec_path: Path, tmp_path: Path) -> FeatureSpec:
    """Return the same features in a new generation of values."""
    return rewritten(spec_path, tmp_path, "lateness: 1d", "lateness: 1d\ngeneration: 1")


def rewritten(spec_path: Path, folder: Path, old: str, new: str) -> FeatureSpec:
    """Change a features.yaml and read it."""
    text = spec_path.read_text()
    assert old in text
    path = folder / "features.yaml"
    path.write_text(text.replace(old, new))
    return load_spec(path)


def values(client: redis.Redis, spec: FeatureSpec) -> dict[bytes, bytes]:
    """Read every entity's value of one state, without the state in its name."""
    prefix = f"tollgate:fraud:{spec.state_hash:016x}:".encode()
    keys = sorted(client.keys(prefix + b"*"))
    found = client.mget(keys) if keys else []
    return {key[len(prefix) :]: one for key, one in zip(keys, found, strict=True)}


def parts(history: History, size: int) -> Iterator[np.ndarray]:
    """Split a history into runs."""
    for start in range(0, len(history), size):
        yield np.arange(start, min(start + size, len(history)))


def test_generation_changes_the_state_not_the_vector(
    spec: FeatureSpec, next_spec: FeatureSpec
) -> None:
    """The model still fits; the keys differ; the first generation is the default."""
    assert next_spec.state_hash != spec.state_hash
    assert next_spec.spec_hash == spec.spec_hash
    assert next_spec.entities == spec.entities


def test_copied_values_are_bit_identical(
    spec: FeatureSpec,
    next_spec: FeatureSpec,
    history: History,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """Purchases, joined labels and pending labels are unchanged."""
    store = open_store(store_url)
    writer = EventWriter(spec, store)
    writer.purchases(purchases_of(spec, history, np.arange(len(history) - 50)))
    writer.labels(labels_of(spec, history, np.arange(0, len(history), 3)))
    wanted = values(redis_client, spec)
    done = copy_state(spec, next_spec, store)
    assert values(redis_client, next_spec) == wanted
    assert (done.values, done.damaged, done.full) == (len(wanted), 0, 0)
    assert done.applied == done.events > 2 * len(history)
    again = copy_state(spec, next_spec, store)
    assert (again.applied, again.events) == (0, done.events)
    assert values(redis_client, spec) == wanted


def test_migration_to_a_new_state_loses_nothing(
    spec: FeatureSpec,
    next_spec: FeatureSpec,
    history: History,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """History, copy, switch, copy: as if the new values had always existed."""
    known = len(history) // 2
    first = EventWriter(next_spec, open_store(store_url))
    first.purchases(purchases_of(spec, history, np.arange(len(history))))
    frauds = np.flatnonzero(history.label[:known] == 1)  # what comes later has none
    first.labels(labels_of(spec, history, frauds))
    wanted = values(redis_client, next_spec)
    redis_client.flushall()
    switched, enough = threading.Event(), threading.Event()
    applied = {"old": 0, "new": 0}

    def serve() -> None:
        old = EventWriter(spec, open_store(store_url))
        new = EventWriter(next_spec, open_store(store_url))
        later = history.take(slice(known, None))
        for rows in parts(later, 4):
            name = "new" if switched.is_set() else "old"
            batch = purchases_of(spec, later, rows)
            (new if name == "new" else old).purchases(batch)
            applied[name] += len(rows)
            enough.wait(0.004)

    serving = threading.Thread(target=serve)
    serving.start()
    store = open_store(store_url)
    materialize(next_spec, history.take(slice(0, known)), store)
    since_us = int(history.event_time_us[known - 1]) - spec.lateness_us
    copy_state(spec, next_spec, store, since_us=since_us)
    switched.set()
    copy_state(spec, next_spec, store, since_us=since_us)
    enough.set()
    serving.join()
    copy_state(spec, next_spec, store, since_us=since_us)  # a batch was under way
    assert min(applied.values()) > 0
    assert values(redis_client, next_spec) == wanted


@pytest.mark.parametrize(
    ("hop", "live"), [("15m", 0), ("1h", 0), ("1d", 0), ("1h", 200)]
)
def test_values_copied_into_tiles_serve_the_offline_vectors(
    tmp_path: Path, store_url: str, open_store: OpenStore, hop: str, live: int
) -> None:
    """Events go out in order; the new values may serve already; twice is once."""
    exact = busy_spec(tmp_path, customer="0", terminal="0")
    tiled = busy_spec(tmp_path, customer="0", terminal=hop)
    history = busy_history(tiled, count=4_000, days=40)
    at_us, known_us = history.event_time_us, history.label_time_us
    store = open_store(store_url)
    serve_until(exact, history, store, until_us=int(at_us[2_999]))
    after = np.arange(3_000, 3_000 + live)
    EventWriter(tiled, store).purchases(purchases_of(tiled, history, after))
    done = copy_state(exact, tiled, store)
    assert (done.full, done.damaged) == (0, 0)
    again = copy_state(exact, tiled, store)
    assert (again.applied, again.events) == (0, done.events)
    start_us = int(at_us[2_999 + live])
    known = (history.label == 1) & (known_us > at_us[2_999]) & (known_us <= start_us)
    EventWriter(tiled, store).labels(labels_of(tiled, history, np.flatnonzero(known)))
    served = serve_after(tiled, history, store, after_us=start_us)
    assert served == Served(rows=1_000 - live, different=0, marked=0)


@pytest.mark.parametrize("hop", ["15m", "1h", "1d"])
def test_labels_that_come_before_the_copy_do_not_displace_older_ones(
    tmp_path: Path, store_url: str, open_store: OpenStore, hop: str
) -> None:
    """A value lists four labels of folded purchases; dozens came since the start."""
    exact = busy_spec(tmp_path, customer="0", terminal="0")
    tiled = busy_spec(tmp_path, customer="0", terminal=hop)
    history = busy_history(tiled, count=6_000, days=40)
    at_us = history.event_time_us
    store = open_store(store_url)
    start_us, until_us = int(at_us[2_499]), int(at_us[3_299])
    serve_until(exact, history, store, until_us=until_us)
    serve_until(tiled, history, store, until_us=until_us, after_us=start_us)
    done = copy_state(exact, tiled, store)
    assert (done.full, done.damaged) == (0, 0)
    again = copy_state(exact, tiled, store)
    assert (again.applied, again.events) == (0, done.events)
    served = serve_after(tiled, history, store, after_us=until_us)
    assert served == Served(rows=2_700, different=0, marked=0)


def test_labels_that_come_while_their_value_is_copied_are_not_lost(
    tmp_path: Path,
    store_url: str,
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first read lacks them, and the new values refuse them."""
    exact = busy_spec(tmp_path, customer="0", terminal="0")
    tiled = busy_spec(tmp_path, customer="0", terminal="1h")
    history = busy_history(tiled, count=4_000, days=40)
    at_us = history.event_time_us
    store, other = open_store(store_url), open_store(store_url)
    start_us, until_us = int(at_us[2_799]), int(at_us[2_999])
    bought = known_at(history, until_us)
    new = (bought.label == 1) & (bought.label_time_us > at_us[2_919])
    before = structs.replace(bought, label=bought.label * ~new)
    serve_until(exact, before, other, until_us=until_us)
    serve_until(tiled, before, other, until_us=until_us, after_us=start_us)
    apply, refused = store.apply, []

    def apply_after_labels(calls: list[tuple[Call, Mode]]) -> list[Answer]:
        if not refused and any(key.endswith(b":t1") for key in calls[0][0].keys):
            labels = labels_of(
                exact, history, label_order(history, np.flatnonzero(new))
            )
            EventWriter(exact, other).labels(labels)
            refused.extend(EventWriter(tiled, other).labels(labels).refused())
        return apply(calls)

    monkeypatch.setattr(store, "apply", apply_after_labels)
    copy_state(exact, tiled, store)
    assert len(refused) > 2
    served = serve_after(tiled, history, other, after_us=until_us)
    assert served == Served(rows=1_000, different=0, marked=0)


class Killed(Exception):
    """The copy ends here."""


@pytest.mark.parametrize("seed", range(8))
def test_copies_that_are_killed_while_events_go_on_lose_nothing(
    tmp_path: Path,
    store_url: str,
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Purchases and labels go to both states between two batches of the copy."""
    chance = np.random.default_rng(seed)
    exact = busy_spec(tmp_path, customer="0", terminal="0")
    tiled = busy_spec(tmp_path, customer="1h", terminal=("15m", "1h", "1d")[seed % 3])
    history = busy_history(tiled, count=2_400, days=20, seed=seed)
    at_us = history.event_time_us.tolist()
    store, live = open_store(store_url), open_store(store_url)
    served = int(chance.integers(700, 1_200))
    serve_until(exact, history, live, until_us=at_us[served])

    def serve(rows: int) -> None:
        nonlocal served
        times = {"after_us": at_us[served], "until_us": at_us[served + rows]}
        serve_until(exact, history, live, **times)
        serve_until(tiled, history, live, **times)
        served += rows

    serve(int(chance.integers(0, 300)))
    monkeypatch.setattr(Pace, "end", lambda *_: serve(int(chance.integers(0, 20))))
    apply = store.apply
    for calls in (int(chance.integers(40)), int(chance.integers(80)), 10_000):
        left = iter(range(calls))

        def apply_until_killed(
            calls: list[tuple[Call, Mode]], left: Iterator[int] = left
        ) -> list[Answer]:
            if next(left, None) is None:
                raise Killed
            return apply(calls)

        monkeypatch.setattr(store, "apply", apply_until_killed)
        with contextlib.suppress(Killed):
            copy_state(exact, tiled, store)
        serve(int(chance.integers(0, 200)))
    rest = serve_after(tiled, history, live, after_us=at_us[served])
    assert rest == Served(rows=2_399 - served, different=0, marked=0)


@pytest.mark.parametrize("hop", ["0", "1h"])
def test_labels_known_after_the_history_are_copied(
    tmp_path: Path, store_url: str, open_store: OpenStore, hop: str
) -> None:
    """Also those of purchases from before its end, less the lateness."""
    old = busy_spec(tmp_path, customer="0", terminal="0")
    new = busy_spec(tmp_path, customer="1h", terminal=hop)
    history = busy_history(new, count=4_000, days=40)
    at_us = history.event_time_us
    end_us, served_us = int(at_us[2_499]), int(at_us[2_999])
    store = open_store(store_url)
    serve_until(old, history, store, until_us=served_us)
    materialize(new, known_at(history, end_us), store)
    done = copy_state(old, new, store, since_us=end_us - new.lateness_us)
    assert done.events > done.applied > 0
    served = serve_after(new, history, store, after_us=served_us)
    assert served == Served(rows=1_000, different=0, marked=0)


def test_corrected_frauds_are_copied_into_tiles(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """The labels of one id take several calls; each says legitimate, then fraud."""
    exact = busy_spec(tmp_path, customer="0", terminal="0")
    tiled = busy_spec(tmp_path, customer="0", terminal="1h")
    history = busy_history(tiled, count=2_000, days=16)
    frauds = np.flatnonzero(history.label == 1)
    until_us = int(history.event_time_us[1_499])
    store = open_store(store_url)
    serve_until(exact, history, store, until_us=until_us)
    known = frauds[history.label_time_us[frauds] <= until_us]
    labels = labels_of(exact, history, known)
    EventWriter(exact, store).labels(
        structs.replace(labels, revision=np.ones_like(labels.revision))
    )
    assert copy_state(exact, tiled, store).too_late == 0
    served = serve_after(tiled, history, store, after_us=until_us)
    assert served == Served(rows=500, different=0, marked=0)


def test_windows_beyond_the_old_values_are_named(tmp_path: Path) -> None:
    """The rounding of a window counts; a lateness of its size makes up for it."""
    exact = busy_spec(tmp_path, customer="0", terminal="0")
    assert reach_warnings(exact, busy_spec(tmp_path, customer="0", terminal="1d")) == []
    path = tmp_path / "features.yaml"
    exact = rewritten(path, tmp_path, "lateness: 1d", "lateness: 1m")
    exact = rewritten(path, tmp_path, "terminal_id, hop: 1d", "terminal_id, hop: 0")
    tiled = rewritten(path, tmp_path, "terminal_id, hop: 0", "terminal_id, hop: 1d")
    assert reach_warnings(exact, tiled) == [
        "terminal: the old values reach 12961m back, its windows up to 10d: name a "
        "history, or windows lack purchases until then"
    ]


def test_values_with_tiles_cannot_be_copied(
    tmp_path: Path, store_url: str, redis_client: redis.Redis, open_store: OpenStore
) -> None:
    """A tile does not hold its events; the error names a remedy, nothing is written."""
    tiled = busy_spec(tmp_path, customer="0", terminal="1h")
    exact = busy_spec(tmp_path, customer="0", terminal="0")
    store = open_store(store_url)
    history = busy_history(tiled, count=300, days=3)
    EventWriter(tiled, store).purchases(purchases_of(tiled, history, np.arange(300)))
    before = redis_client.dbsize()
    with pytest.raises(InputError) as caught:
        copy_state(tiled, exact, store)
    assert str(caught.value) == (
        "copy: the old values of terminal have tiles, not all events: "
        "use a history or a feed"
    )
    assert redis_client.dbsize() == before


def test_damaged_value_is_left_out(
    spec: FeatureSpec,
    next_spec: FeatureSpec,
    history: History,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """It is counted and not copied; the others are."""
    store = open_store(store_url)
    EventWriter(spec, store).purchases(purchases_of(spec, history, np.arange(500)))
    key = sorted(redis_client.keys(b"*:customer:*"))[0]
    redis_client.setrange(key, 40, b"\x01")
    wanted = values(redis_client, spec)
    done = copy_state(spec, next_spec, store)
    assert done.damaged == 1
    found = values(redis_client, next_spec)
    assert len(found) == len(wanted) - 1
    assert found.items() <= wanted.items()


def test_old_events_can_be_left_out(
    spec: FeatureSpec,
    next_spec: FeatureSpec,
    history: History,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """Events before a given time are not copied."""
    store = open_store(store_url)
    EventWriter(spec, store).purchases(purchases_of(spec, history, np.arange(500)))
    since_us = int(history.event_time_us[400])
    copy_state(spec, next_spec, store, since_us=since_us)
    found = values(redis_client, next_spec)
    redis_client.flushall()
    late = np.flatnonzero(history.event_time_us[:500] >= since_us)
    EventWriter(next_spec, store).purchases(purchases_of(spec, history, late))
    assert found == values(redis_client, next_spec)


def test_a_number_with_other_decimals_is_not_copied(
    tmp_path: Path, store_url: str, redis_client: redis.Redis, open_store: OpenStore
) -> None:
    """Its stored integers mean something else; nothing is written."""
    old = busy_spec(tmp_path, customer="0", terminal="0")
    new = rewritten(tmp_path / "features.yaml", tmp_path, "decimals: 2", "decimals: 3")
    store = open_store(store_url)
    history = busy_history(old, count=50, days=3)
    EventWriter(old, store).purchases(purchases_of(old, history, np.arange(50)))
    before = redis_client.dbsize()
    with pytest.raises(InputError, match="items has other decimals: use a feed"):
        copy_state(old, new, store)
    assert redis_client.dbsize() == before


def test_values_without_the_needed_data_are_refused(
    spec: FeatureSpec,
    spec_path: Path,
    tmp_path: Path,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """Another key, a missing column, the same state: the error names it."""
    store = open_store(store_url)
    other = rewritten(spec_path, tmp_path, "terminal_id", "device_id")
    with pytest.raises(InputError, match="no old entity has the key 'device_id'"):
        copy_state(spec, other, store)
    wide = rewritten(
        spec_path,
        tmp_path,
        "aggregate: count, window: 30d, default: 60",
        "aggregate: distinct, of: terminal_id, window: 30d, default: 60",
    )
    with pytest.raises(InputError, match="customer needs terminal_id"):
        copy_state(spec, wide, store)
    with pytest.raises(InputError, match="the same state"):
        copy_state(spec, spec, store)
    assert copy_state(wide, spec, store) == CopyCounts()
