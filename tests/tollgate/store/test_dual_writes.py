"""Every writer of a product writes all states that the store lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis

from tests.support.store.hot_entities import busy_history, busy_spec
from tollgate.backfill.copying import start_dual_writes
from tollgate.errors import InputError, StoreError
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History
from tollgate.repair.drain import SpoolDrain
from tollgate.repair.event_spool import PurchaseSpool
from tollgate.replay import labels_of, purchases_of
from tollgate.store import dual_writes
from tollgate.store.dual_writes import (
    TargetState,
    TargetStates,
    WrittenStates,
    load_spec_text,
    states_key,
    written_state,
)
from tollgate.store.event_writer import EventWriter
from tollgate.store.fallback.fallback_chain import DualWrites, FallbackChain
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Packer, Purchases
from tollgate.store.store_opening import StoreSettings, open_fallback_chain

OpenStore = Callable[..., RedisStore]
SINCE = "2026-11-23T00:00:00Z"


class States:
    """Features of a product whose customers' values change: hop 0 and hop 1h."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / name / "features.yaml" for name in ("old", "new")]
        for path in self.paths:
            path.parent.mkdir()
        self.old = busy_spec(self.paths[0].parent, customer="0", terminal="0")
        self.new = busy_spec(self.paths[1].parent, customer="1h", terminal="0")

    def value(self) -> bytes:
        """Encode the list of both states."""
        states = [written_state(path, since=SINCE) for path in self.paths]
        return msgspec.json.encode(WrittenStates(states))


@pytest.fixture
def states(tmp_path: Path) -> States:
    """Two states of one product."""
    return States(tmp_path)


@pytest.fixture
def history(states: States) -> History:
    """Purchases of a few ids, with labels."""
    return busy_history(states.old, count=300, days=9)


def values(client: redis.Redis, spec: FeatureSpec) -> dict[bytes, bytes]:
    """Read every value of one state."""
    keys = sorted(client.keys(f"tollgate:busy:{spec.state_hash:016x}:*"))
    found = client.mget(keys) if keys else []
    return dict(zip(keys, found, strict=True))


def alone(
    spec: FeatureSpec, batches: list[Purchases], *, client: redis.Redis, url: str
) -> dict[bytes, bytes]:
    """Write batches to one state of an empty store; return its values, then clear."""
    client.flushall()
    writer = EventWriter(spec, RedisStore(url, deadline_s=10), history=False)
    for batch in batches:
        writer.purchases(batch)
    found = values(client, spec)
    client.flushall()
    return found


def part(spec: FeatureSpec, history: History, start: int, stop: int) -> Purchases:
    """Select purchases."""
    return purchases_of(spec, history, np.arange(start, stop))


class SpooledRows:
    """A spool in memory."""

    def __init__(self) -> None:
        self.purchases: list[Purchases] = []

    def append(self, purchases: Purchases) -> bool:
        """Take them."""
        self.purchases.append(purchases)
        return True


def open_chain(spec: FeatureSpec, url: str, spool: SpooledRows) -> FallbackChain:
    """Open a step's path to the store, with a deadline that a busy machine holds."""
    return open_fallback_chain(
        spec, url, settings=StoreSettings(deadline_s=10.0), spool=spool
    )


def test_step_writes_scored_purchases_to_both_states(
    states: States, history: History, redis_client: redis.Redis, store_url: str
) -> None:
    """The answers are those of its own state; dry runs write nothing."""
    first, second = (part(states.old, history, *rows) for rows in ((0, 20), (20, 40)))
    wanted = {
        spec.state_hash: alone(spec, [first], client=redis_client, url=store_url)
        for spec in (states.old, states.new)
    }
    redis_client.set(states_key("busy"), states.value())
    spool = SpooledRows()
    chain = open_chain(states.old, store_url, spool)
    scored, _ = chain.score([first, second], write=[True, False])
    chain.close()
    assert scored.features.shape[1] == len(states.old.features)
    assert not scored.degraded[-1]
    for spec in (states.old, states.new):
        assert values(redis_client, spec) == wanted[spec.state_hash]
    assert spool.purchases == []


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def flushed(dual: DualWrites, store: RedisStore, batch: Purchases) -> None:
    """Write a batch as a step does: its own state's call is left out here."""
    _, replies = store.flush([], extra_commands=dual.commands([batch]))
    dual.settle([batch], replies)


def test_a_batch_that_reads_the_list_is_written_to_its_new_states(
    states: States, history: History, redis_client: redis.Redis, store_url: str
) -> None:
    """The list changes after a second: until it is read again, nothing is written."""
    clock, store = Clock(), RedisStore(store_url, deadline_s=10)
    dual = DualWrites(states.old, store, spool=lambda _: None, clock=clock)
    flushed(dual, store, part(states.old, history, 0, 10))
    redis_client.set(states_key("busy"), states.value())
    clock.now_s += 0.9
    flushed(dual, store, part(states.old, history, 10, 20))
    assert values(redis_client, states.new) == {}
    clock.now_s += 0.2
    late = part(states.old, history, 20, 30)
    flushed(dual, store, late)
    wanted = values(redis_client, states.new)
    assert wanted
    assert wanted == alone(states.new, [late], client=redis_client, url=store_url)


def test_a_batch_that_took_long_reads_the_list_before_it_ends(
    states: States, history: History, redis_client: redis.Redis, store_url: str
) -> None:
    """A process that was stopped in a call finds the states that were listed since."""
    clock, store = Clock(), RedisStore(store_url, deadline_s=10)
    dual = DualWrites(states.old, store, spool=lambda _: None, clock=clock)
    flushed(dual, store, part(states.old, history, 0, 10))
    batch = part(states.old, history, 10, 20)
    clock.now_s += 0.9
    assert dual.commands([batch]) == []
    clock.now_s += dual_writes.FRESH_S + 1
    redis_client.set(states_key("busy"), states.value())
    dual.settle([batch], [])
    assert values(redis_client, states.new) == alone(
        states.new, [batch], client=redis_client, url=store_url
    )


def test_purchases_that_another_state_refuses_go_to_the_spool(
    states: States, history: History, redis_client: redis.Redis, store_url: str
) -> None:
    """Whatever the store replies, the caller's answer is not affected."""
    redis_client.set(states_key("busy"), states.value())
    spooled: list[Purchases] = []
    store = RedisStore(store_url, deadline_s=10)
    dual = DualWrites(states.old, store, spool=spooled.append, clock=Clock())
    batch = part(states.old, history, 0, 10)
    flushed(dual, store, batch)
    assert spooled == []
    (command,) = dual.commands([batch])
    assert command[0] == b"EVALSHA"
    error = redis.ResponseError("OOM command not allowed")
    dual.settle([batch], [error])
    assert spooled == [batch]
    redis_client.set(states_key("busy"), b"{")
    assert len(dual.commands([batch])) == 2  # it reads the list again at once
    dual.settle([batch], [[b"\1" * 20], b"{"])
    assert spooled == [batch, batch]


def test_an_unknown_answer_leaves_rows_to_the_spool_which_writes_both_states(
    states: States,
    history: History,
    redis_client: redis.Redis,
    store_url: str,
    tmp_path: Path,
) -> None:
    """Rows that were spooled before the list existed, too."""
    batch = part(states.old, history, 0, 40)
    wanted = {
        spec.state_hash: alone(spec, [batch], client=redis_client, url=store_url)
        for spec in (states.old, states.new)
    }
    folder = tmp_path / "spool"
    spool = PurchaseSpool(folder, states.paths[0])
    assert spool.append(batch)
    spool.close()
    redis_client.set(states_key("busy"), states.value())
    done = SpoolDrain(folder, RedisStore(store_url, deadline_s=10)).run()
    assert done is not None
    assert (done.applied, done.dead) == (40, 0)
    for spec in (states.old, states.new):
        assert values(redis_client, spec) == wanted[spec.state_hash]


@pytest.mark.parametrize("serves", ["old", "new"])
def test_a_stream_writes_purchases_and_labels_to_both_states(
    states: States,
    history: History,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
    serves: str,
) -> None:
    """Whichever of the two serves, the list being read with each batch."""
    order = np.argsort(history.event_time_us, kind="stable")
    rows = history.take(order)
    frauds = np.flatnonzero(rows.label == 1)
    wanted = {}
    for spec in (states.old, states.new):
        writer = EventWriter(spec, open_store(store_url))
        writer.purchases(purchases_of(spec, rows, np.arange(len(rows))))
        writer.labels(labels_of(spec, rows, frauds))
        wanted[spec.state_hash] = values(redis_client, spec)
        redis_client.flushall()
    own = getattr(states, serves)
    writer = EventWriter(own, open_store(store_url))
    redis_client.set(states_key("busy"), states.value())
    outcome = writer.purchases(purchases_of(own, rows, np.arange(len(rows))))
    assert outcome.applied.all()
    writer.labels(labels_of(own, rows, frauds))
    for spec in (states.old, states.new):
        assert values(redis_client, spec) == wanted[spec.state_hash]
    redis_client.delete(states_key("busy"))
    before = values(redis_client, states.new if serves == "old" else states.old)
    late = msgspec.structs.replace(
        purchases_of(own, rows, np.array([len(rows) - 1])), transaction_id=[b"last"]
    )
    assert writer.purchases(late).applied.all()
    after = values(redis_client, states.new if serves == "old" else states.old)
    assert after == before


def test_a_history_is_written_to_one_state(
    states: States, history: History, redis_client: redis.Redis, store_url: str
) -> None:
    """Its order matters to values with tiles, so each state gets its own load."""
    redis_client.set(states_key("busy"), states.value())
    store = RedisStore(store_url, deadline_s=10)
    writer = EventWriter(states.new, store, history=True)
    writer.purchases(part(states.new, history, 0, 30))
    assert values(redis_client, states.new)
    assert values(redis_client, states.old) == {}


def rewritten(spec_path: Path, folder: Path, *changes: tuple[str, str]) -> FeatureSpec:
    """Change a features.yaml and read it."""
    text = spec_path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder.mkdir()
    (folder / "features.yaml").write_text(text)
    return load_spec(folder / "features.yaml")


def test_ids_and_columns_follow_the_other_spec(
    states: States, history: History, tmp_path: Path
) -> None:
    """Entities in another order; a column of which only the other spec knows."""
    swapped = rewritten(
        states.paths[0],
        tmp_path / "swapped",
        ("  customer: {key: customer_id, hop: 0}\n", ""),
        ("delay: 2d}\n", "delay: 2d}\n  customer: {key: customer_id, hop: 0}\n"),
        (
            "aggregate: count, window: 1d}",
            "aggregate: distinct, window: 1d, of: items}",
        ),
    )
    assert swapped.entity_names == ("terminal", "customer")
    batch = part(states.old, history, 0, 30)
    call = TargetState(states.old, swapped).call(batch)
    own = purchases_of(swapped, history, np.arange(30))
    packer = Packer(swapped)
    wanted = packer.pack(
        dual_writes.purchase_entries(own), own.entity_id, columns=packer.columns(own)
    )
    assert (call.keys, call.events) == (wanted.keys, wanted.events)
    assert call.arguments == wanted.arguments


def test_a_number_with_other_decimals_counts_as_missing(
    states: States, history: History, tmp_path: Path
) -> None:
    """Its stored integers would be of another size."""
    other = rewritten(states.paths[0], tmp_path / "o", ("decimals: 2", "decimals: 3"))
    assert dual_writes.missing_columns(states.old, other) == ["items"]
    batch = part(states.old, history, 0, 30)
    without = msgspec.structs.replace(batch, fields={})
    target = TargetState(states.old, other)
    assert target.call(batch).events == target.call(without).events


def test_a_state_that_needs_other_ids_is_left_out(
    states: States, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line in the log names them; the other states are written."""
    other = tmp_path / "other"
    rewritten(states.paths[0], other, ("terminal_id", "device_id"))
    found = [written_state(other / "features.yaml", since=SINCE)]
    found += [written_state(path, since=SINCE) for path in states.paths]
    targets = TargetStates(states.old)
    targets.update(msgspec.json.encode(WrittenStates(found)))
    assert [one.spec.state_hash for one in targets.targets] == [states.new.state_hash]
    assert "needs device_id, which the events do not have" in caplog.text


def test_a_full_disk_delays_the_writes_of_a_state(
    states: States,
    history: History,
    redis_client: redis.Redis,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The features of a state go through a file: without space, rows are spooled."""
    redis_client.set(states_key("busy"), states.value())
    spooled: list[Purchases] = []
    store = RedisStore(store_url, deadline_s=10)
    dual = DualWrites(states.old, store, spool=spooled.append, clock=Clock())
    first, second = part(states.old, history, 0, 10), part(states.old, history, 10, 20)
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkdtemp", no_space)
        flushed(dual, store, first)
    assert spooled == [first]
    flushed(dual, store, second)
    assert spooled == [first]
    assert values(redis_client, states.new) == alone(
        states.new, [second], client=redis_client, url=store_url
    )


def no_space(*_: object, **__: object) -> str:
    """Fail as a full disk does."""
    raise OSError(28, "No space left on device")


def test_a_damaged_list_stops_a_stream_and_not_a_step(
    states: States,
    history: History,
    redis_client: redis.Redis,
    store_url: str,
    open_store: OpenStore,
) -> None:
    """The stream tries again, without a commit; the step's rows wait in its spool."""
    redis_client.set(states_key("busy"), b"\xff")
    batch = part(states.old, history, 0, 10)
    with pytest.raises(StoreError, match="the list of written states is damaged"):
        EventWriter(states.old, open_store(store_url)).purchases(batch)
    redis_client.flushall()
    redis_client.set(states_key("busy"), b"\xff")
    spool = SpooledRows()
    chain = open_chain(states.old, store_url, spool)
    (scored,) = chain.score([batch], write=[True])
    chain.close()
    assert (scored.applied == 1).all()
    assert spool.purchases == [batch]


def test_a_hook_in_the_list_is_never_run(hooked: Callable[..., Path]) -> None:
    """A writer of the store makes no other writer run code."""
    path = hooked()
    state = written_state(path, since=SINCE)
    assert state.hook
    code = state.hook + "\nopen('/tmp/never', 'w')\n"
    with pytest.raises(InputError):  # nor is such code even read
        load_spec_text(state.spec, hook=code, state=state.state)
    assert load_spec_text(state.spec, hook=state.hook, state=state.state).hook


def test_listing_states_waits_for_all_writers(
    states: States,
    redis_client: redis.Redis,
    open_store: OpenStore,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy that starts then misses nothing; the list ends by itself."""
    waits: list[float] = []
    monkeypatch.setattr("tollgate.backfill.copying.time.sleep", waits.append)
    own = [written_state(path, since=SINCE) for path in states.paths]
    start_dual_writes("busy", own, open_store(store_url), days=3)
    assert waits == [dual_writes.FRESH_S + 1]
    assert 3 * 86_400 - 60 < redis_client.ttl(states_key("busy")) <= 3 * 86_400
    value = redis_client.get(states_key("busy"))
    assert isinstance(value, bytes)
    found = msgspec.json.decode(value, type=WrittenStates).states
    assert [one.state for one in found] == [
        f"{spec.state_hash:016x}" for spec in (states.old, states.new)
    ]
