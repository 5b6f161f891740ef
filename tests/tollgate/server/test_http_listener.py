"""A listener answers, and frees its port when it is closed."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
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
