"""Answer HTTP requests on a port of this process, in threads."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tollgate.worker import Worker

log = logging.getLogger(__name__)

_WAIT_S = 0.5  # wait for a connection, then check whether to stop
_MOST_CONNECTIONS = 256  # at once; each thread takes some 33 KiB


class HttpListener:
    """
    Listen until it is closed; each connection has a thread.

    At most 256 connections are open at once; one beyond them is closed unanswered.

    Args:
        host: Address; IPv6 if it has a colon.
        port: TCP port; 0 takes a free one.
        handler: Answers the requests.
        name: Name of the loop in metrics and logs.

    Attributes:
        port: The port it listens on.

    Raises:
        OSError: The port cannot be opened on the address.
    """

    def __init__(
        self, host: str, port: int, handler: type[BaseHTTPRequestHandler], *, name: str
    ) -> None:
        kind = _IPv6Server if ":" in host else _Server
        self._server = kind((host, port), handler)
        self.port: int = self._server.server_address[1]
        self._worker = Worker(name, self._server.handle_request, pause_s=0.0)
        self._worker.start()

    def close(self) -> None:
        """Stop listening."""
        self._worker.stop(timeout_s=0.0)
        with suppress(OSError):  # ends the wait for the next connection
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._worker.stop()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    timeout = _WAIT_S
    # A connection beyond them is only tried again after a second.
    request_queue_size = 128

    def __init__(self, *place: Any) -> None:
        self._room = threading.Semaphore(_MOST_CONNECTIONS)
        super().__init__(*place)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection, if there is room for it."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that a connection broke; its other end may have gone away."""
        log.debug("a connection broke: %s", sys.exc_info()[1])


class _IPv6Server(_Server):
    """Listen on an IPv6 address; `::` accepts IPv4 and IPv6."""

    address_family = socket.AF_INET6
