"""The store's files under Redis 6.2, a newer one and Valkey: read whole or refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import redis

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.processes.store_engine import find_engine
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases

REDIS_7 = pytest.param("redis-server", marks=pytest.mark.system("redis-server"))
VALKEY = pytest.param("valkey-server", marks=pytest.mark.system("valkey-server"))
needs_redis = pytest.mark.system("redis-server")
needs_valkey = pytest.mark.system("valkey-server")
needs_both = pytest.mark.system("redis-server", "valkey-server")


def program(name: str) -> str:
    """Find a program of the system, and none that pip installed; "" stays empty."""
    if not name:
        return ""
    found = shutil.which(name, path=f"/usr/bin:{os.environ.get('PATH', '')}")
    assert found is not None
    return found


@pytest.fixture
def online_at() -> Iterator[Callable[[str, FeatureSpec], OnlineFeatures]]:
    """Open features over a store's address; closed at the end."""
    opened: list[RedisStore] = []

    def make(url: str, spec: FeatureSpec) -> OnlineFeatures:
        opened.append(RedisStore(url, deadline_s=30.0))
        return OnlineFeatures(spec, opened[-1])

    yield make
    for one in opened:
        one.close()


def purchases(first: int, count: int) -> Purchases:
    """Purchases of three customers at two terminals, a minute apart."""
    numbers = np.arange(first, first + count)
    return Purchases(
        transaction_id=[b"%d" % number for number in numbers],
        entity_id=[
            [b"c%d" % (number % 3) for number in numbers],
            [b"t%d" % (number % 2) for number in numbers],
        ],
        event_time_us=1_600_000_000_000_000 + numbers * 60_000_000,
        cents=100 + numbers,
    )


def everything(url: str) -> dict[bytes, Any]:
    """Read every value of a store, and that each still has a time to live."""
    with redis.Redis.from_url(url, socket_timeout=None) as client:
        keys = sorted(client.scan_iter())
        return {key: (client.get(key), client.ttl(key) > 0) for key in keys}


def files_of(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder, but for the lock, which names a process."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def rewrite(url: str) -> None:
    """Let a store write its append-only file again, as an RDB file."""
    with redis.Redis.from_url(url) as client:
        client.bgrewriteaof()
        until = time.monotonic() + 60
        while (
            client.info("persistence")["aof_rewrite_in_progress"]
            or client.info("persistence")["aof_rewrite_scheduled"]
        ):
            assert time.monotonic() < until
            time.sleep(0.02)


def recorded(state: Path) -> dict[str, str]:
    """Read the record of a state folder, by msgspec alone."""
    found: dict[str, str] = msgspec.json.decode(
        (state / "redis" / "engine.json").read_bytes()
    )
    return found


def printed_version(path: str) -> str:
    """Read the version that a program prints."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    return done.stdout.partition("v=")[2].partition(" ")[0]


@pytest.mark.parametrize("rewritten", [False, True], ids=["calls", "rdb and calls"])
@pytest.mark.parametrize("newer", [REDIS_7, VALKEY])
def test_a_newer_engine_takes_the_values_over(
    tmp_path: Path,
    spec: FeatureSpec,
    online_at: Callable[[str, FeatureSpec], OnlineFeatures],
    newer: str,
    rewritten: bool,
) -> None:
    """Byte by byte; windows go on from there, and a second start has them too."""
    with EmbeddedRedis(tmp_path / "old") as old, EmbeddedRedis(tmp_path / "k") as kept:
        for one in (old, kept):
            online_at(one.url, spec).score([purchases(0, 32)], write=[True])
        if rewritten:
            rewrite(old.url)
        for one in (old, kept):
            online_at(one.url, spec).score([purchases(32, 32)], write=[True])
            with redis.Redis.from_url(one.url) as client:
                client.set("tollgate:fraud:decided:1", b"approve", ex=3_600)
        before = everything(old.url)
        assert before == everything(kept.url)
        assert len(before) == 3 + 2 + 1
        assert recorded(tmp_path / "old") == {"engine": "redis", "version": "6.2.14"}
        old.stop()
        server = program(newer)
        wanted = online_at(kept.url, spec).score([purchases(64, 6)], write=[True])
        for start in range(2):
            with EmbeddedRedis(tmp_path / "old", server=server) as new:
                if start == 0:
                    assert everything(new.url) == before
                    found = online_at(new.url, spec).score(
                        [purchases(64, 6)], write=[True]
                    )
                    for ours, theirs in zip(found, wanted, strict=True):
                        np.testing.assert_array_equal(ours.features, theirs.features)
                assert everything(new.url) == everything(kept.url)
    assert recorded(tmp_path / "old") == {
        "engine": newer.partition("-")[0],
        "version": printed_version(server),
    }


@needs_redis
def test_redis_6_does_not_start_empty_after_redis_7(tmp_path: Path) -> None:
    """With the record and without it, one line refuses it and nothing is written."""
    with (
        EmbeddedRedis(tmp_path, server=program("redis-server")) as new,
        redis.Redis.from_url(new.url) as client,
    ):
        client.set("key", "value")
    # Without the record, the files say no more than that it was at least 7.0.
    newer = printed_version(program("redis-server"))
    for version in (newer, "7.0"):
        before = files_of(tmp_path)
        with pytest.raises(InputError) as caught, EmbeddedRedis(tmp_path):
            pass
        words = str(caught.value)
        series = ".".join(version.split(".")[:2])
        assert words.startswith(f"{tmp_path}/redis: was written by Redis {version}, ")
        assert "which Redis 6.2.14 (" in words
        assert f"set store_server to a redis-server {series} or newer" in words
        assert "\n" not in words
        assert files_of(tmp_path) == before
        (tmp_path / "redis" / "engine.json").unlink(missing_ok=True)
    with (
        EmbeddedRedis(tmp_path, server=program("redis-server")) as new,
        redis.Redis.from_url(new.url) as client,
    ):
        assert client.get("key") == b"value"


@needs_both
@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("server", ["redis-server", ""])
def test_redis_does_not_take_over_what_valkey_wrote(
    tmp_path: Path, server: str, has_record: bool
) -> None:
    """Its RDB file names it, where nothing else does; Valkey itself reads on."""
    with (
        EmbeddedRedis(tmp_path, server=program("valkey-server")) as new,
        redis.Redis.from_url(new.url) as client,
    ):
        client.set("key", "value")
        rewrite(new.url)
    if not has_record:
        (tmp_path / "redis" / "engine.json").unlink()
    before = files_of(tmp_path)
    refused = EmbeddedRedis(tmp_path, server=program(server))
    with pytest.raises(InputError, match=r"was written by (Valkey|Redis 7)"), refused:
        pass
    assert files_of(tmp_path) == before
    with (
        EmbeddedRedis(tmp_path, server=program("valkey-server")) as new,
        redis.Redis.from_url(new.url) as client,
    ):
        assert client.get("key") == b"value"


@needs_both
def test_valkey_takes_over_from_redis_7(tmp_path: Path) -> None:
    """An RDB file and the commands after it."""
    with (
        EmbeddedRedis(tmp_path, server=program("redis-server")) as old,
        redis.Redis.from_url(old.url) as client,
    ):
        client.set("first", "value")
        rewrite(old.url)
        client.set("second", "value")
    with (
        EmbeddedRedis(tmp_path, server=program("valkey-server")) as new,
        redis.Redis.from_url(new.url) as client,
    ):
        assert client.mget("first", "second") == [b"value", b"value"]
    assert recorded(tmp_path)["engine"] == "valkey"


@pytest.mark.parametrize("server", ["", REDIS_7, VALKEY])
def test_files_of_redis_7_4_are_refused_by_all_of_these(
    tmp_path: Path, server: str
) -> None:
    """RDB version 12 is above Valkey's and older ones'; the file says who wrote it."""
    folder = tmp_path / "redis" / "appendonlydir"
    folder.mkdir(parents=True)
    # The first bytes of a file that Redis 7.4.1 wrote.
    head = b"REDIS0012\xfa\x09redis-ver\x057.4.1\xfa\x0aredis-bits\xc0\x40"
    (folder / "appendonly.aof.2.base.rdb").write_bytes(head)
    before = files_of(tmp_path)
    words = r"was written by Redis 7\.(0|4\.1), which .* cannot take over; set"
    refused = EmbeddedRedis(tmp_path, server=program(server))
    with pytest.raises(InputError, match=words), refused:
        pass
    assert files_of(tmp_path) == before


@needs_redis
def test_an_upgrade_that_was_cut_short_loses_nothing(tmp_path: Path) -> None:
    """
    Redis 7 is killed again and again while it takes the files of 6.2 over.

    Whatever it did by then, one that is left alone has every value.
    """
    with (
        EmbeddedRedis(tmp_path) as old,
        redis.Redis.from_url(old.url) as client,
    ):
        for number in range(5_000):
            client.execute_command("SET", f"key{number}", "x" * 100)
    data = tmp_path / "redis"
    for pause_s in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        child = subprocess.Popen(
            [
                *(program("redis-server"), "--dir", str(data), "--appendonly", "yes"),
                *("--port", "0", "--unixsocket", "redis.sock", "--save", ""),
            ],
            stdout=subprocess.DEVNULL,
        )
        time.sleep(pause_s)
        child.kill()
        child.wait()
    assert recorded(tmp_path)["version"] == "6.2.14"  # as before: none was ready
    with (
        EmbeddedRedis(tmp_path, server=program("redis-server")) as new,
        redis.Redis.from_url(new.url) as client,
    ):
        assert client.dbsize() == 5_000
    with pytest.raises(InputError, match=r"was written by Redis [78]"):
        EmbeddedRedis(tmp_path).__enter__()


@needs_redis
@pytest.mark.parametrize("stage", ["folder", "manifest", "moved"])
def test_each_stage_of_an_upgrade_is_completed(tmp_path: Path, stage: str) -> None:
    """The folder is made, then the manifest in it, then the file is moved there."""
    with EmbeddedRedis(tmp_path) as old, redis.Redis.from_url(old.url) as client:
        client.set("key", "value")
    folder = tmp_path / "redis" / "appendonlydir"
    folder.mkdir()
    if stage != "folder":
        manifest = "file appendonly.aof seq 1 type b\n"
        (folder / "appendonly.aof.manifest").write_text(manifest)
        if stage == "moved":
            (tmp_path / "redis" / "appendonly.aof").rename(folder / "appendonly.aof")
        with pytest.raises(InputError, match="was written by Redis 7"):
            EmbeddedRedis(tmp_path).__enter__()
    with (
        EmbeddedRedis(tmp_path, server=program("redis-server")) as new,
        redis.Redis.from_url(new.url) as client,
    ):
        assert client.get("key") == b"value"


@pytest.mark.parametrize("server", ["", REDIS_7])
def test_two_stores_in_one_folder_are_refused(tmp_path: Path, server: str) -> None:
    """A Redis 6.2 that came up empty beside the folder of Redis 7, and wrote."""
    folder = tmp_path / "redis" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.manifest").write_text(
        "file appendonly.aof.1.base.rdb seq 1 type b\n"
        "file appendonly.aof.1.incr.aof seq 1 type i\n"
    )
    (tmp_path / "redis" / "appendonly.aof").write_bytes(b"*1\r\n$4\r\nPING\r\n")
    before = files_of(tmp_path)
    refused = EmbeddedRedis(tmp_path, server=program(server))
    with pytest.raises(InputError, match=r"holds two stores: appendonly\.aof"), refused:
        pass
    assert files_of(tmp_path) == before


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """It is not guessed what it said."""
    (tmp_path / "redis").mkdir()
    path = tmp_path / "redis" / "engine.json"
    for text, words in (
        ("{", "cannot be read: "),
        ('{"engine": "other", "version": "1.0"}', "names no engine that is known"),
    ):
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            EmbeddedRedis(tmp_path).__enter__()
        assert str(caught.value).startswith(f"{path}: {words}")
        assert path.read_text() == text


@pytest.mark.parametrize("newer", [REDIS_7, VALKEY])
@pytest.mark.parametrize("tail", [b"*3\r\n$3\r\nSET\r\n$4\r\nke", b"\0" * 4096])
def test_a_newer_engine_starts_after_a_damaged_tail(
    tmp_path: Path, newer: str, tail: bytes
) -> None:
    """The end of the newest file in its folder is put aside, as with Redis 6.2."""
    with (
        EmbeddedRedis(tmp_path, server=program(newer)) as store,
        redis.Redis.from_url(store.url) as client,
    ):
        client.set("key", "value")
    (newest,) = (tmp_path / "redis" / "appendonlydir").glob("*.incr.aof")
    with newest.open("ab") as file:
        file.write(tail)
    with (
        EmbeddedRedis(tmp_path, server=program(newer)) as store,
        redis.Redis.from_url(store.url) as client,
    ):
        assert client.get("key") == b"value"


def test_the_bundled_redis_is_the_only_one_that_is_warned_of(tmp_path: Path) -> None:
    """A distribution repairs old versions, so its version number proves nothing."""
    bundled = find_engine("")
    assert bundled.writes.version == "6.2.14"
    assert "CVE-2024-31449 and CVE-2025-49844" in bundled.warning
    assert find_engine(str(bundled.program)).warning == ""


def _script(path: Path, prints: str, *, mode: int = 0o755) -> Path:
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("no-such-server", "no-such-server: no such program is on PATH; "),
        ("{folder}/absent", "{folder}/absent: is not there; name a redis-server"),
        ("{folder}", "{folder}: is no program; name a redis-server"),
        ("{folder}/data", "{folder}/data: may not be executed by this user"),
        ("{folder}/other", "{folder}/other: is no redis-server or valkey-server: "),
        ("{folder}/text", "{folder}/text: cannot be executed: Exec format error"),
        ("{folder}/old", "{folder}/old: is Redis 6.0.16; the store needs Redis 6.2 or"),
        ("{folder}/young", "{folder}/young: is Valkey 7.1.9; the store needs Redis"),
    ],
)
def test_a_program_that_cannot_serve_is_refused_before_anything_is_written(
    tmp_path: Path, server: str, words: str
) -> None:
    """`tollgate up` says so in one line, with status 2, and makes no state folder."""
    folder = tmp_path / "programs"
    folder.mkdir()
    _script(folder / "data", "Redis server v=7.0.15 sha=0", mode=0o644)
    _script(folder / "other", "true (GNU coreutils) 9.1")
    _script(folder / "old", "Redis server v=6.0.16 sha=00000000:0 malloc=libc")
    _script(folder / "young", "Valkey server v=7.1.9 sha=00000000:0 malloc=libc")
    (folder / "text").write_text("Redis server v=7.0.15\n")
    (folder / "text").chmod(0o755)
    state = tmp_path / "state"
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from tollgate.cli import main; main()", "up"),
            *("--state", str(state), "--grpc-port", "0", "--metrics-port", "0"),
            *("--side-port", "0", "--store-server", server.format(folder=folder)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert f"store server: {words.format(folder=folder)}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not state.exists()


def test_a_program_to_start_and_a_store_that_runs_exclude_each_other(
    tmp_path: Path,
) -> None:
    """Whichever of command line and environment they come from."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from tollgate.cli import main; main()", "up"),
            *("--state", str(tmp_path / "state"), "--store-url", "redis://h"),
        ],
        env=os.environ | {"TOLLGATE_STORE_SERVER": "redis-server"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "--store-server: redis-server would not be used" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "state").exists()


def test_a_killed_server_of_another_engine_is_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`restart` uses the same program; a change of engine is logged once."""
    bundled = str(find_engine("").program)
    with EmbeddedRedis(tmp_path, server=bundled) as store:
        pid = store.pid
        os.kill(pid, signal.SIGKILL)
        store.restart()
        assert store.pid != pid
        assert store.answers()
    assert "is now" not in caplog.text
