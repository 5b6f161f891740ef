"""The journal's thread outlives what nobody foresaw, and loses no record to it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.journal.numbered_decisions import (
    HEADING,
    KEY,
    ids_in,
    name_of,
    rows_of,
    wait_until,
    writer_of,
)
from tollgate.errors import JournalError
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.journal_rows import pack
from tollgate.journal.journal_spool import JournalSpool
from tollgate.journal.journal_stream import JournalStream
from tollgate.journal.journal_writer import Delivery
from tollgate.repair.spool_segments import SegmentFile, SegmentHeader, frame, segments
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.redis.redis_store import Command
from tollgate.worker import tallies


def sealed_by_hand(version: int, body: bytes) -> bytes:
    """Seal bytes as docs/journal.md says: magic, version, length, CRC-32, body."""
    head = struct.pack("<4sBII", b"TGJR", version, 13 + len(body), zlib.crc32(body))
    return head + body


FOREIGN = [
    b"what nobody wrote",
    b"",
    sealed_by_hand(2, b"of a version that is to come"),
    sealed_by_hand(1, b""),
    sealed_by_hand(1, b"\xff" * 200),
    # Names that are no UTF-8, and a width that fits no array.
    sealed_by_hand(
        1, struct.pack("<8sQQIHHI", b"w" * 8, 0, 0, 1, 9, 9, 3) + b"\xff" * 9
    ),
]


def no_commands(records: object, now_us: int) -> Sequence[Command]:
    """Make no extra command for a chunk; the chunk is read all the same."""
    return ()


def chunk(first: int) -> bytes:
    """Make a sound chunk of two decisions, of a writer that is gone."""
    return pack(
        [(first, rows_of(first, 2))],
        HEADING,
        writer="ab" * 8,
        extra_commands=no_commands,
    ).raw


def raw_chunks(url: str) -> list[bytes]:
    """Read all chunks of the stream as they are."""
    with redis.Redis.from_url(url) as client:
        return [entry[b"c"] for _, entry in client.xrange(KEY) if b"c" in entry]


@pytest.mark.parametrize("raw", FOREIGN, ids=lambda raw: repr(raw[:12]))
def test_no_bytes_are_more_than_an_error_of_ours(raw: bytes) -> None:
    """Who reads a chunk has one error to expect."""
    with pytest.raises(JournalError):
        decode_chunk(raw)


def test_a_spooled_chunk_of_another_format_holds_nothing_up(tmp_path: Path) -> None:
    """Those before and after it arrive, later decisions too, and it is not lost."""
    folder = tmp_path / "spool"
    folder.mkdir()
    left = SegmentFile(
        folder / f"{1:019d}-1-0.spool", SegmentHeader("fraud", "", "", 0)
    )
    raws = [chunk(0), *FOREIGN, chunk(2)]
    left.write([frame(number, raw) for number, raw in enumerate(raws)])
    left.close()
    with EmbeddedRedis(tmp_path / "redis") as server:
        writer = writer_of(server.url, folder, extra_commands=no_commands)
        wait_until(lambda: not segments(folder))
        writer.append(rows_of(4, 2))
        wait_until(lambda: writer.counts.buffered == 0)
        wait_until(lambda: writer.counts.unreadable == len(FOREIGN))
        writer.close()
        assert writer.counts.written == 2
        assert raw_chunks(server.url)[: len(raws)] == raws
        sound = [raw for raw in raw_chunks(server.url) if raw not in FOREIGN]
        found = [name for raw in sound for name in decode_chunk(raw).transaction_id]
        assert found == [name_of(number) for number in range(6)]
    assert not list(folder.glob("*.unreadable"))


class Broken:
    """Makes a method raise what nobody foresaw, a number of times."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, times: int
    ) -> None:
        self.left = times
        whole = getattr(owner, name)

        def method(*args: Any, **named: Any) -> Any:
            if self.left:
                self.left -= 1
                if self.left % 2:
                    whole(*args, **named)  # it is done, and then it fails
                raise IndexError("unforeseen")
            return whole(*args, **named)

        monkeypatch.setattr(owner, name, method)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (JournalStream, "send"),
        (JournalStream, "collect"),
        (JournalStream, "room"),
        (Delivery, "_send"),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_no_record_is_lost_to_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Each record is in the stream, once for a reader that counts its number once."""
    before = tallies().get("journal")
    with EmbeddedRedis(tmp_path / "redis") as server:
        writer = writer_of(server.url, tmp_path / "spool")
        broken = Broken(monkeypatch, owner, name, times=4)
        for at in range(50):
            writer.append(rows_of(at * 2, 2))
        wait_until(lambda: broken.left == 0 and writer.counts.buffered == 0)
        wait_until(lambda: not segments(tmp_path / "spool"))
        writer.append(rows_of(100, 1))
        wait_until(lambda: writer.counts.buffered == 0)
        writer.close()
        assert sorted(ids_in(server.url)) == [name_of(number) for number in range(101)]
        assert writer.counts.dropped == 0
    counted = tallies()["journal"].errors - (before.errors if before else 0)
    assert counted == 4


def test_a_spool_that_fails_costs_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draining raises what nobody foresaw: new decisions are written all the same."""

    def drain(*args: object, **named: object) -> bool:
        raise KeyError("unforeseen")

    monkeypatch.setattr(JournalSpool, "drain", drain)
    with EmbeddedRedis(tmp_path / "redis") as server:
        writer = writer_of(server.url, tmp_path / "spool")
        for at in range(4):
            writer.append(rows_of(at, 1))
            wait_until(lambda: writer.counts.buffered == 0)
        writer.close()
        assert ids_in(server.url) == [name_of(number) for number in range(4)]
