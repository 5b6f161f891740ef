"""
Kill writers of the journal, and their Redis, at random moments; count what is left.

    python tests/tollgate/journal/kill_writers.py --kills 100 [--seed 1] [--sync ...]
        [--busy 4]

One Redis and one spool. Writers come one after the other, each in a process of its
own, which logs every number it handed over and every number that was acknowledged: by
XADD's reply or by a synced segment. Each is killed with SIGKILL after a while, as is
Redis in a third of the rounds, to be started again while a writer works. `--busy`
processes take the processors from them meanwhile. At last one writer drains what is
left. Prints one JSON object: no acknowledged record may be lost,
none may be there twice by writer and number, none may differ from what was handed
over, and what is missing of each writer must be as many as its end reports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
import redis

from tests.support.checkout import checkout_environment
from tests.support.journal.numbered_decisions import (
    HEADING,
    chunks_in,
    ends_in,
    name_of,
    rows_of,
    wait_until,
)
from tollgate.journal.decision_record import Records
from tollgate.journal.journal_opening import DEADLINE_S
from tollgate.journal.journal_rows import Chunk
from tollgate.journal.journal_spool import JournalSpool
from tollgate.journal.journal_stream import JournalStream
from tollgate.journal.journal_writer import JournalWriter
from tollgate.journal.mark import Mark
from tollgate.repair.spool_segments import segments
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.redis.pipelined_connection import open_pipeline

BATCH_ROWS = 4
EVERY_S = 0.002
# What happened, its first number, how many, when by CLOCK_MONOTONIC.
_LINE = struct.Struct("<cQIq")
APPENDED, ACKNOWLEDGED = b"a", b"k"


class LoggingWriter(JournalWriter):
    """A writer that logs what it handed over and what was acknowledged."""

    def log_to(self, path: Path) -> None:
        """Open the log; a kill does not take what was written to it."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def line(self, what: bytes, first: int, rows: int) -> None:
        """Log one line."""
        os.write(self._fd, _LINE.pack(what, first, rows, time.monotonic_ns() // 1000))

    def _count_durable(self, chunks: list[Chunk], how: str) -> None:
        for chunk in chunks:
            self.line(ACKNOWLEDGED, chunk.first, chunk.rows)
        super()._count_durable(chunks, how)


def open_one(url: str, spool: Path) -> LoggingWriter:
    """Open a writer as the decision step does, with its deadline."""
    stream = JournalStream("fraud", open_pipeline(url, deadline_s=DEADLINE_S))
    files = JournalSpool(spool, product="fraud")
    return LoggingWriter(HEADING, stream, spool=files, mark=Mark(spool, HEADING))


def write(url: str, spool: Path, logs: Path) -> None:
    """Write decisions until killed; in a process of its own."""
    writer = open_one(url, spool)
    writer.log_to(logs / writer.writer)
    print(writer.writer, flush=True)
    at = 0
    while True:
        writer.append(rows_of(at, BATCH_ROWS))
        writer.line(APPENDED, at, BATCH_ROWS)
        at += BATCH_ROWS
        time.sleep(EVERY_S)


class Log(msgspec.Struct, frozen=True):
    """
    What a writer logged.

    Attributes:
        handed: Number of its record and when it was handed over, µs, in order.
        acknowledged: Numbers.
        last_us: Its last sign of life.
    """

    handed: list[tuple[int, int]]
    acknowledged: set[int]
    last_us: int


def read_log(path: Path) -> Log:
    """Read a log; a line that was cut is left out."""
    content = path.read_bytes()
    lines = list(_LINE.iter_unpack(content[: len(content) // _LINE.size * _LINE.size]))
    handed: list[tuple[int, int]] = []
    acknowledged: set[int] = set()
    for what, first, rows, us in lines:
        numbers = range(first, first + rows)
        if what == ACKNOWLEDGED:
            acknowledged.update(numbers)
        else:
            handed += [(number, us) for number in numbers]
    return Log(handed, acknowledged, max((us for *_, us in lines), default=0))


def expected(chunk: Records, row: int) -> bool:
    """Tell whether a record is what was handed over under its number."""
    number = chunk.first_sequence + row
    return (
        chunk.transaction_id[row] == name_of(number)
        and int(chunk.cents[row]) == number * 3
        and int(chunk.fingerprint[row]) == number * 7 + (1 << 63)
        and float(chunk.features[row, 14]) == float(number)
    )


def start(state: Path, *, sync: str) -> EmbeddedRedis:
    """Start Redis on its data."""
    server = EmbeddedRedis(state)
    server.__enter__()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendfsync", sync)
    return server


def run(
    *, kills: int, seed: int, folder: Path, sync: str = "always", busy: int = 0
) -> dict[str, object]:
    """Do it; what was found."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(busy)
    ]
    try:
        found = kill_all(kills, random.Random(seed), folder=folder, sync=sync)
    finally:
        for one in spinning:
            one.kill()
            one.wait()
    return {"sync": sync, "busy": busy, "kills": kills, **found}


def kill_all(
    kills: int, chance: random.Random, *, folder: Path, sync: str
) -> dict[str, object]:
    """Kill so many writers; what was found."""
    state, spool, logs = folder / "state", folder / "spool", folder / "logs"
    logs.mkdir()
    server = start(state, sync=sync)
    url = server.url
    outages: set[str] = set()  # writers that lost their Redis
    for _ in range(kills):
        child = subprocess.Popen(
            [sys.executable, __file__, "--write", url, str(spool), str(logs)],
            stdout=subprocess.PIPE,
            env=checkout_environment(),
        )
        assert child.stdout is not None
        name = child.stdout.readline().decode().strip()
        time.sleep(chance.uniform(0.0, 0.3))
        if chance.random() < 1 / 3:
            os.kill(server.pid, 9)
            outages.add(name)
            time.sleep(chance.uniform(0.0, 0.3))
            server.stop()
            if chance.random() < 1 / 2:
                child.kill()
            server = start(state, sync=sync)
            time.sleep(chance.uniform(0.0, 1.0))
        child.kill()
        child.communicate()
    last = open_one(url, spool)
    last.log_to(logs / last.writer)
    wait_until(lambda: not segments(spool) and len(list(spool.glob("*.mark"))) == 1)
    last.close()
    found = judge(url, logs, outages)
    server.stop()
    return {"redis_kills": len(outages), **found}


def judge(url: str, logs: Path, outages: set[str]) -> dict[str, object]:
    """Compare logs and stream."""
    seen: Counter[tuple[str, int]] = Counter()
    different = 0
    for chunk in chunks_in(url):
        for row in range(len(chunk)):
            seen[chunk.writer, chunk.first_sequence + row] += 1
            different += not expected(chunk, row)
    ends = {end.writer: end for end in ends_in(url)}
    handed = acknowledged = lost = untold = 0
    ages_ms: dict[bool, list[float]] = {False: [], True: []}  # was Redis away?
    for path in sorted(logs.iterdir()):
        log = read_log(path)
        handed += len(log.handed)
        acknowledged += len(log.acknowledged)
        lost += sum((path.name, number) not in seen for number in log.acknowledged)
        ages_ms[path.name in outages] += [
            (log.last_us - us) / 1e3
            for number, us in log.handed
            if (path.name, number) not in seen
        ]
        end = ends.get(path.name)
        # A kill may come between a record's number and the line in our log.
        reported = end is not None and 0 <= end.sequence - len(log.handed) <= BATCH_ROWS
        untold += not reported
    return {
        "handed_over": handed,
        "acknowledged": acknowledged,
        "acknowledged_lost": lost,
        "sent_more_than_once": sum(number > 1 for number in seen.values()),
        "different": different,
        "writers_without_end": untold,
        "missing_by_number": sum(end.sequence for end in ends.values()) - len(seen),
        **ages(ages_ms[False], "missing"),
        **ages(ages_ms[True], "missing_in_outage"),
    }


def ages(found_ms: list[float], name: str) -> dict[str, object]:
    """Say how many records are missing, and how long they had waited."""
    return {
        name: len(found_ms),
        f"{name}_older_than_10_ms": sum(age_ms > 10 for age_ms in found_ms),
        f"{name}_oldest_ms": round(max(found_ms, default=0.0), 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync", choices=("always", "everysec"), default="always")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--write", nargs=3, metavar=("URL", "SPOOL", "LOGS"))
    given = parser.parse_args()
    if given.write:
        write(given.write[0], Path(given.write[1]), Path(given.write[2]))
    else:
        with tempfile.TemporaryDirectory(prefix="kill-") as name:
            print(
                json.dumps(
                    run(
                        kills=given.kills,
                        seed=given.seed,
                        folder=Path(name),
                        sync=given.sync,
                        busy=given.busy,
                    )
                )
            )
