"""Connections that send nothing are closed, and no others."""

from __future__ import annotations

import contextlib
import socket

from tollgate.door.silent_connections import close_silent_connections


def test_only_connections_without_first_bytes_are_closed() -> None:
    """Of the named port, after the time; one byte is not enough, a preface is."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        other = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def connected(to: socket.socket, content: bytes) -> socket.socket:
            caller = stack.enter_context(socket.create_connection(to.getsockname()))
            accepted, _ = to.accept()
            stack.enter_context(accepted)
            if content:
                caller.sendall(content)
                assert accepted.recv(100) == content
            caller.setblocking(False)
            return caller

        silent = connected(listening, b"")
        one_byte = connected(listening, b"P")
        preface = connected(listening, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        elsewhere = connected(other, b"")
        port = listening.getsockname()[1]
        assert close_silent_connections(port, first_s=60.0, idle_s=60.0) == 0
        assert close_silent_connections(port, first_s=0.0, idle_s=60.0) == 2
        assert ended(silent)
        assert ended(one_byte)
        assert not ended(preface)
        assert not ended(elsewhere)
        assert close_silent_connections(port, first_s=60.0, idle_s=0.0) == 1
        assert ended(preface)
        assert not ended(elsewhere)
        assert listening.fileno() > 0
        connected(listening, b"")


def ended(caller: socket.socket) -> bool:
    """Whether the other side closed the connection."""
    try:
        return caller.recv(1) == b""
    except BlockingIOError:
        return False
