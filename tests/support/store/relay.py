"""A port before a Redis that fails as networks and proxies do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path


class Relay:
    """
    A TCP port before a Redis that fails as networks and proxies do.

    Attributes:
        url: Its address.
        hang_ups: How many large requests it still hangs up on, in their midst.
        mute: Pass requests on, and hang up in place of the answer.
        delay_s: How long it holds each answer back.
        accepted: Connections it took so far.
    """

    def __init__(self, redis_socket: Path) -> None:
        self._redis_socket = str(redis_socket)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self._peers: list[socket.socket] = []
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.hang_ups, self.mute, self.delay_s, self.accepted = 0, False, 0.0, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._redis_socket)
                self._peers += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pass, args=(one, other), daemon=True
                    ).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        is_request = sink.family == socket.AF_UNIX
        with contextlib.suppress(OSError):
            while content := source.recv(65_536):
                if is_request and self.hang_ups and len(content) > 4_096:
                    self.hang_ups -= 1
                    break
                if not is_request:
                    time.sleep(self.delay_s)
                    if self.mute:
                        break
                sink.sendall(content)
        self.drop(source, sink)

    def drop(self, *sockets: socket.socket) -> None:
        """Close these connections, or all."""
        for one in sockets or self._peers:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """Stop listening, and drop all."""
        self.drop(self._listener)
        self.drop()
