"""A listener answers, and frees its port when it is closed."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler

import pytest

from tollgate.server import http_listener
from tollgate.server.http_listener import HttpListener


class Hello(BaseHTTPRequestHandler):
    """Answers any path."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_callers_that_come_at_once_find_room() -> None:
    """Nobody accepts their connections yet."""
    with ExitStack() as stack:
        server = http_listener._Server(("127.0.0.1", 0), Hello)
        stack.callback(server.server_close)
        for _ in range(100):
            place = ("127.0.0.1", server.server_address[1])
            stack.enter_context(socket.create_connection(place, timeout=10.0))


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is closed; when another one ends, the next is answered."""
    monkeypatch.setattr(http_listener, "_MOST_CONNECTIONS", 3)
    listener = HttpListener("127.0.0.1", 0, Hello, name="hello")
    place = ("127.0.0.1", listener.port)

    def connected() -> socket.socket:
        return socket.create_connection(place, timeout=60.0)

    def answer(one: socket.socket) -> bytes:
        with one, suppress(ConnectionError):
            one.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return one.makefile("rb").read()
        return b""

    held = [connected() for _ in range(3)]
    assert answer(connected()) == b""
    assert [answer(one)[-5:] for one in held] == [b"hello"] * 3
    ended_s = time.monotonic() + 60.0  # their threads end after their sockets
    found = b""
    while not found and time.monotonic() < ended_s:
        found = answer(connected())
    assert found[-5:] == b"hello"
    listener.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_closed_listener_frees_its_port(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for a connection; the next one on that port answers."""
    monkeypatch.setattr(http_listener._Server, "timeout", 600.0)
    place = f"[{host}]" if ":" in host else host
    port = 0
    for _ in range(3):
        listener = HttpListener(host, port, Hello, name="hello")
        port = listener.port
        with urllib.request.urlopen(f"http://{place}:{port}/", timeout=60) as answer:
            assert answer.read() == b"hello"
        listener.close()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://{place}:{port}/", timeout=60)
        listener.close()
        HttpListener(host, port, Hello, name="hello").close()
