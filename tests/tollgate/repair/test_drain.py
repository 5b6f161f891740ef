"""A drain applies what the spool holds, all of it, once, whenever it is killed."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis

from tests.support.store.hot_entities import (
    Served,
    busy_history,
    busy_spec,
    serve_after,
    serve_until,
)
from tollgate.errors import StoreError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.repair.drain import (
    DEAD_LETTERS,
    DrainResult,
    SpoolDrain,
    drain_text,
    draining,
)
from tollgate.repair.event_spool import PurchaseSpool
from tollgate.repair.spool_segments import (
    SegmentFile,
    SegmentHeader,
    frame,
    locked,
    segments,
)
from tollgate.replay import labels_of, purchases_of
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases
from tollgate.stream.events import EventCodec
from tollgate.worker import tallies

START_US = 1_700_000_000_000_000
OpenStore = Callable[..., RedisStore]


def made(first: int, rows: int, *, start_us: int = START_US) -> Purchases:
    """Make purchases with numbered ids, of few customers and terminals."""
    number = np.arange(first, first + rows)
    return Purchases(
        transaction_id=[b"t%d" % one for one in number],
        entity_id=[
            [b"c%d" % (one % 7) for one in number],
            [b"t%d" % (one % 5) for one in number],
        ],
        event_time_us=start_us + number * 1_000_000,
        cents=number * 10,
    )


def spooled(folder: Path, spec_path: Path, *batches: Purchases) -> None:
    """Leave purchases in a spool, a segment each."""
    for batch in batches:
        spool = PurchaseSpool(folder, spec_path)
        assert spool.append(batch)
        spool.close()


def values(client: redis.Redis) -> dict[bytes, bytes]:
    """Read every entity's value."""
    keys = sorted(client.keys(b"tollgate:*"))
    return dict(zip(keys, client.mget(keys), strict=True)) if keys else {}


def undisturbed(
    spec: FeatureSpec, client: redis.Redis, store: RedisStore, rows: int
) -> dict[bytes, bytes]:
    """Apply all purchases at once; the values, and an empty store."""
    EventWriter(spec, store).purchases(made(0, rows))
    wanted = values(client)
    client.flushall()
    return wanted


def test_a_drain_makes_the_windows_whole(
    tmp_path: Path,
    spec: FeatureSpec,
    spec_path: Path,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """What some applied, some may have and nobody did ends bit-identical."""
    store = open_store(store_url)
    wanted = undisturbed(spec, redis_client, store, 300)
    writer = EventWriter(spec, store)
    writer.purchases(made(0, 100))
    writer.purchases(made(250, 50))
    spooled(tmp_path, spec_path, made(80, 100), made(180, 100))
    assert values(redis_client) != wanted
    done = SpoolDrain(tmp_path, store).run()
    assert values(redis_client) == wanted
    assert done == DrainResult(segments=2, applied=150, duplicates=50)
    assert segments(tmp_path) == []
    assert SpoolDrain(tmp_path, store).run() == DrainResult()


def test_drained_tiles_serve_the_offline_vectors(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """An outage of hot entities, with purchases that the store may have had: no row."""
    spec = busy_spec(tmp_path)
    history = busy_history(spec, count=6_000, days=20)
    at_us = history.event_time_us
    store = open_store(store_url)
    serve_until(spec, history, store, until_us=int(at_us[4_019]))
    folder = tmp_path / "spool"
    batches = [np.arange(first, first + 200) for first in range(4_000, 5_000, 200)]
    spooled(
        folder,
        tmp_path / "features.yaml",
        *(purchases_of(spec, history, rows) for rows in batches),
    )
    done = SpoolDrain(folder, store).run()
    assert done is not None
    assert (done.applied, done.segments) == (980, 5)
    assert done.duplicates + done.dead == 20  # those in tiles are not recognised
    known_us = history.label_time_us
    found = (
        (history.label == 1) & (known_us > at_us[4_019]) & (known_us <= at_us[4_999])
    )
    EventWriter(spec, store).labels(labels_of(spec, history, np.flatnonzero(found)))
    served = serve_after(spec, history, store, after_us=int(at_us[4_999]))
    assert served == Served(rows=1_000, different=0, marked=0)


def test_spooled_purchases_behind_tiles_are_dead_letters(
    tmp_path: Path, store_url: str, redis_client: redis.Redis, open_store: OpenStore
) -> None:
    """More purchases of their ids than a value holds came before them: none counts."""
    spec = busy_spec(tmp_path)
    history = busy_history(spec, count=2_000, days=4)
    store = open_store(store_url)
    EventWriter(spec, store).purchases(
        purchases_of(spec, history, np.arange(100, 2_000))
    )
    before = values(redis_client)
    folder = tmp_path / "spool"
    busiest = [
        row
        for row in range(100)
        if history.entity_id["customer_id"][row] == b"c1"
        and history.entity_id["terminal_id"][row] == b"t1"
    ]
    late = purchases_of(spec, history, np.array(busiest))
    spooled(folder, tmp_path / "features.yaml", late)
    done = SpoolDrain(folder, store).run()
    assert done == DrainResult(segments=1, dead=len(busiest))
    reason = b"or than events of its id in tiles, which may count it already"
    lines = (folder / DEAD_LETTERS).read_bytes().splitlines()
    assert all(reason in line for line in lines)
    assert len(lines) == len(busiest) > 10
    assert values(redis_client) == before


def test_a_store_that_is_away_costs_nothing(
    tmp_path: Path,
    spec: FeatureSpec,
    spec_path: Path,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """Nothing leaves the spool before it has landed."""
    wanted = undisturbed(spec, redis_client, open_store(store_url), 300)
    spooled(tmp_path, spec_path, made(0, 200), made(200, 100))
    gone = open_store("unix:///nowhere.sock")
    with pytest.raises(StoreError):
        SpoolDrain(tmp_path, gone).run()
    assert len(segments(tmp_path)) == 2
    SpoolDrain(tmp_path, open_store(store_url)).run()
    assert values(redis_client) == wanted


def test_events_that_cannot_be_applied_are_dead_letters_with_reasons(
    tmp_path: Path,
    spec: FeatureSpec,
    spec_path: Path,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """Too late, of a damaged value, no event: each a dead letter, the rest applied."""
    store = open_store(store_url)
    EventWriter(spec, store).purchases(made(0, 7))
    damaged = f"tollgate:fraud:{spec.state_hash:016x}:customer:c1".encode()
    redis_client.set(damaged, b"something else")
    # One more of customer 6, forty days before; then one of customer 1, one of 2.
    late = made(6, 1, start_us=START_US - 40 * 86_400 * 10**6)
    spooled(tmp_path, spec_path, late, made(8, 2))
    broken = SegmentFile(
        tmp_path / "9999999999999999999-1.spool",
        SegmentHeader("fraud", f"{spec.state_hash:016x}", spec_path.read_text(), 0),
    )
    broken.write([frame(0, b"{}")])
    broken.close()
    late_id = late.transaction_id[0]
    assert late_id == b"t6"  # it is known already, to its terminal and customer
    done = SpoolDrain(tmp_path, store).run()
    letters = [
        msgspec.json.decode(line)
        for line in (tmp_path / DEAD_LETTERS).read_bytes().splitlines()
    ]
    assert done == DrainResult(segments=3, applied=1, duplicates=1, dead=2)
    assert [("damaged" in one["reason"]) for one in letters] == [True, False]
    assert msgspec.json.decode(letters[0]["event"])["transaction_id"] == "t8"
    assert letters[1]["event"] == "{}"
    assert (tmp_path / DEAD_LETTERS).stat().st_mode & 0o777 == 0o600
    assert redis_client.get(damaged) == b"something else"


def test_an_event_too_old_for_its_windows_is_a_dead_letter(
    tmp_path: Path,
    spec: FeatureSpec,
    spec_path: Path,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """It would count in no window; it is kept with the rule it broke."""
    store = open_store(store_url)
    EventWriter(spec, store).purchases(made(0, 7))
    spooled(tmp_path, spec_path, made(70, 1, start_us=START_US - 40 * 86_400 * 10**6))
    done = SpoolDrain(tmp_path, store).run()
    assert done is not None
    assert (done.dead, done.applied) == (1, 0)
    assert b"is older than" in (tmp_path / DEAD_LETTERS).read_bytes()


def test_segments_of_others_are_left(
    tmp_path: Path,
    spec_path: Path,
    spec: FeatureSpec,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """A living writer's, a damaged one, one whose features read otherwise here."""
    state, text = f"{spec.state_hash:016x}", spec_path.read_text()
    alive = SegmentFile(tmp_path / "1.spool", SegmentHeader("fraud", state, text, 0))
    other = SegmentFile(tmp_path / "2.spool", SegmentHeader("fraud", "0", text, 0))
    other.close()
    (tmp_path / "3.spool").write_bytes(b"no segment")
    done = SpoolDrain(tmp_path, open_store(store_url)).run()
    assert done == DrainResult(unreadable=2)
    assert len(segments(tmp_path)) == 3
    alive.close()
    done = SpoolDrain(tmp_path, open_store(store_url)).run()
    assert done == DrainResult(unreadable=2, segments=1)


def test_a_second_drain_leaves_the_first_alone(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """Two at once: one works, the other says so."""
    drain = SpoolDrain(tmp_path, open_store(store_url))
    drain.run()
    with locked(tmp_path / "drain.lock") as fd:
        assert fd is not None
        assert drain.run() is None


def test_a_head_without_a_name_is_cleared_away(
    tmp_path: Path, store_url: str, open_store: OpenStore
) -> None:
    """A writer killed at its first step leaves nothing for ever."""
    (tmp_path / ".1-2.spool.new").write_bytes(b"TGSP")
    SpoolDrain(tmp_path, open_store(store_url)).run()
    assert [path.name for path in tmp_path.iterdir()] == ["drain.lock"]


DRAIN = """
import sys
from pathlib import Path
from tollgate.repair.drain import SpoolDrain
from tollgate.store.redis.redis_store import RedisStore
drain = SpoolDrain(Path(sys.argv[1]), RedisStore(sys.argv[2], deadline_s=5))
print("ready", flush=True)
drain.run()
"""


def test_killed_drains_lose_and_repeat_nothing(
    tmp_path: Path,
    spec: FeatureSpec,
    spec_path: Path,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """SIGKILL at random moments, while a step still appends: bit-identical."""
    rows, step = 6_000, 300
    wanted = undisturbed(spec, redis_client, open_store(store_url), rows)

    def write() -> None:
        for first in range(0, rows, step):
            spooled(tmp_path, spec_path, made(first, step))
            time.sleep(0.02)

    writing = threading.Thread(target=write)
    writing.start()
    chance = random.Random(0)
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", DRAIN, str(tmp_path), store_url],
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.08))
            child.kill()
    writing.join()
    SpoolDrain(tmp_path, open_store(store_url)).run()
    assert values(redis_client) == wanted
    assert segments(tmp_path) == []


def test_the_background_drain_waits_for_the_store(
    tmp_path: Path,
    spec: FeatureSpec,
    spec_path: Path,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """It goes on while the store is away, and drains when it is there."""
    wanted = undisturbed(spec, redis_client, open_store(store_url), 50)
    folder = tmp_path / "spool"
    with EmbeddedRedis(tmp_path / "redis") as server:
        server.stop()
        with draining(folder, server.url):
            spooled(folder, spec_path, made(0, 50))
            time.sleep(1.5)
            assert len(segments(folder)) == 1
            with server:
                until_s = time.monotonic() + 20
                while segments(folder):
                    assert time.monotonic() < until_s
                    time.sleep(0.05)
                with redis.Redis.from_url(server.url) as client:
                    assert values(client) == wanted


def test_what_a_drain_did_fits_a_line() -> None:
    """Only what happened is told."""
    assert drain_text(DrainResult(segments=1, applied=1_200)) == (
        "spool: applied 1,200, had already 0"
    )
    assert "dead letters 3" in drain_text(DrainResult(dead=3))


def test_a_segment_that_fails_unforeseen_holds_up_no_other(
    tmp_path: Path,
    spec: FeatureSpec,
    spec_path: Path,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stays, the error is counted, and it is applied when the error is gone."""
    store = open_store(store_url)
    wanted = undisturbed(spec, redis_client, store, 300)
    whole = EventCodec.decode
    broken = threading.Event()
    broken.set()

    def decode(self: EventCodec, events: list[bytes], *, now_us: int) -> object:
        if broken.is_set() and b'"t100"' in events[0]:
            raise ValueError("unforeseen")
        return whole(self, events, now_us=now_us)

    monkeypatch.setattr(EventCodec, "decode", decode)
    folder = tmp_path / "unforeseen"
    spooled(folder, spec_path, made(0, 100), made(100, 100), made(200, 100))
    with draining(folder, store_url):
        until_s = time.monotonic() + 60
        loop = "spool-drain-unforeseen"
        while len(segments(folder)) > 1 or tallies()[loop].failures < 2:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        assert values(redis_client) != wanted
        broken.clear()
        while segments(folder) or tallies()[loop].failures:
            assert time.monotonic() < until_s
            time.sleep(0.05)
    assert values(redis_client) == wanted
