"""Where Prometheus scrapes a command that runs until it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.errors import InputError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MetricsPort = Annotated[
    int,
    typer.Option(
        min=0, max=65_535, help="Prometheus scrapes here, on loopback; 0: nowhere."
    ),
]


def offer(registry: CollectorRegistry, port: int) -> None:
    """
    Offer metrics on loopback, and the process's own, for as long as it lives.

    Args:
        registry: What to offer.
        port: TCP; 0 for nowhere.

    Raises:
        InputError: Something else listens there.
    """
    from prometheus_client import GCCollector, ProcessCollector, start_http_server

    if not port:
        return
    GCCollector(registry=registry)
    ProcessCollector(registry=registry)
    try:
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as exc:
        problem = f"cannot listen on {port}: {exc.strerror}"
        raise InputError("--metrics-port", problem) from exc
