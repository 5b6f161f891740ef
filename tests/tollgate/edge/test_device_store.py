"""A store has the same values after a kill, wherever its upkeep was."""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tollgate.edge import device_store
from tollgate.edge.device_store import DeviceStore
from tollgate.errors import InputError

HEAD, EVENT = 32, 48


def opened(folder: Path) -> DeviceStore:
    """Open a store."""
    return DeviceStore(
        folder, product="fraud", spool_bytes=1 << 24, seal_after_s=1_000.0
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DeviceStore]:
    """Open an empty store."""
    with closing(opened(tmp_path / "state")) as store:
        yield store


def content(store: DeviceStore) -> dict[bytes, object]:
    """Return all values."""
    return dict(store.store._values.items())


def after_a_kill(store: DeviceStore, tmp_path: Path) -> dict[bytes, object]:
    """Return the values of a copy of the files."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store.folder, copy)
    with closing(opened(copy)) as other:
        return content(other)


def change(store: DeviceStore, number: int, *, keys: int = 12) -> None:
    """Commit a few changes, and a chunk of one record."""
    draw = random.Random(number)
    values = store.store._values
    with store.lock, store.changes():
        for _ in range(3):
            key = b"%03d" % draw.randrange(keys)
            found, _ = values.get(key, (None, 0))
            old = found if isinstance(found, bytes) else bytes(HEAD)
            head = number.to_bytes(HEAD, "little")
            left = HEAD + EVENT * draw.randrange(2) * (len(old) > 9 * EVENT)
            values[key] = head + old[left:] + draw.randbytes(EVENT), 0
        store.add_chunk(draw.randbytes(300), records=1)


def test_a_kill_between_two_writes_of_values(
    store: DeviceStore, tmp_path: Path
) -> None:
    """Some values in the table are newer than what it says to have."""
    for number in range(100):
        change(store, number)
    store._write_values()
    for number in range(100, 140):
        change(store, number)
    store._write_some(store._values.fresh_keys()[:5])
    assert after_a_kill(store, tmp_path) == content(store)
    for number in range(140, 180):
        change(store, number)
    wanted = content(store)
    assert after_a_kill(store, tmp_path) == wanted
    store._write_some(store._values.fresh_keys()[:4])
    assert after_a_kill(store, tmp_path) == wanted == content(store)


def test_a_kill_and_changes_while_values_are_written(
    store: DeviceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are decided between two parts of the values."""
    numbers = itertools.count()

    def pause(_: float) -> None:
        for _ in range(5):
            change(store, next(numbers), keys=60)
        assert after_a_kill(store, tmp_path) == content(store)

    monkeypatch.setattr(time, "sleep", pause)
    for _ in range(4):
        for _ in range(80):
            change(store, next(numbers), keys=60)
        before = next(numbers)
        store._write_values()
        assert next(numbers) > before + 10
        store._shorten_log()


def test_the_log_is_shortened_after_seal_and_write(
    store: DeviceStore, tmp_path: Path
) -> None:
    """A row leaves when both are done, in either order."""

    def rows() -> int:
        (count,) = store._database.execute("SELECT count(*) FROM log").fetchone()
        return int(count)

    for number in range(600):
        change(store, number)
    store._shorten_log()
    assert rows() == 600
    store.seal()
    store._shorten_log()
    assert rows() == 600
    store._write_values()
    change(store, 600)
    store._shorten_log()
    assert rows() == 1
    store._write_values()
    store._shorten_log()
    assert rows() == 1
    wanted = content(store)
    assert after_a_kill(store, tmp_path) == wanted
    store.seal()
    store._shorten_log()
    assert rows() == 0
    change(store, 601)
    assert store.next == 602
    assert after_a_kill(store, tmp_path) == content(store) != wanted


def test_a_value_that_expires_and_returns(
    store: DeviceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep leaves what the log still changes."""
    values = store.store._values

    def put(event: int, end_ms: int) -> None:
        found, _ = values.get(b"key", (bytes(HEAD), 0))
        assert isinstance(found, bytes)
        with store.lock, store.changes():
            values[b"key"] = found + random.Random(event).randbytes(EVENT), end_ms

    monkeypatch.setattr(device_store, "_SWEEP_S", 0.01)
    put(1, 1)  # it ended long ago
    store._write_values()
    put(2, 1)
    store._sweep()
    assert len(content(store)) == 1
    assert after_a_kill(store, tmp_path) == content(store)
    store._write_some([b"key"])  # the table does not say that it has all yet
    store._sweep()
    assert after_a_kill(store, tmp_path) == content(store)
    store._write_values()
    for _ in range(2):
        store._sweep()
    assert content(store) == {}
    put(3, 0)
    assert after_a_kill(store, tmp_path) == content(store)
    assert len(content(store)) == 1


def test_many_values_do_not_stay_in_memory(
    store: DeviceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit writes the oldest ones, and so does a start."""
    monkeypatch.setattr(device_store, "_MOST_FRESH_BYTES", 5_000)
    for number in range(200):
        change(store, number)
        assert store._values.fresh_bytes <= 5_000
    wanted = content(store)
    assert after_a_kill(store, tmp_path) == wanted
    with closing(opened(tmp_path / "copy")) as other:
        assert other._values.fresh_bytes <= 5_000
        assert content(other) == wanted


READ = """
import sqlite3, sys
for _ in range(40):
    database = sqlite3.connect(sys.argv[1])
    database.execute("SELECT count(*) FROM log").fetchone()
    database.close()
"""


def test_another_process_may_read_the_database(
    store: DeviceStore, tmp_path: Path
) -> None:
    """Its end leaves SQLite's shared memory to the device."""
    command = [sys.executable, "-c", READ, str(store.folder / device_store.DATABASE)]
    for number in range(100):
        change(store, number)
        if number % 20 == 0:
            store._checkpoint()
            subprocess.run(command, check=True)
    locks = Path("/proc/locks").read_text()
    inode = (store.folder / f"{device_store.DATABASE}-shm").stat().st_ino
    assert f":{inode} " in locks
    assert after_a_kill(store, tmp_path) == content(store)


class _Interrupted:
    """A database whose statements are interrupted after they are done, once."""

    def __init__(self, database: sqlite3.Connection, begins: str) -> None:
        self._database = database
        self._begins = begins

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def execute(self, sql: str, *values: object) -> object:
        done = self._database.execute(sql, *values)
        if self._begins and sql.startswith(self._begins):
            self._begins = ""
            raise KeyboardInterrupt
        return done


@pytest.mark.parametrize("begins", ["INSERT INTO log", "SELECT"])
def test_an_interrupt_leaves_what_the_disk_has(
    store: DeviceStore, tmp_path: Path, begins: str
) -> None:
    """Ctrl-C after a commit, or before it: the next change goes on from there."""
    change(store, 1)
    database = store._database
    store._database = _Interrupted(database, begins)  # type: ignore[assignment]
    store._values._table._run = store._database.execute
    with pytest.raises(KeyboardInterrupt):
        change(store, 2, keys=1_000)
    with store.lock:
        store.refresh()
    assert store.next == (2 if begins == "INSERT INTO log" else 1)
    assert after_a_kill(store, tmp_path) == content(store)
    for number in range(3, 30):
        change(store, number)
    assert after_a_kill(store, tmp_path) == content(store)
    store._write_values()
    assert after_a_kill(store, tmp_path) == content(store)


def test_a_store_that_cannot_seal_writes_its_values(
    store: DeviceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its write-ahead log does not grow without end."""
    monkeypatch.setattr(device_store, "_WRITE_AFTER_S", -1.0)
    shutil.rmtree(store.segments_folder)
    store._seal_after_s = -1.0
    change(store, 1)
    with pytest.raises(FileNotFoundError):
        store.keep_up()
    assert store._values.fresh_keys() == []
    store.segments_folder.mkdir()


def test_a_store_seals_at_its_end_after_the_clock_was_set_back(
    store: DeviceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a year, between a record and the end."""
    change(store, 1)
    now = time.time()
    monkeypatch.setattr(device_store.time, "time", lambda: now - 365 * 86_400)
    store.close()
    assert len(list(store.segments_folder.glob("*.spool"))) == 1


def test_a_damaged_log_is_refused(store: DeviceStore, tmp_path: Path) -> None:
    """In the words of a damaged database."""
    change(store, 1)
    sql = "SELECT rootpage FROM sqlite_master WHERE name = 'log'"
    (page,) = store._database.execute(sql).fetchone()
    store.close()
    with (store.folder / device_store.DATABASE).open("r+b") as file:
        file.seek((page - 1) * 4_096)
        file.write(b"\xff" * 4_096)
    with pytest.raises(InputError, match="is damaged, or no database of a device: "):
        after_a_kill(store, tmp_path)


def test_a_log_of_other_values_is_refused(store: DeviceStore, tmp_path: Path) -> None:
    """A row that changes a value which is not there."""
    change(store, 1, keys=1)
    change(store, 2, keys=1)
    store._database.execute("DELETE FROM log WHERE number = 1")
    with pytest.raises(InputError, match="is damaged: the log changes a value that is"):
        after_a_kill(store, tmp_path)
