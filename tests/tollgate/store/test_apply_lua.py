"""The Lua function against a plain Python model of an entity value, byte by byte."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
import redis

from tests.support.store.value_model import (
    APPLIED,
    DUPLICATE,
    HORIZON_US,
    TOO_LATE,
    Event,
    Lua,
    Model,
)
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import unpack_values
from tollgate.store.redis.redis_store import Mode, RedisStore

OpenStore = Callable[..., RedisStore]

START_US = 1_600_000_000_000_000
IDS = [b"%d" % number for number in range(40)]
IDS += [b"same-first-bytes" + one for one in IDS[:10]] + ["é".encode() * 64]


@pytest.fixture
def lua(spec: FeatureSpec, store_url: str, open_store: OpenStore) -> Lua:
    """The function, over an empty store."""
    return Lua(spec, open_store(store_url))


def random_event(source: random.Random, *, newest_us: int) -> Event:
    """Draw a purchase or a label around the newest time, some far behind it."""
    behind = source.choice([0, 0, 3, HORIZON_US // 2, HORIZON_US, 2 * HORIZON_US])
    time_us = newest_us - source.randint(0, behind) + source.choice([0, 0, 1, 40_000])
    one = source.choice(IDS)
    if source.random() < 0.6:
        return Event(one, time_us, cents=source.choice([0, 1, 99_999, 10**9]))
    return Event(
        one,
        time_us,
        label=source.randint(0, 1),
        label_time_us=time_us + source.randint(-5, 10**13),
        revision=source.choice([0, 0, 1, 2, 2**24 - 1]),
    )


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_model_over_random_batches(
    lua: Lua, redis_client: redis.Redis, seed: int
) -> None:
    """
    Values, statuses and stored bytes, checksum included, after every batch.

    Late, duplicate and tied events, labels before and after their purchase and at
    another time than it, revisions, trims and full values all occur.
    """
    source, model, seen = random.Random(seed), Model(), set()
    newest_us = START_US
    key = lua.packer.key(0, b"card")
    for _ in range(400):
        batch = [
            random_event(source, newest_us=newest_us)
            for _ in range(source.choice([1, 1, 2, 5, 20]))
        ]
        wanted = model.apply(batch)
        value, statuses = lua.apply(batch)
        assert statuses == wanted
        assert value == model.packed()
        assert (redis_client.get(key) or b"") == value
        seen |= set(wanted)
        newest_us += source.choice([0, 0, 1, 50_000, 300_000])
    assert seen == {APPLIED, DUPLICATE, TOO_LATE}
    assert model.overflow > 0


@pytest.mark.parametrize("seed", range(4))
def test_purchases_as_they_come_leave_what_the_model_has(
    lua: Lua, redis_client: redis.Redis, seed: int
) -> None:
    """
    Mostly new and later than all before: the case that has a way of its own.

    Now and then an id again, an instant twice, or a time so far ahead that the batch's
    own first purchase leaves with it; at some times the value is full.
    """
    source, model, newest_us = random.Random(300 + seed), Model(), START_US
    key = lua.packer.key(0, b"card")
    for number in range(400):
        batch = []
        for place in range(source.choice([1, 1, 2, 3])):
            newest_us += source.choice([0, 1, 80_000, 120_000, 300_000])
            if source.random() < 0.02:
                newest_us += HORIZON_US + source.randint(0, 1)
            one = b"%d" % (number * 10 + place)
            if source.random() < 0.05:
                one = b"%d" % (number * 10 - 10)
            batch.append(Event(one, newest_us, cents=number))
        wanted = model.apply(batch)
        assert lua.apply(batch) == (model.packed(), wanted)
        assert redis_client.get(key) == model.packed()
    assert model.overflow > 0


def consistent_events(
    source: random.Random, times_us: dict[bytes, int], *, newest_us: int, count: int
) -> list[Event]:
    """Draw events as a sound feed sends them: each id has one time and one amount."""
    events = []
    for _ in range(count):
        old = list(times_us)[-40:]
        if not old or source.random() < 0.5:
            one = b"%d" % len(times_us)
            times_us[one] = random_event(source, newest_us=newest_us).time_us
        else:
            one = source.choice(old)
        time_us = times_us[one]
        if source.random() < 0.6:
            events.append(Event(one, time_us, cents=time_us % 1_000))
        else:
            revision = source.choice([0, 0, 1, 2])
            known_us = time_us + revision * 1_000
            events.append(Event(one, time_us, 0, revision % 2, known_us, revision))
    return events


@pytest.mark.parametrize("seed", range(3))
def test_applying_a_batch_again_changes_no_byte(
    lua: Lua, redis_client: redis.Redis, seed: int
) -> None:
    """Twice, in pieces and in another order: not a byte, full values included."""
    source, times_us = random.Random(100 + seed), {}
    key = lua.packer.key(0, b"card")
    newest_us = START_US
    for _ in range(150):
        batch = consistent_events(source, times_us, newest_us=newest_us, count=10)
        lua.apply(batch)
        before = redis_client.get(key)
        lua.apply(batch)
        source.shuffle(batch)
        for event in batch:
            lua.apply([event])
        assert redis_client.get(key) == before
        newest_us += source.choice([0, 1, 50_000, 300_000])
    assert int.from_bytes(before[8:12], "little") > 0  # it was full now and then


@pytest.mark.parametrize("seed", range(3))
def test_order_inside_a_batch_changes_no_byte(
    lua: Lua, redis_client: redis.Redis, seed: int
) -> None:
    """Any order of purchases and labels of a batch leaves the same value."""
    source, times_us = random.Random(200 + seed), {}
    key = lua.packer.key(0, b"card")
    newest_us = START_US
    for _ in range(100):
        batch = consistent_events(source, times_us, newest_us=newest_us, count=10)
        before, after = redis_client.get(key), set()
        for _ in range(3):
            redis_client.delete(key)
            if before:
                redis_client.set(key, before)
            lua.apply(batch)
            after.add(redis_client.get(key))
            source.shuffle(batch)
        assert len(after) == 1
        newest_us += source.choice([0, 1, 50_000, 300_000])


def test_dry_run_answers_as_if_and_writes_nothing(
    lua: Lua, redis_client: redis.Redis
) -> None:
    """The same value and statuses as a write; the store keeps its bytes and keys."""
    source, key = random.Random(1), lua.packer.key(0, b"card")
    for _ in range(100):
        batch = [random_event(source, newest_us=START_US) for _ in range(4)]
        before = redis_client.get(key), redis_client.dbsize()
        dry = lua.apply(batch, Mode.DRY)
        assert (redis_client.get(key), redis_client.dbsize()) == before
        assert dry == lua.apply(batch)


def test_write_only_returns_statuses_alone(lua: Lua, redis_client: redis.Redis) -> None:
    """It keeps what a write keeps and sends no value back."""
    batch = [Event(b"1", START_US, cents=5), Event(b"1", START_US, cents=5)]
    value, statuses = lua.apply(batch, Mode.WRITE_ONLY)
    assert (value, statuses) == (b"", [APPLIED, DUPLICATE])
    assert redis_client.get(lua.packer.key(0, b"card")) == lua.apply(batch)[0]


def test_value_lives_for_its_horizon_and_a_day(
    lua: Lua, redis_client: redis.Redis
) -> None:
    """A forgotten entity goes away by itself, when its windows are empty anyway."""
    lua.apply([Event(b"1", START_US)])
    ttl_s = redis_client.ttl(lua.packer.key(0, b"card"))
    assert 86_000 < ttl_s <= HORIZON_US // 10**6 + 86_400


def test_label_that_names_another_time_keeps_the_order(lua: Lua) -> None:
    """The purchase's own time places the entry, whatever its label said before."""
    lua.apply([Event(b"9", START_US + 500, label=1, label_time_us=START_US + 900)])
    lua.apply([Event(b"5", START_US + 300), Event(b"7", START_US + 100)])
    value, statuses = lua.apply([Event(b"9", START_US + 200, cents=8)])
    times = struct.iter_unpack("<q40x", value[32:])
    assert [time - START_US for (time,) in times] == [100, 200, 300]
    assert statuses == [APPLIED]


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"x",
        bytes(31),
        b"\2\x30" + bytes(30),
        b"\1\x28" + bytes(30),
        b"\1\x30" + bytes(31),
    ],
)
def test_foreign_value_is_left_alone(
    lua: Lua, redis_client: redis.Redis, foreign: bytes
) -> None:
    """A value of another version or size is returned as it is, its events refused."""
    key = lua.packer.key(0, b"card")
    redis_client.set(key, foreign)
    call = lua.call(
        [Event(b"1", START_US), Event(b"2", START_US)], owners=[b"card", b"other"]
    )
    ((values, statuses),) = lua.store.apply([(call, Mode.WRITE)])
    assert (values[0], list(statuses)) == (foreign, [4, APPLIED])
    assert len(values[1]) == 32 + 48
    assert redis_client.get(key) == foreign


@pytest.mark.parametrize("mode", [Mode.WRITE, Mode.DRY])
def test_key_of_another_type_costs_its_own_rows_alone(
    lua: Lua, redis_client: redis.Redis, mode: Mode
) -> None:
    """Its events are refused, its value reads as damaged, its neighbours are served."""
    key = lua.packer.key(0, b"card")
    redis_client.rpush(key, "one")
    call = lua.call(
        [Event(b"1", START_US), Event(b"2", START_US)], owners=[b"card", b"other"]
    )
    ((values, statuses),) = lua.store.apply([(call, mode)])
    assert list(statuses) == [4, APPLIED]
    assert unpack_values(values).corrupt.tolist() == [True, False]
    assert redis_client.lrange(key, 0, -1) == [b"one"]
