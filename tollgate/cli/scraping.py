"""Where Prometheus scrapes a command that runs until it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.errors import InputError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MetricsPort = Annotated[
    int,
    typer.Option(min=0, max=65_535, help="Prometheus scrapes here; 0: nowhere."),
]
MetricsHost = Annotated[str, typer.Option(help="Address of --metrics-port.")]
LOOPBACK = "127.0.0.1"


def offer(registry: CollectorRegistry, port: int, *, host: str = LOOPBACK) -> None:
    """
    Offer metrics, and the process's own, for as long as it lives.

    Args:
        registry: What to offer.
        port: TCP; 0 for nowhere.
        host: Address to listen on; anything but loopback is for others to read.

    Raises:
        InputError: It cannot be listened on.
    """
    from prometheus_client import GCCollector, ProcessCollector, start_http_server

    if not port:
        return
    GCCollector(registry=registry)
    ProcessCollector(registry=registry)
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as exc:
        problem = f"cannot listen on {host}:{port}: {exc.strerror}"
        raise InputError("--metrics-port", problem) from exc
