"""Tests of the embedded Redis; each starts the real one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import redis

from tests.support.store.hot_entities import with_hop
from tollgate.errors import ServerError, SetupError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.server.processes import redis_server as server_redis
from tollgate.server.processes.allocator import LIBRARY, allocator_environment
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Packer, Purchases, purchase_entries


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


def test_a_path_too_long_for_a_socket_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data stay; the socket is at one place, start after start, and then gone."""
    state = tmp_path / ("a" * 150)
    monkeypatch.setenv("TMPDIR", str(state))
    places = []
    for _ in range(2):
        with EmbeddedRedis(state) as store, redis.Redis.from_url(store.url) as client:
            assert len(os.fsencode(store.socket_path)) < 108  # sun_path of unix(7)
            assert store.socket_path.parent.stat().st_mode & 0o777 == 0o700
            assert (state / "redis" / "redis.sock").samefile(store.socket_path)
            client.set("key", "value")
            places.append(store.socket_path)
        assert not places[-1].parent.exists()
    assert places[0] == places[1]
    assert (state / "redis" / "appendonly.aof").stat().st_size > 0


def test_the_place_of_a_killed_store_is_taken_again(tmp_path: Path) -> None:
    """A folder in /tmp that a killed start left is used again, and removed."""
    state = tmp_path / ("a" * 150)
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tollgate.server.processes.redis_server import EmbeddedRedis\n"
        "print(EmbeddedRedis(Path(sys.argv[1])).__enter__().socket_path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(state)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    left = Path(done.stdout.strip())
    assert left.parent.is_dir()
    with EmbeddedRedis(state) as store, redis.Redis.from_url(store.url) as client:
        assert store.socket_path == left
        assert client.ping()
    assert not left.parent.exists()


def test_empty_places_that_were_forgotten_are_removed(tmp_path: Path) -> None:
    """Of killed starts an hour ago; not a younger one, nor one with a socket."""
    forgotten, young, used = (
        Path(tempfile.mkdtemp(prefix="tollgate-socket-", dir="/tmp")) for _ in range(3)
    )
    try:
        (used / "redis.sock").touch()
        for old in (forgotten, used):
            os.utime(old, (1_000_000_000, 1_000_000_000))
        with EmbeddedRedis(tmp_path / ("a" * 150)):
            assert not forgotten.exists()
            assert young.is_dir()
            assert (used / "redis.sock").exists()
    finally:
        shutil.rmtree(used)
        young.rmdir()


@pytest.mark.parametrize("spoil", ["open to others", "a link", "a file"])
def test_a_place_that_is_not_ours_alone_is_not_used(tmp_path: Path, spoil: str) -> None:
    """Whatever took the name meanwhile is left alone; the socket goes elsewhere."""
    state = tmp_path / ("a" * 150)
    with EmbeddedRedis(state) as store:
        place = store.socket_path.parent
    if spoil == "open to others":
        place.mkdir()
        place.chmod(0o777)
    elif spoil == "a link":
        place.symlink_to(tmp_path)
    else:
        place.touch()
    try:
        with EmbeddedRedis(state) as store:
            assert store.socket_path.parent != place
            assert store.answers()
        assert place.is_symlink() or place.exists()
    finally:
        if spoil == "open to others":
            place.rmdir()
        else:
            place.unlink()


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


def _batches(count: int) -> list[Purchases]:
    """Batches of 32 purchases of 20 customers at 10 terminals, a minute apart."""
    minutes = np.arange(count * 32).reshape(count, 32)
    return [
        Purchases(
            transaction_id=[b"%d" % minute for minute in batch],
            entity_id=[
                [b"c%d" % (minute % 20) for minute in batch],
                [b"t%d" % (minute % 10) for minute in batch],
            ],
            event_time_us=1_600_000_000_000_000 + batch * 60_000_000,
            cents=batch,
        )
        for batch in minutes
    ]


def _fed(url: str, spec: FeatureSpec, batches: list[Purchases]) -> None:
    """Score batches, written."""
    store = RedisStore(url, deadline_s=30.0)
    online = OnlineFeatures(spec, store)
    for batch in batches:
        online.score([batch], write=[True])
    store.close()


def _values(client: redis.Redis) -> dict[bytes, bytes | None]:
    return {key: client.get(key) for key in client.scan_iter()}


def _killed(
    store: EmbeddedRedis, client: redis.Redis, wait_until: Callable[..., None]
) -> None:
    """Kill a Redis whose append-only file is on disk."""
    wait_until(lambda: client.info("persistence")["aof_pending_bio_fsync"] == 0)
    os.kill(store.pid, signal.SIGKILL)
    wait_until(lambda: not store.alive())


@pytest.fixture(params=["0", "1h"])
def spec(
    request: pytest.FixtureRequest, spec_path: Path, tmp_path: Path
) -> FeatureSpec:
    """The features of the fraud product, without and with tiles."""
    return with_hop(spec_path, tmp_path, request.param)


def test_the_file_keeps_calls_and_gives_the_same_values_back(
    tmp_path: Path, spec: FeatureSpec, wait_until: Callable[..., None]
) -> None:
    """
    A row costs a few times its events on disk, not the values that it changes.

    Loading the calls again, after a kill, leaves the same bytes under the same keys.
    """
    batches = _batches(60)
    packer, packed = Packer(spec), 0
    for batch in batches:
        packed += len(packer.pack(purchase_entries(batch), batch.entity_id).events)
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        _fed(store.url, spec, batches)
        values = _values(client)
        _killed(store, client, wait_until)
    held = sum(len(value or b"") for value in values.values())
    size = (tmp_path / "redis" / "appendonly.aof").stat().st_size
    assert len(values) == 30
    if not any(entity.tiles for entity in spec.entities):
        assert held == 30 * 32 + packed  # nothing was trimmed
    assert packed < size < 3 * packed
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        assert _values(client) == values


def test_calls_survive_a_rewrite_of_the_file(
    tmp_path: Path, spec: FeatureSpec, wait_until: Callable[..., None]
) -> None:
    """
    Before, during and after it, and with a script that only the file knows.

    Redis writes the function's text once and its hash afterwards; a rewritten file
    has neither, so the text must come again.
    """
    batches = _batches(40)
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        _fed(store.url, spec, batches[:10])
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        _fed(store.url, spec, batches[10:20])
        client.bgrewriteaof()
        _fed(store.url, spec, batches[20:30])
        wait_until(
            lambda: (
                client.info("persistence")["aof_rewrite_in_progress"] == 0
                and client.info("persistence")["aof_last_rewrite_time_sec"] >= 0
            )
        )
        assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
        _fed(store.url, spec, batches[30:35])
        client.script_flush()
        _fed(store.url, spec, batches[35:])
        values = _values(client)
        _killed(store, client, wait_until)
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        assert _values(client) == values
        assert {client.ttl(key) > 86_400 for key in values} == {True}
        _fed(store.url, spec, batches)
        assert _values(client) == values


def test_nothing_is_forgotten_on_purpose(tmp_path: Path) -> None:
    """No eviction, no snapshots besides the file, which shrinks by itself."""
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        settings = client.config_get("*")
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["maxmemory"] == "0"
    assert settings["save"] == ""
    assert settings["auto-aof-rewrite-percentage"] == "100"


def test_a_file_that_takes_long_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is on silence: as long as Redis says it is loading, it may."""
    # Each call is short: Redis answers after a thousand, on a busy machine too.
    script = b"local sum = 0 for i = 1, 2000 do sum = sum + i end"
    call = b"*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n" % (len(script), script)
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "appendonly.aof").write_bytes(call * 100_000)
    monkeypatch.setattr(server_redis, "_START_S", 1.0)
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        assert client.ping()


def test_it_allocates_as_it_is_told(tmp_path: Path) -> None:
    """With jemalloc where the machine has it, and with its own where that is said."""
    for said, preloaded in (("", bool(allocator_environment())), ("none", False)):
        with EmbeddedRedis(tmp_path, allocator=said) as server:
            mapped = Path(f"/proc/{server.pid}/maps").read_text()
        assert (LIBRARY in mapped) == preloaded
