"""Gateways for tests: their files, and callers of all kinds."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.store.certificates import make_authority
from tollgate.gateway.certificates import make_certificates
from tollgate.gateway.keys import add_key
from tollgate.gateway.nginx import Nginx
from tollgate.gateway.template import Gateway

SERVICE = "/inference.GRPCInferenceService/"
PATIENT_S = 20.0


class Place(msgspec.Struct, frozen=True):
    """Certificates of the gateway, of callers and of strangers; keys."""

    folder: Path
    keys: Path
    shop: str
    bank: str

    def pem(self, name: str) -> Path:
        """Find a certificate."""
        return self.folder / f"{name}.pem"

    def gateway(self, upstream: str, **changes: Any) -> Gateway:
        """Describe a gateway on free ports."""
        port, health_port = free_port(), free_port()
        told = {
            "state": self.folder / f"state-{port}",
            "upstream": upstream,
            "listen": f"127.0.0.1:{port}",
            "health_listen": f"127.0.0.1:{health_port}",
            "tls_cert": self.pem("server"),
            "tls_key": self.folder / "server.key",
            "keys": self.keys,
            "rate": 100_000,
        }
        return Gateway(**(told | changes))

    def channel(self, listen: str, *, certificate: str = "") -> grpc.Channel:
        """Call a gateway as somebody."""
        own = [None, None]
        if certificate:
            own = [
                (self.folder / f"{certificate}.{kind}").read_bytes()
                for kind in ("key", "pem")
            ]
        proof = grpc.ssl_channel_credentials(self.pem("ca").read_bytes(), *own)
        return grpc.secure_channel(listen, proof)


def make_place(folder: Path) -> Place:
    """Make certificates and keys."""
    make_certificates(
        folder, names=["localhost", "127.0.0.1"], callers=["caller"], days=2
    )
    make_authority(folder, "other")
    keys = folder / "keys"
    return Place(folder, keys, shop=add_key(keys, "shop"), bank=add_key(keys, "bank"))


def free_port() -> int:
    """Find a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def running(gateway: Gateway) -> Iterator[Nginx]:
    """Run nginx until the context ends."""
    nginx = Nginx(gateway)
    try:
        yield nginx
    finally:
        nginx.stop()


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """Write a key as metadata."""
    return (("authorization", f"Bearer {key}"),) if key else ()


def live(channel: grpc.Channel, *, key: str = "") -> str:
    """Ask whether the server lives: OK, or the name of the status."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    try:
        stub.ServerLive(
            service_pb2.ServerLiveRequest(), metadata=bearer(key), timeout=PATIENT_S
        )
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def ask(channel: grpc.Channel, path: str, *, key: str = "", body: bytes = b"") -> str:
    """Call any method with any bytes: OK, or the name of the status."""
    call = channel.unary_unary(path)
    try:
        call(body, metadata=bearer(key), timeout=PATIENT_S)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"
