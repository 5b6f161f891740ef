"""The function inside Redis and the one in Python change a state to the same bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import redis

from tests.support.store.redis_cluster import Cluster
from tollgate.policy.hysteresis import Hysteresis, apply_readings
from tollgate.store.hysteresis_states import (
    STATE_TTL_S,
    hysteresis_key,
    reading_command,
)
from tollgate.store.memory_store import MemoryStore
from tollgate.store.redis.redis_store import RedisStore

S = 1_000_000
NOW_US = 1_700_000_000 * S
OpenAny = Callable[..., RedisStore]


def drawn(rng: np.random.Generator, *, ids: int) -> list[bytes]:
    """Draw batches of readings: in order, late, at equal instants, and repeated."""
    clock, batches = NOW_US, []
    for _ in range(40):
        batch = []
        for _ in range(int(rng.integers(1, 9))):
            clock += int(rng.choice([0, 1, S, 30 * S, 10**12]))
            time_us = clock - int(rng.choice([0, 0, 0, 1, 5 * S, 10**12]))
            name = int(rng.integers(0, ids)) * 0x9E3779B97F4A7C15 % 2**64
            level = int(rng.choice([0, 1, 2] * 6 + [4, 5, 6]))
            batch.append((time_us, name.to_bytes(8, "big"), level))
        batch.sort()
        batches.append(b"".join(struct.pack("<q8sB", *one) for one in batch))
    return batches


def run(store: RedisStore, *commands: Any) -> list[Any]:
    """Run commands, one after the other."""
    return [store.flush([], extra_commands=[one])[1][0] for one in commands]


@pytest.mark.parametrize("seed", range(12))
def test_states_and_evidence_have_the_same_bytes(
    store_url: str, open_any: OpenAny, seed: int
) -> None:
    """Redis, the store in memory and the definition; dry runs store nothing."""
    rng = np.random.default_rng(seed)
    of = int(rng.integers(1, 33))
    settings = Hysteresis(
        "machine",
        of,
        int(rng.integers(1, of + 1)),
        int(rng.choice([0, 1, 20 * S, 10**12])),
        int(rng.choice([0, 1, 40 * S, 10**12])),
        0,
    )
    stores = [open_any(store_url), MemoryStore()]
    key = hysteresis_key("plant", "machine", b"seed-%d" % seed)
    state: bytes | None = None
    for batch in drawn(rng, ids=60):
        dry = bool(rng.integers(0, 4) == 0)
        after, evidence = apply_readings(state, batch, settings)
        state = state if dry else after
        command = reading_command(key, batch, settings=settings, dry=dry)
        for store in stores:
            assert run(store, command, (b"GET", key)) == [evidence, state]
    assert state is not None
    assert len(state) <= 28 + 17 * of


def test_a_damaged_state_is_replaced_by_both(store_url: str, open_any: OpenAny) -> None:
    """Cut, of another version, longer than it says, empty."""
    settings = Hysteresis("machine", 3, 2, S, S, 0)
    batch = b"".join(struct.pack("<q8sB", at, b"reading%d" % at, 1) for at in range(3))
    good, _ = apply_readings(None, batch, settings)
    assert good is not None
    key = hysteresis_key("plant", "machine", b"damaged")
    for bad in (good[:-1], b"\x02" + good[1:], good + b"x", b"", b"\x01"):
        wanted, evidence = apply_readings(bad, batch, settings)
        assert wanted == good
        command = reading_command(key, batch, settings=settings, dry=False)
        for store in (open_any(store_url), MemoryStore()):
            found = run(store, (b"SET", key, bad), command, (b"GET", key))
            assert found[1:] == [evidence, good]


def test_a_state_expires_after_its_last_change(
    store_url: str, open_any: OpenAny
) -> None:
    """Ninety days on the store's clock; a smaller window shortens the value."""
    store = open_any(store_url)
    key = hysteresis_key("plant", "machine", b"old")
    batch = b"".join(struct.pack("<q8sB", at, b"reading%d" % at, 1) for at in range(9))
    for of in (8, 2):
        settings = Hysteresis("machine", of, 1, 0, S, 0)
        one = batch if of == 8 else struct.pack("<q8sB", 99, b"reading9", 0)
        run(store, reading_command(key, one, settings=settings, dry=False))
        with redis.Redis.from_url(store_url) as client:
            assert client.strlen(key) == 28 + 17 * of
            assert STATE_TTL_S - 600 < client.ttl(key) <= STATE_TTL_S


def test_a_function_that_is_not_loaded_is_loaded_once(
    store_url: str, open_any: OpenAny
) -> None:
    """A Redis that lost its functions gets the one that is called."""
    store = open_any(store_url)
    settings = Hysteresis("machine", 2, 2, 0, 0, 0)
    command = reading_command(
        hysteresis_key("plant", "machine", b"m"),
        struct.pack("<q8sB", 1, b"reading1", 2),
        settings=settings,
        dry=False,
    )
    with redis.Redis.from_url(store_url) as client:
        client.script_flush()
        (reply,) = run(store, command)
        assert len(reply) == 24
        loaded = client.info("memory")["number_of_cached_scripts"]
    assert loaded == 1


def test_a_cluster_holds_the_states_of_many_machines(
    own_cluster: Cluster, open_any: OpenAny
) -> None:
    """Each on the node of its key."""
    store = open_any(own_cluster.url)
    settings = Hysteresis("machine", 2, 2, 0, 0, 0)
    batch = struct.pack("<q8sB", 1, b"reading1", 2) + struct.pack(
        "<q8sB", 2, b"reading2", 1
    )
    keys = [hysteresis_key("plant", "machine", b"m%d" % at) for at in range(20)]
    commands = [
        reading_command(key, batch, settings=settings, dry=False) for key in keys
    ]
    state, evidence = apply_readings(None, batch, settings)
    assert store.flush([], extra_commands=commands)[1] == [evidence] * 20
    assert run(store, *((b"GET", key) for key in keys)) == [state] * 20
