"""
Compare databases for a device: `python -m loadtests.edge.stores`.

Each commit is that of a decision: it reads three values of 1,500 bytes among 20,000,
replaces them, and adds a record of 300 bytes. Commits are due at a fixed rate, and
their latency counts from when they were due. SQLite waits for the disk at each commit
(FULL) or only before it shortens its log (NORMAL); LMDB at each commit, if `lmdb` is
installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.harness import Report, command_parser, run_command, temporary_folder
from tollgate.load.surroundings import commit as commit_id
from tollgate.load.surroundings import hardware

STORES = ("sqlite full", "sqlite normal", "lmdb")
_KEYS = [b"key-%06d" % number for number in range(20_000)]
_VALUE, _RECORD = 1_500, 300
_LOG_BYTES = 16 << 20  # at which SQLite's log is copied into the database

Write = Callable[[list[bytes], bytes, int], None]


def open_store(kind: str, folder: Path) -> tuple[Write, Callable[[bytes], None]]:
    """Open a store; return a function for a commit, and one for the first values."""
    return _lmdb(folder) if kind == "lmdb" else _sqlite(folder, kind.split()[1])


def _sqlite(folder: Path, synchronous: str) -> tuple[Write, Callable[[bytes], None]]:
    path = folder / "store.sqlite"

    def connect() -> sqlite3.Connection:
        made = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        made.execute("PRAGMA journal_mode = WAL")
        made.execute(f"PRAGMA synchronous = {synchronous}")
        made.execute("PRAGMA wal_autocheckpoint = 0")
        return made

    lock, database, upkeep = threading.Lock(), connect(), connect()
    run = database.execute
    run("CREATE TABLE entries(key BLOB PRIMARY KEY, value BLOB)")
    run("CREATE TABLE chunks(first INTEGER PRIMARY KEY, raw BLOB)")
    replace = "INSERT OR REPLACE INTO entries VALUES (?, ?)"

    def fill(value: bytes) -> None:
        run("BEGIN")
        database.executemany(replace, [(key, value) for key in _KEYS])
        run("COMMIT")
        run("PRAGMA wal_checkpoint(TRUNCATE)")
        threading.Thread(target=shorten, daemon=True).start()

    def shorten() -> None:
        while True:
            time.sleep(0.5)
            if os.path.getsize(f"{path}-wal") > _LOG_BYTES:
                upkeep.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                with lock:
                    upkeep.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def write(keys: list[bytes], bytes_: bytes, number: int) -> None:
        with lock:
            run("BEGIN IMMEDIATE")
            for key in keys:
                run("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
                run(replace, (key, bytes_))
            run("INSERT INTO chunks VALUES (?, ?)", (number, bytes_[:_RECORD]))
            run("COMMIT")

    return write, fill


def _lmdb(folder: Path) -> tuple[Write, Callable[[bytes], None]]:
    import lmdb  # type: ignore[import-not-found]

    environment: Any = lmdb.open(str(folder), map_size=1 << 30, max_dbs=2)
    entries, chunks = (environment.open_db(name) for name in (b"entries", b"chunks"))

    def fill(value: bytes) -> None:
        with environment.begin(write=True) as changes:
            for key in _KEYS:
                changes.put(key, value, db=entries)

    def write(keys: list[bytes], bytes_: bytes, number: int) -> None:
        with environment.begin(write=True) as changes:
            for key in keys:
                changes.get(key, db=entries)
                changes.put(key, bytes_, db=entries)
            changes.put(b"%020d" % number, bytes_[:_RECORD], db=chunks)

    return write, fill


def run_one(kind: str, *, rate: float, seconds: float) -> str:
    """Measure one store in this process; return its line of the table."""
    draw, source = random.Random(1), os.urandom(1 << 20)
    with temporary_folder("edge-stores") as folder:
        write, fill = open_store(kind, folder)
        fill(source[:_VALUE])
        used_s, written = time.process_time(), _written()
        latencies, begin_s = [], time.perf_counter()
        for number in range(int(rate * seconds)):
            due_s = begin_s + number / rate
            time.sleep(max(due_s - time.perf_counter(), 0.0))
            at = draw.randrange(len(source) - _VALUE)
            write(draw.sample(_KEYS, 3), source[at : at + _VALUE], number)
            latencies.append((time.perf_counter() - due_s) * 1e3)
        used_us = (time.process_time() - used_s) * 1e6 / len(latencies)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        p50, p99, p999 = np.percentile(latencies, [50, 99, 99.9])
        return (
            f"| {kind} | {p50:.2f} | {p99:.2f} | {p999:.2f} | {max(latencies):.2f} "
            f"| {used_us:.0f} | {(_written() - written) / len(latencies) / 1024:.0f} "
            f"| {pages * os.sysconf('SC_PAGESIZE') / 2**20:.0f} |"
        )


def _written() -> int:
    """Return how many bytes this process had written to disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def measure(options: argparse.Namespace) -> Report:
    """Run each store in turns, each time in a process of its own."""
    installed = importlib.util.find_spec("lmdb") is not None
    lines = [
        f"{hardware()}; commit {commit_id()}; load average {os.getloadavg()[0]:.1f}; "
        f"{options.rate:g} commits/s for {options.seconds:g} s",
        "",
        "| store | p50 ms | p99 ms | p99.9 ms | most ms | processor µs | KiB | MiB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for _ in range(options.runs):
        for kind in STORES if installed else STORES[:2]:
            words = ("--kind", kind, "--rate", str(options.rate))
            command = (sys.executable, "-m", "loadtests.edge.stores", *words)
            done = subprocess.run(
                [*command, "--seconds", str(options.seconds)],
                check=True,
                capture_output=True,
                text=True,
            )
            lines.append(done.stdout.strip())
    lines += ["", "KiB are those written to disk for each commit, MiB is resident."]
    return Report("\n".join(lines))


def main(arguments: Sequence[str]) -> int:
    """Compare the stores, or run one of them for the process that compares."""
    parser = command_parser("edge.stores")
    parser.add_argument("--rate", type=float, default=200.0, help="commits per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="time of a run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file for the report")
    parser.add_argument("--kind", choices=STORES, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.kind is None:
        least = {"rate": 1, "seconds": 1, "runs": 1}
        return run_command(parser, arguments, measure=measure, least=least)
    print(run_one(parsed.kind, rate=parsed.rate, seconds=parsed.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
