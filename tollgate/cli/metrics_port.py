"""Serve a Prometheus metrics page for commands that run until stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollgate.cli.free_ports import require_free_ports
from tollgate.errors import InputError
from tollgate.server.index_page import CONTENT_TYPE, INDEX, index_page

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_PAGES = {"/metrics": "metrics of this command, for Prometheus"}
_READY = "/ready"
_READY_PAGE = {
    _READY: "200 if what the command needs responds, else 503 and the problem"
}
_App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

MetricsPort = Annotated[
    int,
    typer.Option(min=0, max=65_535, help="Port of the Prometheus metrics; 0: none."),
]
MetricsHost = Annotated[
    str, typer.Option(help="Address that --metrics-port listens on.")
]
LOOPBACK = "127.0.0.1"


def require_metrics_port(port: int, *, host: str = LOOPBACK) -> None:
    """Refuse a port that cannot be listened on, before any other work."""
    require_free_ports(host, {"--metrics-port": port})


def serve_metrics(
    registry: CollectorRegistry,
    port: int,
    *,
    host: str = LOOPBACK,
    problem: Callable[[], str] | None = None,
) -> None:
    """
    Export metrics of the command and its process until the process ends.

    Args:
        port: TCP port; 0 exports nothing.
        host: Address to listen on; other hosts can read any address but loopback.
        problem: Function that says why the command is not ready, "" if it is; its page
            is /ready. None has no such page.

    Raises:
        InputError: The port cannot be listened on.
    """
    from prometheus_client import (
        GCCollector,
        ProcessCollector,
        make_wsgi_app,
        start_http_server,
    )

    from tollgate.worker import LoopCollector

    if not port:
        return
    GCCollector(registry=registry)
    ProcessCollector(registry=registry)
    registry.register(LoopCollector())
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as exc:
        why = f"cannot listen on {host}:{port}: {exc.strerror}"
        raise InputError("--metrics-port", why) from exc
    server.set_app(_with_pages(make_wsgi_app(registry), problem))


def _with_pages(metrics: _App, problem: Callable[[], str] | None) -> _App:
    """Serve the list of pages at `/`, readiness, and the other pages unchanged."""
    pages = _PAGES if problem is None else {**_PAGES, **_READY_PAGE}

    def application(
        environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _READY and problem is not None:
            text = problem()
            status = "503 Service Unavailable" if text else "200 OK"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{text or 'ready'}\n".encode()]
        if environ["PATH_INFO"] not in ("", INDEX):
            return metrics(environ, start_response)
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        return [index_page("tollgate: metrics port", pages)]

    return application
