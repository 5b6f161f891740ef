"""Serve the application with Granian: HTTP/1.1 and HTTP/2 on one port."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels

from tollgate.worker import Worker

# Also the time for which HTTP/1.1 leaves an idle connection open.
_HEADER_TIMEOUT_MS = 30_000
_PING_MS = 10_000
_HEADER_BYTES = 16 * 1024
_STREAMS = 128  # of one HTTP/2 connection
_END_S = 15  # seconds in which requests in flight may end
_PARENT_S = 0.5  # between two looks whether the parent lives


class Listening(msgspec.Struct, frozen=True):
    """
    Where the door listens.

    Attributes:
        connections: Maximum number of connections; others wait to be accepted.
        tls_cert: Certificate with its chain, PEM; None for plain text.
        tls_key: Private key of the certificate, PEM in PKCS#8.
    """

    host: str
    port: int
    connections: int
    tls_cert: Path | None = None
    tls_key: Path | None = None


def serve(make_application: Callable[[], Any], listening: Listening) -> None:
    """
    Serve until SIGTERM, SIGHUP or Ctrl-C; requests in flight are answered first.

    The application runs in a process of its own, which is started again if it ends.

    Args:
        make_application: Makes the ASGI application, in that process.
    """
    server = Granian(
        "door",
        address=listening.host,
        port=listening.port,
        interface=Interfaces.ASGI,
        loop=Loops.uvloop,
        http=HTTPModes.auto,
        websockets=False,
        workers=1,
        respawn_failed_workers=True,
        workers_kill_timeout=_END_S,
        backlog=1024,
        backpressure=listening.connections,
        http1_settings=HTTP1Settings(
            header_read_timeout=_HEADER_TIMEOUT_MS, max_buffer_size=_HEADER_BYTES
        ),
        http2_settings=HTTP2Settings(
            max_concurrent_streams=_STREAMS,
            max_headers_size=_HEADER_BYTES,
            keep_alive_interval=_PING_MS,
        ),
        log_level=LogLevels.warning,
        ssl_cert=listening.tls_cert,
        ssl_key=listening.tls_key,
    )

    parent = os.getpid()

    def load(*_: object) -> Any:
        _end_with(parent)
        return make_application()

    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # by nohup

    @server.on_startup
    def end_on_hangup() -> None:
        # Granian would start a second process, which needs the same metrics port.
        end = signal.SIG_IGN if ignored else server.signal_handler_interrupt
        signal.signal(signal.SIGHUP, end)

    server.serve(target_loader=load, wrap_loader=False)


def _end_with(parent: int) -> None:
    """End this process when its parent dies, at the latest by the kernel's alarm."""

    def look() -> None:
        ending = signal.getitimer(signal.ITIMER_REAL)[0] > 0
        if os.getppid() != parent and not ending:
            signal.alarm(_END_S)
            os.kill(os.getpid(), signal.SIGTERM)

    Worker("parent", look, pause_s=_PARENT_S).start()
