"""A mark gives the next writer the rows of a dead one that may not be durable."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import struct
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.journal.numbered_decisions import (
    HEADING,
    RICH,
    chunks_in,
    details_of,
    ends_in,
    rich_rows_of,
    rows_of,
    wait_until,
    writer_of,
)
from tollgate.journal import mark as mark_module
from tollgate.journal.decision_record import encode_chunk
from tollgate.journal.journal_opening import open_writer
from tollgate.journal.journal_rows import Rows, encode_rows, to_records
from tollgate.journal.mark import Mark, dead_marks
from tollgate.server.processes.redis_server import EmbeddedRedis

ENTRY_BYTES = 4 + len(encode_rows(1_000, rows_of(1_000, 4)))


def packed(rows: Rows, first: int) -> bytes:
    """Pack rows into the chunk that a journal would have of them."""
    return encode_chunk(
        to_records([rows], HEADING, writer="0" * 16, first_sequence=first)
    )


def left_in(mark: Mark, folder: Path) -> list[int]:
    """Close a mark, and list the first number of each batch in it."""
    mark.close(end_stored=False)
    (dead,) = dead_marks(folder)
    for first, rows in dead.rows:
        saved = replace(rows_of(first, len(rows)), decided_us=rows.decided_us)
        assert packed(rows, first) == packed(saved, first)
    return [first for first, _ in dead.rows]


def filled(folder: Path, batches: int, *, half: float, durable: int = 0) -> Mark:
    """Save batches of four, of which the oldest become durable as soon as possible."""
    mark = Mark(folder, HEADING, half_bytes=int(half * ENTRY_BYTES))
    for batch in range(batches):
        mark.save(4 * batch, rows_of(4 * batch, 4))
        mark.set(4 * batch + 4)
        mark.release(4 * min(durable, batch + 1))
    return mark


def test_rows_are_there_until_they_are_durable(tmp_path: Path) -> None:
    """Those that are released are not sent again."""
    mark = filled(tmp_path, 5, half=100, durable=3)
    assert left_in(mark, tmp_path) == [12, 16]


def test_the_second_half_takes_the_rows_that_the_first_has_no_room_for(
    tmp_path: Path,
) -> None:
    """In their order, whichever half is the older one."""
    assert left_in(filled(tmp_path, 5, half=3.5), tmp_path) == [0, 4, 8, 12, 16]


def test_room_of_durable_rows_is_used_again(tmp_path: Path) -> None:
    """A hundred batches pass through a buffer for six."""
    assert left_in(filled(tmp_path, 100, half=3.5, durable=98), tmp_path) == [392, 396]


def test_rows_without_room_are_reported(tmp_path: Path) -> None:
    """They are in memory only; the others are whole, and so is the number."""
    mark = filled(tmp_path, 6, half=3.5)
    assert not mark.save(24, rows_of(24, 4))
    mark.set(28)
    assert not Mark(tmp_path, HEADING, half_bytes=100).save(0, rows_of(0, 4))
    mark.close(end_stored=False)
    dead = next(one for one in dead_marks(tmp_path) if one.rows)
    assert [first for first, _ in dead.rows] == [0, 4, 8, 12, 16, 20]
    assert dead.end.sequence == 28


def test_what_cannot_be_read_is_a_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The end is known nevertheless, and the log says what is missing."""
    mark = filled(tmp_path, 2, half=100)
    mark.close(end_stored=False)
    (path,) = tmp_path.glob("*.mark")
    with path.open("r+b") as file:
        file.seek(4096 + 4)
        file.write(b"\xc1" * 40)
    with caplog.at_level(logging.ERROR):
        (dead,) = dead_marks(tmp_path)
    assert dead.rows is None
    assert dead.end.sequence == 8
    assert mark.writer in caplog.text


def test_a_mark_without_a_buffer_has_an_end(tmp_path: Path) -> None:
    """Marks of earlier versions have 17 bytes."""
    old = struct.pack("<8sQB", bytes.fromhex("ab" * 8), 12, 0)
    (tmp_path / f"{'ab' * 8}.mark").write_bytes(old)
    (dead,) = dead_marks(tmp_path)
    assert (dead.end.writer, dead.end.sequence, dead.end.killed) == ("ab" * 8, 12, True)
    assert not dead.rows


def test_the_next_writer_sends_the_rows_and_the_end(tmp_path: Path) -> None:
    """In that order, so that a reader of the end misses nothing."""
    spool = tmp_path / "spool"
    spool.mkdir()
    dead = filled(spool, 3, half=100, durable=1)
    dead.close(end_stored=False)
    with EmbeddedRedis(tmp_path / "state") as server:
        writer = writer_of(server.url, spool)
        wait_until(lambda: len(list(spool.glob("*.mark"))) == 1)
        writer.close()
        sent = [one for one in chunks_in(server.url) if one.writer == dead.writer]
        ends = [one for one in ends_in(server.url) if one.writer == dead.writer]
    assert [(one.first_sequence, len(one)) for one in sent] == [(4, 8)]
    assert [one.sequence for one in ends] == [12]
    assert not list(spool.glob("*.mark"))


def test_details_survive_a_kill(tmp_path: Path) -> None:
    """The rows of a dead writer are sent with the details that they had."""
    spool = tmp_path / "spool"
    spool.mkdir()
    dead = Mark(spool, RICH)
    for batch in range(3):
        assert dead.save(32 * batch, rich_rows_of(32 * batch, 32))
    dead.set(96)
    dead.close(end_stored=False)
    with EmbeddedRedis(tmp_path / "state") as server:
        writer = writer_of(server.url, spool, heading=RICH)
        wait_until(lambda: len(list(spool.glob("*.mark"))) == 1)
        writer.close()
        sent = [one for one in chunks_in(server.url) if one.writer == dead.writer]
    assert [text for one in sent for text in one.details] == [
        details_of(number) for number in range(96)
    ]


def test_a_mark_has_room_for_1_400_records_with_details(tmp_path: Path) -> None:
    """About 3 KB each, besides ids and vector; without details it has more."""
    counts = {}
    for name, make in (("rich", rich_rows_of), ("plain", rows_of)):
        mark = Mark(tmp_path, HEADING)
        batches = itertools.count()
        while mark.save(32 * (at := next(batches)), make(32 * at, 32)):
            pass
        counts[name] = 32 * at
        mark.close(end_stored=True)
    assert 1_400 < counts["rich"] < 2_200
    assert counts["plain"] > 6_000


@pytest.mark.parametrize("damage", ["heading", "version", "rows"])
def test_rows_of_another_version_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """The writer that finds them goes on, and sends the end: a gap, and no loop."""
    spool = tmp_path / "spool"
    spool.mkdir()
    heading = replace(HEADING, entities=("card",)) if damage == "heading" else HEADING
    with monkeypatch.context() as patch:
        if damage == "version":
            patch.setattr(mark_module, "CONTEXT_VERSION", 1)
        dead = Mark(spool, heading, half_bytes=100 * ENTRY_BYTES)
    dead.save(0, rows_of(0, 4))
    dead.set(4)
    dead.close(end_stored=False)
    if damage == "rows":
        with (spool / f"{dead.writer}.mark").open("r+b") as file:
            file.seek(4096 + 4)
            file.write(b"\xc1" * 40)
    with EmbeddedRedis(tmp_path / "state") as server:
        writer = writer_of(server.url, spool)
        writer.append(rows_of(0, 4))
        wait_until(lambda: bool(list(spool.glob("*.unreadable"))))
        writer.append(rows_of(4, 4))
        writer.close()
        sent = {one.writer for one in chunks_in(server.url)}
        ends = {one.writer: one.sequence for one in ends_in(server.url)}
    assert sent == {writer.writer}
    assert ends == {dead.writer: 4, writer.writer: 8}
    assert [one.name for one in spool.iterdir()] == [f"{dead.writer}.mark.unreadable"]


def test_a_disk_without_room_costs_the_mark_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer works without; writing to a mapped page of a full disk would kill it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with EmbeddedRedis(tmp_path / "state") as server:
        writer = open_writer(server.url, HEADING, folder=str(tmp_path / "spool"))
        assert writer.append(rows_of(0, 4))
        writer.close()
        assert sum(map(len, chunks_in(server.url))) == 4
    assert "No space left on device" in caplog.text
    assert not list((tmp_path / "spool").rglob("*mark"))
