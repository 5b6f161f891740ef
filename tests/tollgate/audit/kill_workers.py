"""
Kill journal workers at random moments, and count what is in the journal.

    python tests/tollgate/audit/kill_workers.py --kills 100

A real Redis, several writers whose chunks come twice now and then, and lose some;
one worker at a time, killed with SIGKILL while it works. At the end every record that
the stream took must be sealed once, what never came must be known by its numbers, and
the chain must prove itself against its anchor. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
import redis

from tests.support.audit.random_records import REPOSITORY, made
from tests.support.checkout import checkout_environment
from tollgate.audit.chain.anchor import AnchorFile, read_anchor
from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.verification import verify
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.worker.audit_worker import JournalWorker
from tollgate.audit.worker.chunk_source import ChunkSource
from tollgate.audit.worker.late_checks import flag_new
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sealing import Sealer
from tollgate.journal.decision_record import encode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.server.processes.redis_server import EmbeddedRedis

SEAL_ROWS = 300  # small, so that most kills hit a seal
STREAM = stream_key("fraud")


def work(url: str, folder: Path) -> None:
    """Seal until the stream is empty; runs in a separate process."""
    chain = Chain(
        folder / "journal", product="fraud", anchor=AnchorFile(folder / "anchor")
    )
    releases = ReleaseArchive(chain, repository=REPOSITORY)
    sealer = Sealer(chain, subjects=Subjects(folder / "keys"), releases=releases)
    source = ChunkSource(url, product="fraud")
    worker = JournalWorker(
        source,
        sealer,
        chain=chain,
        seal_rows=SEAL_ROWS,
        seal_s=0.05,
        on_sealed=lambda: flag_new(chain, releases) and None,
    )
    print("ready", flush=True)
    worker.run(threading.Event(), until_idle_s=0.5)
    print(json.dumps({"sealed": worker.tally.records}), flush=True)


def start(url: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a worker and wait until it works."""
    arguments = [sys.executable, __file__, "--work", url, str(folder)]
    child = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, env=checkout_environment()
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


def fill(
    client: redis.Redis, chance: random.Random, *, rows: int
) -> tuple[set[tuple[str, int]], int]:
    """
    Put chunks on the stream as four writers would.

    Returns:
        The records that it took, and how many were numbered and never sent, with a
        later one behind them.
    """
    sent: set[tuple[str, int]] = set()
    lost = 0
    writers = {f"{number:016x}": 0 for number in range(4)}
    while len(sent) < rows:
        writer = chance.choice(list(writers))
        first, size = writers[writer], chance.randrange(1, 64)
        writers[writer] += size
        if chance.random() < 0.02:  # a writer that had to drop some
            continue
        raw = encode_chunk(made(size, writer=writer, first=first))
        client.xadd(STREAM, {CHUNK_FIELD: raw})
        if chance.random() < 0.05:  # its reply was lost, and it sent them again
            client.xadd(STREAM, {CHUNK_FIELD: raw})
        sent |= {(writer, first + row) for row in range(size)}
    for writer in writers:
        highest = max(number for name, number in sent if name == writer)
        lost += highest + 1 - sum(name == writer for name, _ in sent)
    return sent, lost


def run(*, kills: int, rows: int, seed: int = 0) -> dict[str, Any]:
    """Kill workers while they seal; return the counts."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(EmbeddedRedis(home))
        client = redis.Redis.from_url(server.url)
        sent, lost = fill(client, chance, rows=rows)
        at_work = 0
        for _ in range(kills):
            child = start(server.url, folder)
            time.sleep(chance.uniform(0, 0.8))
            child.kill()
            at_work += not child.communicate()[0]
        last = start(server.url, folder)
        counts = json.loads(last.communicate()[0])
        waiting = client.xpending(STREAM, "journal")["pending"]
        left = client.xlen(STREAM)
        proof = verify(folder / "journal", marks=read_anchor(folder / "anchor"))
        tables = sorted((folder / "journal").glob("*.segment.parquet"))
        sealed = pl.concat(
            [pl.read_parquet(one, columns=["writer", "sequence"]) for one in tables]
        )
    rows_sealed = list(sealed.iter_rows())
    return {
        "records": len(sent),
        "kills": kills,
        "killed_at_work": at_work,
        "segments": len(tables),
        "left_to_the_last": counts["sealed"],
        "sealed": len(rows_sealed),
        "lost": len(sent - set(rows_sealed)),
        "doubled": len(rows_sealed) - len(set(rows_sealed)),
        "never_sent": lost,
        "known_as_missing": sum(proof.missing.values()),
        "findings": list(map(str, proof.findings)),
        "unacknowledged": waiting,
        "left_in_stream": left,
    }


def valid(counts: dict[str, Any]) -> bool:
    """Return whether no record was lost or doubled."""
    return (
        counts["sealed"] == counts["records"]
        and counts["lost"] == counts["doubled"] == counts["unacknowledged"] == 0
        and counts["known_as_missing"] == counts["never_sent"]
        and not counts["findings"]
    )


def main() -> None:
    """Read the arguments and print the counts."""
    if "--work" in sys.argv:
        work(sys.argv[2], Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    counts = run(**vars(parser.parse_args()))
    print(json.dumps(counts, indent=2))
    sys.exit(0 if valid(counts) else 1)


if __name__ == "__main__":
    main()
