"""Tests of the embedded Redis; each starts the real one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tollgate.errors import ServerError, SetupError
from tollgate.server.redis import SOCKET_PATH_BYTES, EmbeddedRedis


def _written(state: Path, count: int) -> Path:
    """Let a Redis write `count` keys and end; return its append-only file."""
    with EmbeddedRedis(state) as store, redis.Redis.from_url(store.url) as client:
        for index in range(count):
            client.set(f"key{index}", "x" * 100)
    return state / "redis" / "appendonly.aof"


def test_data_survives_a_restart(tmp_path: Path) -> None:
    """What was written is there after the folder was served again."""
    _written(tmp_path, 3)
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        assert client.get("key2") == b"x" * 100
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_it_listens_on_the_socket_alone(tmp_path: Path) -> None:
    """There is no TCP port, and only this user may open the socket."""
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        assert client.info("server")["tcp_port"] == 0
        assert store.socket_path.stat().st_mode & 0o777 == 0o700
        pid = store.pid
        assert store.alive()
        assert client.info("server")["process_id"] == pid
    assert not store.alive()
    assert not store.socket_path.exists()


def test_a_path_too_long_for_a_socket_is_no_obstacle(tmp_path: Path) -> None:
    """The socket moves to a short folder, the data stay; nothing is left there."""
    state = tmp_path / ("a" * 120)
    with EmbeddedRedis(state) as store, redis.Redis.from_url(store.url) as client:
        assert len(os.fsencode(store.socket_path)) <= SOCKET_PATH_BYTES
        client.set("key", "value")
        short = store.socket_path.parent
    assert (state / "redis" / "appendonly.aof").stat().st_size > 0
    assert not short.exists()


def test_a_path_with_odd_characters_has_a_working_url(tmp_path: Path) -> None:
    """Characters that mean something in a URL are quoted."""
    with (
        EmbeddedRedis(tmp_path / "a b%20?#é") as store,
        redis.Redis.from_url(store.url) as client,
    ):
        assert client.ping()


def test_a_folder_serves_one_store(tmp_path: Path) -> None:
    """A second Redis on the same data is refused, and the first lives on."""
    with EmbeddedRedis(tmp_path) as store:
        with pytest.raises(SetupError, match="in use by process"):
            EmbeddedRedis(tmp_path).__enter__()
        assert store.alive()


def test_a_killed_store_starts_again(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """A socket file that was left behind does not block the next start."""
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        client.set("key", "value")
        wait_until(lambda: client.info("persistence")["aof_pending_bio_fsync"] == 0)
        os.kill(store.pid, signal.SIGKILL)
        wait_until(lambda: not store.alive())
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        assert client.get("key") == b"value"


@pytest.mark.parametrize("tail", [b"*3\r\n$3\r\nSET\r\n$4\r\nke", b"\0" * 4096])
def test_a_damaged_tail_does_not_block_the_start(tmp_path: Path, tail: bytes) -> None:
    """Cut off in a command or filled with zeros: what came before is served."""
    aof = _written(tmp_path, 3)
    with aof.open("ab") as file:
        file.write(tail)
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        assert client.dbsize() == 3


def test_a_garbage_tail_is_kept_beside_the_file(tmp_path: Path) -> None:
    """What is cut is not thrown away."""
    aof = _written(tmp_path, 1)
    with aof.open("ab") as file:
        file.write(b"garbage")
    with EmbeddedRedis(tmp_path):
        pass
    (aside,) = aof.parent.glob("appendonly.aof.damaged-*")
    assert aside.read_bytes() == b"garbage"


def test_a_store_that_does_not_start_tells_why(tmp_path: Path) -> None:
    """A file that is no append-only file at all fails with Redis's own words."""
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "appendonly.aof").mkdir()
    with pytest.raises(ServerError, match=r"redis\.log\nCan't open the append-only"):
        EmbeddedRedis(tmp_path).__enter__()
