"""What rides along with a call, and the probe of a store that was away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import redis

from tollgate.errors import StoreError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.redis.redis_store import Mode, NoStore, RedisStore
from tollgate.store.store_events import Call, Packer, Purchases, purchase_entries


def call_of(spec: FeatureSpec) -> Call:
    """One purchase, packed."""
    batch = Purchases(
        transaction_id=[b"t"],
        entity_id=[[b"c"], [b"m"]],
        event_time_us=np.array([1_600_000_000_000_000]),
        cents=np.array([100]),
    )
    return Packer(spec).pack(purchase_entries(batch), batch.entity_id)


def test_a_refused_extra_command_does_not_affect_the_call(
    spec: FeatureSpec,
    store_url: str,
    redis_client: redis.Redis,
    open_store: Callable[..., RedisStore],
) -> None:
    """Its error is handed back; also behind a script that had to be loaded."""
    redis_client.set("text", "x")
    store = open_store(store_url)
    extra_commands = [
        (b"SET", b"mark", b"1"),
        (b"INCR", b"text"),
        (b"MGET", b"mark", b"none"),
    ]
    for _ in range(2):
        answers, replies = store.flush(
            [(call_of(spec), Mode.WRITE)], extra_commands=extra_commands
        )
        assert len(answers) == 1
        assert replies[0] == b"OK"
        assert isinstance(replies[1], redis.ResponseError)
        assert replies[2] == [b"1", None]
        redis_client.script_flush()


def test_what_is_done_meanwhile_is_done_while_redis_works(
    store_url: str, redis_client: redis.Redis, open_store: Callable[..., RedisStore]
) -> None:
    """Once, behind what was sent; its time is none of the store's."""
    store = open_store(store_url, deadline_s=0.2)
    store.flush([], extra_commands=[(b"PING",)])  # connected
    seen = []

    def look() -> None:
        while not redis_client.exists("mark"):
            time.sleep(0.001)
        time.sleep(0.3)
        seen.append(redis_client.get("mark"))

    _, replies = store.flush([], extra_commands=[(b"SET", b"mark", b"1")], on_wait=look)
    assert replies == [b"OK"]
    assert seen == [b"1"]
    with pytest.raises(StoreError):
        NoStore().flush([], extra_commands=[(b"PING",)], on_wait=look)
    assert len(seen) == 1


def test_a_probe_opens_the_connection_and_brings_the_script(
    spec: FeatureSpec, tmp_path: Path
) -> None:
    """False while Redis is stopped or not there; then the next call is one read."""
    server = EmbeddedRedis(tmp_path)
    with server:
        store = RedisStore(server.url, deadline_s=0.5)
        os.kill(server.pid, signal.SIGSTOP)
        silent = store.probe()
        os.kill(server.pid, signal.SIGCONT)
        assert silent is False
        assert store.probe() is True
        with redis.Redis.from_url(server.url) as client:
            before = client.info("stats")["total_reads_processed"]
            store.flush([(call_of(spec), Mode.WRITE)], extra_commands=())
            after = client.info("stats")["total_reads_processed"]
        assert after - before == 1 + 1
    assert store.probe() is False
    store.close()


def test_no_store_is_always_away() -> None:
    """It never answers a probe."""
    store = NoStore()
    assert store.probe() is False
    store.close()
