"""The journal worker with a real stream."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import redis

from tests.support.audit.random_records import REPOSITORY, made
from tests.tollgate.audit.kill_workers import run, valid
from tollgate.audit.chain.verification import verify
from tollgate.audit.worker import audit_worker
from tollgate.audit.worker.audit_worker import JournalWorker
from tollgate.audit.worker.chunk_source import ChunkSource
from tollgate.errors import JournalError, StoreError
from tollgate.journal.decision_record import encode_chunk
from tollgate.journal.stream_entries import (
    CHUNK_FIELD,
    END_FIELD,
    End,
    encode_end,
    stream_key,
)

Open = Callable[..., Any]

STREAM = stream_key("fraud")


class KilledError(BaseException):
    """Simulates SIGKILL."""


def send(client: redis.Redis, *chunks: bytes) -> None:
    """Add chunks to the stream."""
    for chunk in chunks:
        client.xadd(STREAM, {CHUNK_FIELD: chunk})


def work(
    journal: Any, url: str, *, on_step: Callable[[str], None] | None = None
) -> Any:
    """Seal everything in the stream; return the worker."""
    worker = JournalWorker(
        ChunkSource(url, product="fraud"),
        journal.sealer,
        chain=journal.chain,
        seal_s=0.05,
        on_step=on_step or (lambda step: None),
    )
    worker.run(threading.Event(), until_idle_s=0.1)
    return worker


def test_sealed_records_leave_the_stream(
    open_journal: Open, store_url: str, redis_client: redis.Redis
) -> None:
    """Every record is sealed; no plain id remains in Redis."""
    send(redis_client, *(encode_chunk(made(7, first=7 * one)) for one in range(9)))
    journal = open_journal()
    worker = work(journal, store_url)
    assert worker.tally.records == 63
    assert redis_client.xlen(STREAM) == 0
    assert redis_client.xpending(STREAM, "journal")["pending"] == 0
    proof = verify(journal.folder, marks=journal.marks())
    assert (proof.findings, proof.records) == ([], 63)


def test_details_limit_a_segment(
    open_journal: Open,
    store_url: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sealed as they were sent; a segment of large records has fewer of them."""
    monkeypatch.setattr(audit_worker, "_POLLED", 2)
    monkeypatch.setattr(audit_worker, "SEAL_DETAILS_BYTES", 5_000)
    sent = [made(7, first=7 * one, details=True) for one in range(9)]
    send(redis_client, *map(encode_chunk, sent))
    journal = open_journal()
    work(journal, store_url)
    paths = sorted(journal.folder.glob("*.segment.parquet"))
    assert [len(pl.read_parquet(path)) for path in paths] == [14, 14, 14, 14, 7]
    found = [text for path in paths for text in pl.read_parquet(path)["details"]]
    assert found == [text for one in sent for text in one.details]
    proof = verify(journal.folder, marks=journal.marks())
    assert (proof.findings, proof.records) == ([], 63)


def test_entries_of_another_group_stay(
    open_journal: Open, store_url: str, redis_client: redis.Redis
) -> None:
    """Entries that another group has not acknowledged remain."""
    send(redis_client, *(encode_chunk(made(2, first=2 * one)) for one in range(5)))
    redis_client.xgroup_create(STREAM, "others", id="0")
    redis_client.xreadgroup("others", "one", {STREAM: ">"}, count=3)
    entries = [entry for entry, _ in redis_client.xrange(STREAM)]
    redis_client.xack(STREAM, "others", *entries[:2])
    work(open_journal(), store_url)
    assert [entry for entry, _ in redis_client.xrange(STREAM)] == entries[2:]


@pytest.mark.parametrize("step", ["sealed", "acknowledged"])
def test_kill_around_the_acknowledgement_loses_nothing(
    open_journal: Open, store_url: str, redis_client: redis.Redis, step: str
) -> None:
    """The next worker may get the entries again; each record is sealed once."""
    send(redis_client, encode_chunk(made(7)), encode_chunk(made(7, first=7)))

    def kill(reached: str) -> None:
        if reached == step:
            raise KilledError

    with pytest.raises(KilledError):
        work(open_journal(), store_url, on_step=kill)
    send(redis_client, encode_chunk(made(7, first=14)))
    journal = open_journal()
    worker = work(journal, store_url)
    assert worker.tally.records == 7
    assert journal.sealer.doubled == (14 if step == "sealed" else 0)
    proof = verify(journal.folder, marks=journal.marks())
    assert (proof.findings, proof.records, proof.missing) == ([], 21, {})


def test_damaged_chunk_becomes_a_dead_letter(
    open_journal: Open, store_url: str, redis_client: redis.Redis
) -> None:
    """Damaged, empty, of another product: stored with a reason; the rest is sealed."""
    damaged = bytearray(encode_chunk(made(3)))
    damaged[-1] ^= 1
    send(redis_client, bytes(damaged), b"", encode_chunk(made(3)))
    worker = work(open_journal(), store_url)
    assert (worker.tally.dead_letters, worker.tally.records) == (2, 3)
    (first, second) = redis_client.xrange(STREAM + b":dead-letters")
    assert first[1][CHUNK_FIELD] == bytes(damaged)
    assert b"checksum" in first[1][b"reason"]
    assert b"foreign" in second[1][b"reason"]


def test_records_of_a_killed_writer_count_as_lost(
    open_journal: Open, store_url: str, redis_client: redis.Redis
) -> None:
    """Its end gives the count of its numbers; those without a record are lost."""
    send(redis_client, encode_chunk(made(7)))
    for end in (End(made(1).writer, 10, killed=True), End("e" * 16, 2, killed=True)):
        redis_client.xadd(STREAM, {END_FIELD: encode_end(end)})
        redis_client.xadd(STREAM, {END_FIELD: encode_end(end)})
    journal = open_journal()
    work(journal, store_url)
    (link,) = journal.chain.alive("ends")
    assert [(one.first, one.last) for one in link.gaps] == [(7, 9), (0, 1)]
    proof = verify(journal.folder, marks=journal.marks())
    assert proof.findings == []
    assert proof.missing == {made(1).writer: 3, "e" * 16: 2}


def test_group_feeds_one_chain(
    open_journal: Open, store_url: str, redis_client: redis.Redis
) -> None:
    """A second folder with the same group would split the decisions: refused."""
    journal = open_journal()
    work(journal, store_url)
    shutil.rmtree(journal.folder)
    (journal.home / "journal.anchor").unlink()
    with pytest.raises(JournalError, match="the group journal feeds chain"):
        work(open_journal(), store_url)


def test_redis_detects_a_cut_chain(
    open_journal: Open, store_url: str, redis_client: redis.Redis
) -> None:
    """Also if the anchor was cut with it."""
    send(redis_client, encode_chunk(made(3)))
    journal = open_journal()
    work(journal, store_url)
    last = sorted(journal.folder.glob("[0-9]*.json"))[-1]
    for path in journal.folder.glob(f"{last.stem}*"):
        path.unlink()
    (journal.home / "journal.anchor").unlink()
    with pytest.raises(JournalError, match="Redis has a link 3 that is not"):
        work(open_journal(), store_url)


def test_lost_group_is_created_again(
    open_journal: Open, store_url: str, redis_client: redis.Redis
) -> None:
    """The group disappears while a worker runs: nothing is doubled."""
    chunks = [encode_chunk(made(3, first=3 * one)) for one in range(3)]
    send(redis_client, *chunks[:2])
    journal = open_journal()
    source = ChunkSource(store_url, product="fraud")
    assert len(source.poll(most=10, wait_s=0.1)) == 2
    redis_client.flushall()
    send(redis_client, *chunks)
    with pytest.raises(StoreError, match="NOGROUP"):
        source.poll(most=10, wait_s=0.1)
    taken = source.poll(most=10, wait_s=0.1)
    assert [one.chunk for one in taken] == chunks
    worker = work(journal, store_url)
    assert worker.tally.records == 9


def test_documented_redis_rights_suffice(
    open_journal: Open, store_url: str, redis_client: redis.Redis
) -> None:
    """A user with these commands on these keys can seal; without one it cannot."""
    paper = (REPOSITORY.parent / "docs" / "audit.md").read_text()
    (line,) = re.findall(r"`(ACL SETUSER .*)`", paper)
    send(redis_client, encode_chunk(made(3)), b"no chunk")
    command = line.replace("PRODUCT", "fraud").replace("PASSWORD", "secret").split()
    redis_client.execute_command(*command)
    url = store_url.replace("unix://", f"unix://{command[2]}:secret@")
    try:
        worker = work(open_journal(), url)
    finally:
        redis_client.execute_command("ACL", "DELUSER", command[2])
    assert (worker.tally.records, worker.tally.dead_letters) == (3, 1)
    assert worker.tally.retries == 0
    assert redis_client.xlen(STREAM) == 0


@pytest.mark.slow
def test_killed_workers_lose_and_double_nothing() -> None:
    """Five are killed at work; each record is sealed once, each loss is known."""
    counts = run(kills=5, rows=20_000)
    assert counts["killed_at_work"] > 0
    assert valid(counts), counts
