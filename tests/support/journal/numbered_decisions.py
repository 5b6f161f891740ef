"""Decisions with numbered ids, and what a stream holds of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import redis

from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.journal.journal_rows import CommandBuilder, Heading, Rows
from tollgate.journal.journal_spool import MOST_BYTES, JournalSpool
from tollgate.journal.journal_stream import MOST_STREAM_BYTES, JournalStream
from tollgate.journal.journal_writer import GATHER_S, MOST_ROWS, JournalWriter
from tollgate.journal.mark import Mark
from tollgate.journal.stream_entries import End, stream_key
from tollgate.schema import context_dtype
from tollgate.store.redis.pipelined_connection import open_pipeline

HEADING = Heading(
    product="fraud",
    release="fraud-1",
    spec_hash=0xC36F8242C6FA0068,
    entities=("customer", "terminal"),
    fields=("channel",),
)
KEY = stream_key("fraud")
CONTEXT = context_dtype(HEADING.entities, HEADING.fields)
PATIENCE_S = 600.0


def name_of(number: int) -> bytes:
    """Name the transaction of a number."""
    return b"t%08d" % number


def rows_of(first: int, count: int) -> Rows:
    """Make decisions number `first` and on; all that is in them hangs on the number."""
    numbers = np.arange(first, first + count)
    context = np.zeros(count, CONTEXT)
    for slot in ("transaction", "customer", "terminal"):
        texts = [name_of(number) + slot[:1].encode() for number in numbers.tolist()]
        texts = [text[:-1] if slot == "transaction" else text for text in texts]
        context[f"{slot}_id"] = np.array(texts, "S128").view("V128")
        context[f"{slot}_id_length"] = [len(text) for text in texts]
    context["cents"] = numbers * 3
    context["event_time_us"] = numbers + 1_700_000_000_000_000
    context["fingerprint"] = numbers.astype(np.uint64) * 7 + (1 << 63)
    context["features_us"] = 500
    context["applied"] = 1
    context["field_channel"] = -numbers
    fraud = (numbers % 100 / 100).astype(np.float32)
    return Rows(
        decided_us=time.time_ns() // 1000,
        context=context.tobytes(),
        features=np.repeat(numbers[:, None], 15, axis=1).astype(np.float32),
        probabilities=np.stack([1 - fraud, fraud], axis=1),
        score=fraud,
        degraded=(numbers % 4).astype(np.uint32),
        decision=(numbers % 3).astype(np.uint8),
        reason_codes=np.full(count, b"SCORE_REVIEW", np.object_),
        rules=(numbers % 8).astype(np.uint64),
        began_us=6_000,
        decision_us=120,
    )


RICH = msgspec.structs.replace(HEADING, details=True)


def details_of(number: int) -> bytes:
    """Make the details of a decision: about 3 KB that hang on its number."""
    return b"%08d" % number * (370 + number % 7)


def rich_rows_of(first: int, count: int) -> Rows:
    """Make decisions of a product with details."""
    details = [details_of(number) for number in range(first, first + count)]
    return msgspec.structs.replace(rows_of(first, count), details=details)


def writer_of(
    url: str,
    folder: Path | None,
    *,
    most_rows: int = MOST_ROWS,
    gather_s: float = GATHER_S,
    extra_commands: CommandBuilder | None = None,
    most_stream_bytes: int = MOST_STREAM_BYTES,
    most_spool_bytes: int = MOST_BYTES,
    deadline_s: float = 1.0,
    heading: Heading = HEADING,
) -> JournalWriter:
    """Open a writer, with a spool and a mark if there is a folder."""
    spool = mark = None
    if folder is not None:
        spool = JournalSpool(folder, product="fraud", most_bytes=most_spool_bytes)
        mark = Mark(folder, heading)
    line = open_pipeline(url, deadline_s=deadline_s)
    return JournalWriter(
        heading,
        JournalStream("fraud", line, most_bytes=most_stream_bytes),
        spool=spool,
        mark=mark,
        extra_commands=extra_commands,
        most_rows=most_rows,
        gather_s=gather_s,
    )


def chunks_in(url: str) -> list[Records]:
    """Read all chunks of the stream, in order."""
    with redis.Redis.from_url(url) as client:
        entries = client.xrange(KEY)
    return [decode_chunk(entry[b"c"]) for _, entry in entries if b"c" in entry]


def ends_in(url: str) -> list[End]:
    """Read what writers came to, in order."""
    with redis.Redis.from_url(url) as client:
        entries = client.xrange(KEY)
    return [
        msgspec.msgpack.decode(entry[b"e"], type=End)
        for _, entry in entries
        if b"e" in entry
    ]


def ids_in(url: str) -> list[bytes]:
    """Read all transaction ids, in order; as a reader does, each number once."""
    found: dict[tuple[str, int], bytes] = {}
    for chunk in chunks_in(url):
        for row, name in enumerate(chunk.transaction_id):
            number = chunk.writer, chunk.first_sequence + row
            assert found.setdefault(number, name) == name
    return list(found.values())


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, "it never did"
        time.sleep(0.01)
