"""The paths to a server that loadtests.gateway compares."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tollgate.gateway.certificates import make_certificates
from tollgate.gateway.keys import add_key
from tollgate.gateway.nginx import Nginx, find_nginx
from tollgate.gateway.template import TEMPLATE, Gateway

DIRECT = "direct"
_UNLIMITED = 1_000_000  # a limit that is counted but never reached


class GatewayPath(msgspec.Struct, frozen=True):
    """
    One path to the server.

    Attributes:
        name: Name in the table.
        address: host:port.
        server: Version of nginx; empty without nginx.
        token: Key to send; None without one.
        authority: Certificate authority of the gateway's certificate; None without TLS.
        certificate, private_key: Files of the caller; None without mTLS.
    """

    name: str
    address: str
    server: str = ""
    token: str | None = None
    authority: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None


@contextlib.contextmanager
def open_paths(upstream: str, *, folder: Path) -> Iterator[list[GatewayPath]]:
    """
    Run a gateway of each kind before a server until the context ends.

    Raises:
        SetupError: There is no nginx, or no openssl.
        ServerError: One does not start.
    """
    make_certificates(folder, names=["127.0.0.1"], callers=["caller"], days=2)
    token = add_key(folder / "keys", "caller")
    version = _version()
    clear = folder / "clear.conf"
    clear.write_text(TEMPLATE.read_text().replace(" ssl http2 ", " http2 "))
    uninspected = folder / "uninspected.conf"
    passed = TEMPLATE.read_text().replace(
        "js_content inspection.inspect;", "grpc_pass grpc://tollgate;"
    )
    uninspected.write_text(passed)
    authority = folder / "ca.pem"
    own = (folder / "caller.pem", folder / "caller.key")
    with contextlib.ExitStack() as stack:

        def run(template: Path = TEMPLATE, **changes: Any) -> str:
            gateway = _gateway(upstream, folder, changes)
            stack.callback(Nginx(gateway, template=template).stop)
            return gateway.listen

        yield [
            GatewayPath(DIRECT, upstream),
            GatewayPath("nginx, clear, key", run(clear), version, token),
            GatewayPath(
                "nginx, TLS, key, no inspection",
                run(uninspected),
                version,
                token,
                authority,
            ),
            GatewayPath("nginx, TLS, key", run(), version, token, authority),
            GatewayPath(
                "nginx, mTLS",
                run(auth="mtls", client_ca=authority),
                version,
                None,
                authority,
                *own,
            ),
        ]


def _gateway(upstream: str, folder: Path, changes: dict[str, Any]) -> Gateway:
    port, health_port = free_port(), free_port()
    options = {
        "state": folder / str(port),
        "upstream": upstream,
        "listen": f"127.0.0.1:{port}",
        "health_listen": f"127.0.0.1:{health_port}",
        "tls_cert": folder / "server.pem",
        "tls_key": folder / "server.key",
        "keys": folder / "keys",
        "rate": _UNLIMITED,
        "burst": _UNLIMITED,
    }
    return Gateway(**(options | changes))


def _version() -> str:
    done = subprocess.run(
        [str(find_nginx()), "-v"], capture_output=True, text=True, check=False
    )
    return done.stderr.strip().rpartition(": ")[2]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
