"""Chunks arrive although their acknowledgement does not, each at least once."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import redis

from tests.support.journal.numbered_decisions import (
    KEY,
    ids_in,
    name_of,
    rows_of,
    wait_until,
    writer_of,
)
from tollgate.journal.journal_stream import JournalStream
from tollgate.repair.spool_segments import segments
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.processes.socket_path import short_socket_path
from tollgate.store.redis.pipelined_connection import open_pipeline


def names(count: int) -> list[bytes]:
    """Name the first transactions."""
    return [name_of(number) for number in range(count)]


def test_records_leave_the_process_before_older_ones_are_acknowledged(
    tmp_path: Path,
) -> None:
    """A Redis that reads and does not answer gets each chunk as it is made."""
    with (
        short_socket_path(tmp_path / "silent.sock") as path,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(str(path))
        listener.listen()
        writer = writer_of(f"unix://{path}", None, deadline_s=60.0)
        writer.append(rows_of(0, 1))
        peer, _ = listener.accept()
        with peer:
            heard = b""
            for number in range(5):
                while name_of(number) not in heard:
                    heard += peer.recv(65_536)
                writer.append(rows_of(number + 1, 1))
            assert writer.counts.written == 0
            assert writer.counts.buffered >= 5
    writer.close()
    assert writer.counts.buffered == 0


def test_a_stream_that_is_late_gets_its_chunks_again(tmp_path: Path) -> None:
    """They go to the spool; a reader that counts each number once has them all."""
    folder = tmp_path / "spool"
    with EmbeddedRedis(tmp_path / "redis") as server:
        writer = writer_of(server.url, folder, deadline_s=0.05)
        writer.append(rows_of(0, 3))
        wait_until(lambda: writer.counts.buffered == 0)
        os.kill(server.pid, signal.SIGSTOP)
        writer.append(rows_of(3, 3))
        wait_until(lambda: writer.counts.spooled >= 3)
        writer.append(rows_of(6, 3))
        wait_until(lambda: writer.counts.buffered == 0)
        os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: not segments(folder))
        writer.close()
        assert sorted(ids_in(server.url)) == names(9)
        assert writer.counts.dropped == 0


def test_a_broken_connection_costs_no_record(tmp_path: Path) -> None:
    """Redis drops the writer again and again while it writes."""
    with EmbeddedRedis(tmp_path / "redis") as server:
        writer = writer_of(server.url, tmp_path / "spool")
        with redis.Redis.from_url(server.url) as client:
            for at in range(100):
                writer.append(rows_of(at * 2, 2))
                if at % 10 == 0:
                    client.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: writer.counts.buffered == 0)
        wait_until(lambda: not segments(tmp_path / "spool"))
        writer.close()
        assert sorted(ids_in(server.url)) == names(200)
        assert writer.counts.dropped == 0


def test_a_stream_that_refuses_gets_its_chunks_again(tmp_path: Path) -> None:
    """What is in the stream's place is no stream; when it is gone, all arrive."""
    folder = tmp_path / "spool"
    with (
        EmbeddedRedis(tmp_path / "redis") as server,
        redis.Redis.from_url(server.url) as client,
    ):
        client.set(KEY, b"in the way")
        writer = writer_of(server.url, folder)
        for at in range(3):
            writer.append(rows_of(at, 1))
            wait_until(lambda at=at: writer.counts.spooled == at + 1)
        client.delete(KEY)
        wait_until(lambda: not segments(folder))
        writer.close()
        assert ids_in(server.url) == names(3)


def test_so_much_is_under_way_and_no_more(tmp_path: Path) -> None:
    """64 chunks or 128 KiB, one chunk at least; the others wait for a reply."""
    with EmbeddedRedis(tmp_path / "redis") as server:
        stream = JournalStream("fraud", open_pipeline(server.url, deadline_s=60.0))
        small, large = b"x" * 100, b"x" * (200 << 10)
        assert stream.room([large, small]) == 1
        assert stream.room([small] * 100) == 64
        assert stream.room([b"x" * 1_000] * 64) == 64
        assert stream.room([b"x" * 4_096] * 64) == 32
        stream.send([small])
        assert stream.room([large]) == 0
        assert stream.room([small] * 100) == 63
        while stream.awaiting:
            stream.collect(60.0)
        assert stream.room([large]) == 1
        stream.close()
