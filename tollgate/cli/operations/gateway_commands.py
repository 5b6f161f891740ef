"""Run nginx as gateway before Triton: `gateway run|metrics|key|certificates`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tollgate.cli import console
from tollgate.cli.free_ports import require_free_places
from tollgate.cli.metrics_port import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    require_metrics_port,
    serve_metrics,
)
from tollgate.cli.options import State
from tollgate.cli.signals import stop_on_signal
from tollgate.errors import ServerError, TollgateError
from tollgate.worker import Worker

if TYPE_CHECKING:
    from tollgate.gateway.gateway_metrics import GatewayMetrics
    from tollgate.gateway.nginx import Nginx
    from tollgate.gateway.template import Gateway
    from tollgate.settings import Settings

FOLDER = "gateway"  # subfolder of the state folder
_CHECK_S = 1.0  # seconds between checks of keys and certificates

Auth = Literal["keys", "mtls", "either", "both"]


def run(
    tls_cert: Annotated[
        Path, typer.Option(help="Certificate of the gateway with its chain; PEM.")
    ],
    tls_key: Annotated[
        Path, typer.Option(help="Private key of the gateway's certificate; PEM.")
    ],
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="File of the callers' API keys; `tollgate gateway key` adds one."
        ),
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(help="Certificate authority of the callers' certificates; PEM."),
    ] = None,
    auth: Annotated[
        Auth | None,
        typer.Option(
            help="Credential of callers: API key, client certificate, either or both.",
            show_default="keys or mtls, whichever is given; either with both",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="address:port for callers.")
    ] = "127.0.0.1:8443",
    health_listen: Annotated[
        str, typer.Option(help="address:port of /healthz, without TLS.")
    ] = "127.0.0.1:8444",
    upstream: Annotated[
        str | None,
        typer.Option(
            help="host:port of Triton's gRPC.", show_default="the server in --state"
        ),
    ] = None,
    rate: Annotated[
        int, typer.Option(help="Maximum requests per second of each caller.", min=1)
    ] = 1000,
    burst: Annotated[
        int,
        typer.Option(
            help="Requests above the rate that are let through at once.", min=1
        ),
    ] = 200,
    in_flight: Annotated[
        int, typer.Option(help="Maximum decisions in flight.", min=1)
    ] = 40,
    caller_in_flight: Annotated[
        int, typer.Option(help="Maximum decisions in flight of one caller.", min=1)
    ] = 28,
    bulk_in_flight: Annotated[
        int, typer.Option(help="Maximum bulk requests in flight.", min=1)
    ] = 1,
    max_body: Annotated[
        str, typer.Option(help="Maximum size of a request, in bytes, or with k or m.")
    ] = "128k",
    product: Annotated[
        list[str] | None,
        typer.Option(
            help="Ensemble that callers may call; may be repeated.",
            metavar="NAME",
            show_default="those of the server in --state, or TOLLGATE_PRODUCT, fraud",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Number of nginx worker processes.", min=1)
    ] = 2,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
    state: State = None,
    template: Annotated[
        Path | None,
        typer.Option(
            help="Template of nginx.conf, with ${GATEWAY_…} variables.",
            show_default="that of the chart",
        ),
    ] = None,
) -> None:
    """Run nginx before Triton until Ctrl-C or SIGTERM; reload keys when they change."""
    from tollgate.gateway.nginx import REQUESTS_FILE, Nginx
    from tollgate.gateway.template import TEMPLATE, Gateway

    chosen = console.settings(state=state)
    console.require_products(chosen, product or ())
    folder = chosen.state_path / FOLDER
    gateway = Gateway(
        state=folder,
        upstream=upstream or _upstream(chosen),
        listen=listen,
        health_listen=health_listen,
        tls_cert=tls_cert,
        tls_key=tls_key,
        auth=auth or _auth(api_keys, client_ca),
        client_ca=client_ca,
        keys=api_keys,
        rate=rate,
        burst=burst,
        in_flight=in_flight,
        caller_in_flight=caller_in_flight,
        bulk_in_flight=bulk_in_flight,
        max_body=max_body,
        products=tuple(product or ()) or _products(chosen),
        workers=workers,
        requests=folder / REQUESTS_FILE if metrics_port else Path(os.devnull),
    )
    places = {"--listen": listen, "--health-listen": health_listen}
    if metrics_port:
        places["--metrics-port"] = f"{metrics_host}:{metrics_port}"
    require_free_places(places)
    gateway_metrics = _export_metrics(gateway, metrics_port, host=metrics_host)
    stopped = stop_on_signal()
    nginx = Nginx(gateway, template=template or TEMPLATE)
    try:
        console.say(
            f"{gateway.listen} → {gateway.upstream}, {gateway.auth}, "
            f"{', '.join(gateway.products)}, "
            f"{rate:,} requests/s of each caller; log {nginx.log}; Ctrl-C ends"
        )
        _watch(nginx, gateway_metrics, stopped)
    finally:
        nginx.stop()


def metrics(
    requests: Annotated[
        Path,
        typer.Argument(help="Request log that nginx writes, its GATEWAY_REQUESTS."),
    ],
    metrics_port: Annotated[
        int, typer.Option(min=1, max=65_535, help="Port of the Prometheus metrics.")
    ],
    rate: Annotated[
        int,
        typer.Option(
            help="The gateway's maximum requests per second of each caller.", min=1
        ),
    ],
    in_flight: Annotated[
        int, typer.Option(help="The gateway's maximum decisions in flight.", min=1)
    ],
    caller_in_flight: Annotated[
        int,
        typer.Option(
            help="The gateway's maximum decisions in flight of one caller.", min=1
        ),
    ],
    bulk_in_flight: Annotated[
        int, typer.Option(help="The gateway's maximum bulk requests in flight.", min=1)
    ],
    bounds: Annotated[
        Path | None,
        typer.Option(
            help="File of the current limits, if they follow the number of "
            "servers: GATEWAY_BOUNDS."
        ),
    ] = None,
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Export request counts of an external nginx, until Ctrl-C or SIGTERM."""
    from tollgate.gateway.gateway_metrics import GatewayMetrics
    from tollgate.gateway.template import Limits

    require_metrics_port(metrics_port, host=metrics_host)
    stopped = stop_on_signal()
    limits = Limits(rate, in_flight, caller_in_flight, bulk_in_flight)
    gateway_metrics = GatewayMetrics(requests, limits=limits)
    serve_metrics(gateway_metrics.registry, metrics_port, host=metrics_host)
    console.say(f"{requests} is counted; http://{metrics_host}:{metrics_port}/metrics")

    def check() -> None:
        if bounds is not None:
            gateway_metrics.read_bounds(bounds)
        gateway_metrics.update()

    _each_second(check, stopped, ends=(TollgateError,))


def key(
    caller: Annotated[str, typer.Argument(help="Name of the caller: a-z, 0-9 and -.")],
    api_keys: Annotated[
        Path,
        typer.Option(
            "--api-keys", help="File of API keys; the new key is added to it."
        ),
    ],
) -> None:
    """Generate a caller's API key, add it to the file, and print it once."""
    from tollgate.gateway.keys import add_key

    console.result(add_key(api_keys, caller))


def certificates(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder to write NAME.pem and NAME.key of each certificate into."
        ),
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address of the gateway; may be repeated.",
            show_default="localhost, 127.0.0.1",
        ),
    ] = None,
    caller: Annotated[
        list[str] | None,
        typer.Option(help="Name of a client; may be repeated.", show_default="caller"),
    ] = None,
    days: Annotated[int, typer.Option(help="Validity in days.", min=1)] = 30,
) -> None:
    """Create certificates for testing: an authority, a server, clients."""
    from tollgate.gateway.certificates import make_certificates

    made = make_certificates(
        folder,
        names=host or ["localhost", "127.0.0.1"],
        callers=caller or ["caller"],
        days=days,
    )
    for path in made:
        console.result(str(path))


def _auth(api_keys: Path | None, client_ca: Path | None) -> Auth:
    if client_ca is None:
        return "keys"
    return "mtls" if api_keys is None else "either"


def _upstream(chosen: Settings) -> str:
    from tollgate.server.address import find_server

    found = find_server(chosen.state_path)
    return found.grpc_url if found else f"127.0.0.1:{chosen.grpc_port}"


def _products(chosen: Settings) -> tuple[str, ...]:
    from tollgate.server.address import find_server

    found = find_server(chosen.state_path)
    return found.products if found else chosen.products


def _export_metrics(gateway: Gateway, port: int, *, host: str) -> GatewayMetrics | None:
    """Export the gateway's counters on a port; without a port nothing is counted."""
    if not port:
        return None
    from tollgate.gateway.gateway_metrics import GatewayMetrics

    gateway_metrics = GatewayMetrics(gateway.requests, limits=gateway.limits)
    serve_metrics(gateway_metrics.registry, port, host=host)
    return gateway_metrics


def _watch(
    nginx: Nginx, gateway_metrics: GatewayMetrics | None, stopped: threading.Event
) -> None:
    reported = ""

    def check() -> None:
        nonlocal reported
        if not nginx.alive():
            words = nginx.log.read_text(errors="replace").strip()[-1000:]
            raise ServerError("nginx", "ended", log=words)
        try:
            if nginx.reload_if_changed():
                console.say("keys and certificates are reloaded")
        except TollgateError as error:
            console.say(f"error: {error}; the old ones stay in use")
        try:
            if gateway_metrics is not None:
                gateway_metrics.update()
        except TollgateError as error:
            if str(error) != reported:
                console.say(f"error: {error}; requests are not counted meanwhile")
            reported = str(error)

    _each_second(check, stopped, ends=(ServerError,))


def _each_second(
    check: Callable[[], None],
    stopped: threading.Event,
    *,
    ends: tuple[type[TollgateError], ...],
) -> None:
    """Run a check every second until it is stopped or meets a fatal error."""
    Worker("gateway", check, pause_s=_CHECK_S, ends=ends, stopped=stopped).run()
