"""
The gateway's nginx before a server, without TLS: the compiled sender has no TLS.

The limits on requests in flight come from the gateway's own configuration, line by
line.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tollgate.gateway.certificates import make_certificates
from tollgate.gateway.keys import add_key
from tollgate.gateway.nginx import Nginx
from tollgate.gateway.template import TEMPLATE, Gateway

_HOST = "127.0.0.1"
_NO_LIMIT = 1_000_000  # requests/s of a caller; this test does not measure that limit


class Limits(msgspec.Struct, frozen=True):
    """Maximum of requests in flight: of all, of one caller, of bulk."""

    in_flight: int
    caller_in_flight: int
    bulk_in_flight: int


class Gate(msgspec.Struct, frozen=True):
    """
    A running gateway.

    Attributes:
        url: host:port, without TLS.
        pid: Process id of nginx.
        keys: Caller -> metadata with its key.
    """

    url: str
    pid: int
    keys: dict[str, tuple[str, str]]


@contextmanager
def open_gate(
    upstream: str, *, limits: Limits, callers: tuple[str, ...], folder: Path
) -> Iterator[Gate]:
    """
    Run the gateway's nginx without TLS.

    Args:
        upstream: host:port of Triton's gRPC.
        limits: Maximum of requests in flight.
        callers: Names of callers that get a key.
        folder: Folder for its files; must exist.

    Raises:
        SetupError: There is no nginx, or no openssl.
    """
    keys = folder / "keys"
    shown = {
        name: ("authorization", f"Bearer {add_key(keys, name)}") for name in callers
    }
    make_certificates(folder, names=[_HOST], callers=[], days=2)  # nginx reads them
    template = folder / "nginx.conf"
    template.write_text(without_tls(TEMPLATE.read_text()))
    listen = f"{_HOST}:{_free_port()}"
    gateway = Gateway(
        state=folder / "gateway",
        upstream=upstream,
        listen=listen,
        health_listen=f"{_HOST}:{_free_port()}",
        tls_cert=folder / "server.pem",
        tls_key=folder / "server.key",
        keys=keys,
        rate=_NO_LIMIT,
        burst=_NO_LIMIT,
        in_flight=limits.in_flight,
        caller_in_flight=limits.caller_in_flight,
        bulk_in_flight=limits.bulk_in_flight,
        workers=1,
        log=str(folder / "refused.log"),
    )
    nginx = Nginx(gateway, template=template)
    try:
        yield Gate(url=listen, pid=nginx.pid, keys=shown)
    finally:
        nginx.stop()


def without_tls(template: str) -> str:
    """Remove TLS from the gateway's configuration: one word."""
    return template.replace(" ssl http2 ", " http2 ")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((_HOST, 0))
        return int(free.getsockname()[1])
