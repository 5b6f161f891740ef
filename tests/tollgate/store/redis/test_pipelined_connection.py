"""Commands over a line go out at once, and each reply is of its command."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tollgate.errors import StoreError, StoreLost, StoreTimeout
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.processes.socket_path import short_socket_path
from tollgate.store.redis.pipelined_connection import CommandPipeline, open_pipeline
from tollgate.store.redis.redis_store import Command

PATIENT_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis of the test's own."""
    with EmbeddedRedis(tmp_path) as server:
        yield server


def read(line: CommandPipeline, count: int) -> list[object]:
    """Wait for so many replies."""
    replies: list[object] = []
    while len(replies) < count:
        replies += line.collect(PATIENT_S)
    return replies


def pushed(*values: bytes) -> list[Command]:
    """Make commands whose replies count from 1 on."""
    return [(b"RPUSH", b"list", one) for one in values]


def test_replies_come_in_the_order_of_the_commands(server: EmbeddedRedis) -> None:
    """Whether sent alone or together; an error that was answered is one of them."""
    line = open_pipeline(server.url, deadline_s=PATIENT_S)
    line.send(pushed(b"a", b"b"))
    line.send([(b"INCR", b"list")])
    line.send(pushed(b"c"))
    assert line.awaited == 4
    first, second, wrong, third = read(line, 4)
    assert (first, second, third) == (1, 2, 3)
    assert isinstance(wrong, redis.ResponseError)
    assert line.awaited == 0
    assert line.collect(0.0) == []
    line.close()


def test_nothing_waits_for_a_reply_to_be_sent(tmp_path: Path) -> None:
    """A store that reads and never answers gets all commands, one after the other."""
    with (
        short_socket_path(tmp_path / "silent.sock") as path,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(str(path))
        listener.listen()
        line = open_pipeline(f"unix://{path}", deadline_s=PATIENT_S)
        line.send(pushed(b"first"))
        peer, _ = listener.accept()
        line.send(pushed(b"second"))
        heard = b""
        while b"second" not in heard:
            heard += peer.recv(4096)
        assert heard.index(b"first") < heard.index(b"second")
        peer.close()
        with pytest.raises(StoreLost):
            line.collect(PATIENT_S)
        assert line.awaited == 0
        line.close()


def test_more_than_a_socket_takes_is_sent_all_the_same(server: EmbeddedRedis) -> None:
    """What is left over waits for the store to read."""
    line = open_pipeline(server.url, deadline_s=PATIENT_S)
    line.send(pushed(b"x" * 4_000_000, b"y"))
    assert read(line, 2) == [1, 2]
    line.close()


def test_late_replies_are_reported_once_and_never_mixed_up(
    server: EmbeddedRedis,
) -> None:
    """What is late comes first when it comes; the connection stays."""
    line = open_pipeline(server.url, deadline_s=0.05)
    os.kill(server.pid, signal.SIGSTOP)
    line.send(pushed(b"a", b"b"))
    with pytest.raises(StoreTimeout):
        line.collect(PATIENT_S)
    assert line.awaited == 2
    assert line.collect(0.0) == []  # not late again
    os.kill(server.pid, signal.SIGCONT)
    assert read(line, 2) == [1, 2]
    assert (line.awaited, line.opened) == (0, 1)
    line.close()


def test_a_silent_store_gets_a_new_connection(server: EmbeddedRedis) -> None:
    """After a few deadlines; what was under way is in doubt, and not awaited."""
    line = open_pipeline(server.url, deadline_s=0.05)
    os.kill(server.pid, signal.SIGSTOP)
    for _ in range(4):
        line.send(pushed(b"a"))
        with pytest.raises(StoreTimeout):
            line.collect(PATIENT_S)
    assert (line.awaited, line.opened) == (0, 1)
    os.kill(server.pid, signal.SIGCONT)
    line.send(pushed(b"b"))
    assert (line.awaited, line.opened) == (1, 2)
    line.close()


def test_a_store_that_is_not_there_refuses_at_once() -> None:
    """Nothing was sent, and nothing is awaited."""
    line = open_pipeline("unix:///nowhere.sock", deadline_s=PATIENT_S)
    with pytest.raises(StoreError):
        line.send(pushed(b"a"))
    assert (line.awaited, line.opened) == (0, 0)
