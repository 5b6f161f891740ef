"""A store in memory against apply.lua in a Redis and a plain model, byte by byte."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis

from tests.support.store.hot_entities import MOMENTS, busy_history, busy_spec
from tests.support.store.online_rows import OpenStore
from tests.support.store.value_model import (
    APPLIED,
    DUPLICATE,
    HORIZON_US,
    TOO_LATE,
    Event,
    Lua,
    Model,
)
from tests.support.store.wide_spec import WIDE
from tollgate import compiled
from tollgate.errors import InputError, SetupError, StoreError
from tollgate.features.fields import MISSING
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import TILED_VERSION
from tollgate.replay import purchases_of
from tollgate.server.local_store import LocalStore
from tollgate.store.memory_store import MemoryStore, apply_events
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import Mode, RedisStore
from tollgate.store.store_events import (
    Labels,
    Packer,
    Purchases,
    label_entries,
    purchase_entries,
)

START_US = 1_600_000_000_000_000
IDS = [b"%d" % number for number in range(40)]
IDS += [b"same-first-bytes" + one for one in IDS[:10]] + ["é".encode() * 64]


@pytest.fixture(autouse=True, params=["compiled", "python"])
def both_appends(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Append in the compiled loop, if it was built, and then without it."""
    if request.param == "python":
        monkeypatch.setattr(compiled, "appends", None)


@pytest.fixture
def stores(store_url: str, open_store: OpenStore) -> tuple[RedisStore, MemoryStore]:
    """An empty Redis, and an empty store in memory."""
    return open_store(store_url), MemoryStore()


def batches(seed: int) -> Iterator[list[Event]]:
    """Yield purchases and labels around a newest time that advances, some far late."""
    source, newest_us, number = random.Random(seed), START_US, 0
    for _ in range(400):
        batch = []
        for _ in range(source.choice([1, 1, 1, 2, 5, 20])):
            number += 1
            behind = source.choice([0, 0, 3, HORIZON_US // 2, 2 * HORIZON_US])
            time_us = newest_us - source.randint(0, behind) + source.choice([0, 1])
            one = source.choice([*IDS, b"new%d" % number, b"new%d" % number])
            if source.random() < 0.7:
                batch.append(Event(one, time_us, cents=source.choice([0, 10**9])))
            else:
                label = source.randint(0, 1)
                revision = source.choice([0, 0, 1, 2**24 - 1])
                batch.append(Event(one, time_us, 0, label, time_us + 7, revision))
        yield batch
        newest_us += source.choice([0, 1, 50_000, 300_000, 2 * HORIZON_US])


@pytest.mark.parametrize("seed", range(4))
def test_values_and_statuses_are_those_of_redis_and_of_the_model(
    spec: FeatureSpec, stores: tuple[RedisStore, MemoryStore], seed: int
) -> None:
    """Late, tied and repeated events, labels first and last, trims, full values."""
    redis, memory = (Lua(spec, store) for store in stores)
    model, seen = Model(), set()
    for batch in batches(seed):
        dry = redis.apply(batch, Mode.DRY)
        assert memory.apply(batch, Mode.DRY) == dry
        wanted = redis.apply(batch)
        assert memory.apply(batch) == wanted == dry
        statuses = model.apply(batch)
        assert wanted == (model.packed(), statuses)
        seen |= set(wanted[1])
    assert seen == {APPLIED, DUPLICATE, TOO_LATE}
    assert model.overflow > 0


@pytest.mark.parametrize("seed", range(2))
def test_columns_of_several_entities_are_those_of_redis(
    tmp_path: Path, stores: tuple[RedisStore, MemoryStore], seed: int
) -> None:
    """Values of two widths in one call; labels of purchases that come later, too."""
    path = tmp_path / "features.yaml"
    path.write_text(WIDE)
    wide = load_spec(path)
    wide = msgspec.structs.replace(
        wide,
        entities=tuple(
            msgspec.structs.replace(one, cap=9, horizon_us=HORIZON_US)
            for one in wide.entities
        ),
    )
    packer, source = Packer(wide), np.random.default_rng(seed)
    for number in range(60):
        count = int(source.integers(1, 12))
        ids = [b"%d" % one for one in source.integers(0, 400, count)]
        owners = [
            [b"c%d" % one for one in source.integers(0, 3, count)],
            [b"m%d" % one for one in source.integers(0, 2, count)],
        ]
        time_us = START_US + number * 90_000 + source.integers(0, 300_000, count)
        items = source.integers(0, 9, count)
        items[items == 0] = MISSING
        bought = Purchases(ids, owners, time_us, items * 0 + 5, {"items": items})
        columns = packer.columns(bought)
        call = packer.pack(purchase_entries(bought), owners, columns=columns)
        label = source.integers(0, 2, count).astype(np.int8)
        labels = Labels(ids, owners, time_us, label, time_us + 1, items * 0)
        late = packer.pack(label_entries(labels), owners)
        calls = [(call, Mode.WRITE), (late, Mode.WRITE_ONLY), (call, Mode.DRY)]
        order = calls if number % 2 else calls[::-1]
        assert stores[1].apply(order) == stores[0].apply(order)


def test_a_value_of_another_layout_is_left_alone() -> None:
    """Its events are foreign, as in Redis: status 4."""
    event = bytes(48)
    for value in (b"short", b"\x02" + bytes(31), b"\x01\x38" + bytes(30)):
        found = apply_events(value, event, horizon_us=HORIZON_US, cap=3, entry_bytes=48)
        assert found == (value, False, b"\4")


def test_keys_expire_and_are_stored_once(spec: FeatureSpec) -> None:
    """A key set with NX stays; one with a time to live goes when that is over."""
    now_ms = [1_000]
    store = MemoryStore(clock_ms=lambda: now_ms[0])

    def run(*command: object) -> object:
        return store.flush([], extra_commands=[command])[1][0]

    assert run(b"SET", b"k", b"1", b"NX", b"PX", 50) == b"OK"
    assert run(b"SET", b"k", b"2", b"NX", b"PX", 50) is None
    assert run(b"SADD", b"s", b"a", b"b") == 2
    assert run(b"SMISMEMBER", b"s", b"a", b"c") == [1, 0]
    value, _ = Lua(spec, store).apply([Event(b"1", START_US)])
    key = Lua(spec, store).packer.key(0, b"card")
    assert run(b"MGET", b"k", b"none", key) == [b"1", None, value]
    now_ms[0] += 50
    assert run(b"GET", b"k") is None
    now_ms[0] += HORIZON_US // 1_000 + 86_400_000 - 51
    assert run(b"GET", key) == value
    now_ms[0] += 1
    assert run(b"GET", key) is None
    assert isinstance(run(b"DEL", b"s"), StoreError)


def test_packed_content_is_the_same_store(spec: FeatureSpec) -> None:
    """Values, members and times to live; what has expired is left out."""
    store = MemoryStore(clock_ms=lambda: 5)
    lua = Lua(spec, store)
    value, _ = lua.apply([Event(b"1", START_US, cents=7)])
    commands = [(b"SADD", b"s", b"a"), (b"SET", b"k", b"1", b"PX", 10)]
    store.flush([], extra_commands=commands)
    later = MemoryStore(store.pack(), clock_ms=lambda: 15)
    key = lua.packer.key(0, b"card")
    read = [(b"MGET", key, b"k"), (b"SMISMEMBER", b"s", b"a")]
    assert later.flush([], extra_commands=read)[1] == [[value, None], [1]]
    assert len(later.pack()) < len(store.pack())


def test_damaged_content_is_refused(spec: FeatureSpec) -> None:
    """Each byte is covered, and the error names the file."""
    store = MemoryStore()
    Lua(spec, store).apply([Event(b"1", START_US)])
    packed = store.pack()
    for at in range(0, len(packed), 7):
        damaged = bytearray(packed)
        damaged[at] ^= 1
        with pytest.raises(InputError, match=r"windows\.store: is "):
            MemoryStore(bytes(damaged), source="windows.store")
    for cut in (b"", packed[:20], packed[:-1]):
        with pytest.raises(InputError, match=r"windows\.store: is "):
            MemoryStore(cut, source="windows.store")


DISTINCT = """\
  - {name: about, entity: customer, aggregate: approx_distinct, of: terminal_id,
     window: 7d}
"""


@pytest.mark.parametrize(
    ("hops", "more", "days"),
    [(("1h", "0"), MOMENTS, 20), (("15m", "1d"), "", 60), (("1d", "6h"), DISTINCT, 20)],
)
def test_tiles_are_those_of_redis(
    tmp_path: Path,
    stores: tuple[RedisStore, MemoryStore],
    redis_client: redis.Redis,
    *,
    hops: tuple[str, str],
    more: str,
    days: int,
) -> None:
    """Values, statuses and values in the reply, of late and of repeated purchases."""
    spec = busy_spec(tmp_path, customer=hops[0], terminal=hops[1], more=more)
    history = busy_history(spec, count=2_000, days=days, step_us=1_000_000)
    order = np.argsort(history.event_time_us, kind="stable")
    draw = np.random.default_rng(3)
    late = order[np.argsort(np.arange(2_000) + draw.normal(0, 9, 2_000))]
    seen = set()
    for mode in (Mode.DRY, Mode.WRITE, Mode.WRITE):
        for at in range(0, 2_000, 25):
            part = purchases_of(spec, history, late[at : at + 25])
            call = OnlineFeatures(spec, stores[0]).pack(part).call
            answers = [store.apply([(call, mode)]) for store in stores]
            assert answers[0] == answers[1]
            seen |= set(answers[0][0][1])
    assert APPLIED in seen
    assert seen & {DUPLICATE, TOO_LATE}
    folded = 0
    for key in redis_client.scan_iter():
        ((wanted,), (found,)) = (
            store.flush([], extra_commands=[(b"MGET", key)])[1][0] for store in stores
        )
        assert found == wanted
        if found[0] == TILED_VERSION:
            folded += int.from_bytes(found[8:12], "little")
    assert folded > 500


def test_without_a_lua_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine with a hop says what to install before it decides anything."""
    monkeypatch.setitem(sys.modules, "lupa.lua54", None)
    with pytest.raises(SetupError, match=r"lupa.*\[edge\]"):
        LocalStore("memory", busy_spec(tmp_path), deadline_s=1.0)
    LocalStore(
        "memory", busy_spec(tmp_path, customer="0", terminal="0"), deadline_s=1.0
    )
