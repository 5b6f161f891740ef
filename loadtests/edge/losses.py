"""Kill a device, or cut its power, and compare its disk with what it acknowledged."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from tollgate import Engine
from tollgate.edge.device_store import DATABASE, JOURNAL, DeviceStore
from tollgate.errors import ServerError
from tollgate.features.windows.entity_entries import ENTRY
from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.repair.spool_segments import read_segment, segments

LIBRARY_SOURCE = Path(__file__).with_name("power_loss.c")
_FIRST_ANSWER_S = 120.0  # on a machine that is busy with other work
_THREADS = 4


class Losses(msgspec.Struct):
    """
    Count what was lost in some kills.

    Attributes:
        acknowledged: Decisions whose answers came before a kill.
        lost: How many of them are not in the journal.
        records: Records of the journal.
        doubled: Numbers that two records have.
        missing: Numbers that no record has.
        differing: Values of windows that a replay of the journal does not give, and
            decisions that a replay decides otherwise.
    """

    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    records: int = 0
    doubled: int = 0
    missing: int = 0
    differing: int = 0

    @property
    def none(self) -> bool:
        """Return whether everything is there, and the same."""
        return not (self.lost or self.doubled or self.missing or self.differing)


def build_library(folder: Path) -> Path:
    """Compile the library that records what a loss of power leaves."""
    library = folder / "power_loss.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(library)]
    libraries = ["-ldl", "-lpthread"]
    subprocess.run([*command, str(LIBRARY_SOURCE), *libraries], check=True)
    return library


class Victim:
    """
    Run a device that is killed again and again.

    Args:
        bundle, key: Of the fraud product.
        repository: The repository that it was packed from.
        folder: Empty folder for its state.
        library: Library of `build_library`: each kill is then a loss of power. None for
            kills of the process alone.
        unsynced: True to answer before decisions are on disk: a control, which must
            lose some when the power is lost.
    """

    def __init__(
        self,
        bundle: Path,
        *,
        key: Path,
        repository: Path,
        folder: Path,
        library: Path | None = None,
        unsynced: bool = False,
        seed: int = 1,
    ) -> None:
        self._words = [str(bundle), str(key)]
        self._library = library
        self._last_words = ["unsynced"] if unsynced else []
        self._state, self._shadow = folder / "state", folder / "shadow"
        self._copy = folder / "copy"
        self._chance = random.Random(seed)
        self._replay = Engine.open(repository, product="fraud")
        self._known = _Windows(self._replay)
        self._acknowledged: set[bytes] = set()
        self._seen: set[int] = set()
        self.losses = Losses()

    def kill(self, *, most_s: float) -> None:
        """Start it, kill it within a time after its first answer, and compare."""
        environment = {**os.environ}
        if self._library is not None:
            self._start_shadow()
            environment |= {
                "LD_PRELOAD": str(self._library),
                "POWER_ROOT": str(self._state),
                "POWER_SHADOW": str(self._shadow),
            }
        numbers = [str(self.losses.kills), str(_THREADS)]
        command = [sys.executable, "-m", "loadtests.edge.decider", *self._words]
        child = subprocess.Popen(
            [*command, str(self._state), *numbers, *self._last_words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        if first:
            time.sleep(self._chance.uniform(0, most_s))
        child.send_signal(signal.SIGKILL)
        rest, errors = child.communicate(timeout=_FIRST_ANSWER_S)
        if not first or child.returncode != -signal.SIGKILL:
            raise ServerError("the device", "ended by itself", log=errors.decode())
        if self._library is not None:
            self._lose_power()
        answered = (first + rest).split(b"\n")[:-1]
        self._acknowledged |= set(answered)
        self.losses.kills += 1
        self.losses.acknowledged += len(answered)
        self._compare()

    def _start_shadow(self) -> None:
        """Take everything that is there as synced."""
        shutil.rmtree(self._shadow, ignore_errors=True)
        inodes = self._shadow / ".inodes"
        inodes.mkdir(parents=True)
        for path in self._state.rglob("*"):
            if path.is_file():
                held = inodes / str(path.stat().st_ino)
                shutil.copyfile(path, held)
                name = self._shadow / path.relative_to(self._state)
                name.parent.mkdir(parents=True, exist_ok=True)
                name.hardlink_to(held)

    def _lose_power(self) -> None:
        """Replace the state by what was synced."""
        shutil.rmtree(self._state)
        skip = shutil.ignore_patterns(".inodes", ".link")
        shutil.copytree(self._shadow, self._state, ignore=skip)

    def _compare(self) -> None:
        """Compare a copy, which leaves the recovery to the next start."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._state, self._copy)
        ids: set[bytes] = set()
        numbers: list[int] = []
        fresh: dict[int, Records] = {}
        for one in _records(self._copy):
            ids |= set(one.transaction_id)
            own = range(one.first_sequence, one.first_sequence + len(one))
            numbers += own
            if own[0] not in self._seen:
                fresh[own[0]] = one
        losses = self.losses
        losses.lost = len(self._acknowledged - ids)
        losses.records = len(numbers)
        losses.doubled = len(numbers) - len(set(numbers))
        losses.missing = max(numbers, default=-1) + 1 - len(set(numbers))
        for first in sorted(fresh):
            one = fresh[first]
            self._seen |= set(range(first, first + len(one)))
            losses.differing += _replay(self._replay, one)
        losses.differing += self._known.differing(self._copy)


def _records(state: Path) -> Iterator[Records]:
    """Read all records of a state folder: of its segments, and of its database."""
    chunks: dict[int, bytes] = {}
    for folder in (state / JOURNAL).iterdir():
        for path in segments(folder):
            for raw in read_segment(path, path.read_bytes()).events:
                chunks[decode_chunk(raw).first_sequence] = raw
    sealed = set(chunks)
    with closing(sqlite3.connect(state / DATABASE)) as database:
        for first, raw in database.execute(
            "SELECT first, chunk FROM log WHERE records > 0"
        ):
            # Rows stay for a while after their chunk is sealed.
            assert first not in sealed or chunks[first] == raw
            chunks[first] = raw
    for raw in chunks.values():
        yield decode_chunk(raw)


def _replay(engine: Engine, records: Records) -> int:
    """Decide rows of a record again; return how many scores differ."""
    answer = engine.decide(
        {
            "transaction_id": list(records.transaction_id),
            "customer_id": list(records.entity_id[0]),
            "terminal_id": list(records.entity_id[1]),
            "amount": records.cents / 100,
            "event_time": records.event_time_us,
        },
        now_us=int(records.decided_us[0]),
    )
    found, wanted = answer["score"].tobytes(), records.score.tobytes()
    return 0 if found == wanted else len(records)


class _Windows:
    """The values of an engine in memory, to compare with those of a database."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine._store.store  # type: ignore[attr-defined]  # its own store

    def differing(self, state: Path) -> int:
        """Count the values of windows that only one of both has, or that differ."""
        opened = DeviceStore(
            state, product="fraud", spool_bytes=1 << 30, seal_after_s=60
        )
        with closing(opened):
            found = {
                key: value
                for key, (value, _) in opened.store._values.items()
                if _is_window(key)
            }
        values = self._store._values.items()
        wanted = {key: value for key, (value, _) in values if _is_window(key)}
        assert not wanted or max(map(len, wanted.values())) > ENTRY.itemsize
        keys = found.keys() | wanted.keys()
        return sum(found.get(key) != wanted.get(key) for key in keys)


def _is_window(key: bytes) -> bool:
    """Return whether a key is not of a stored decision or the clock of a feed."""
    return b":decided:" not in key and b":feed:" not in key
