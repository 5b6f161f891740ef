"""Serve decisions over HTTP and JSON: `tollgate door`."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tollgate.cli import console
from tollgate.cli.decisions.decision_commands import read_proof
from tollgate.cli.free_ports import require_free_ports
from tollgate.cli.metrics_port import (
    LOOPBACK,
    MetricsHost,
    MetricsPort,
    serve_metrics,
)
from tollgate.cli.options import Repository, State
from tollgate.cli.repositories import desired_release, open_for_reading
from tollgate.errors import InputError, SetupError, install_remedy
from tollgate.worker import Worker

if TYPE_CHECKING:
    from tollgate.door.application import DoorApplication, Limits
    from tollgate.door.callers import Callers
    from tollgate.door.deciders import Upstream
    from tollgate.door.products import DoorProduct
    from tollgate.settings import Settings
    from tollgate_client import Fallback

_DEFAULT_URL = "127.0.0.1:8001"
_SILENT_S = 10.0  # seconds in which a connection has to send its first bytes
_IDLE_S = 90.0  # longest silence of any connection; an answer takes 60 s at most
_REFRESH_S = 2.0  # seconds between looks at releases and keys


def door(
    product: Annotated[
        list[str] | None,
        typer.Option(
            help="Product; repeat it for several. /decide is the first one's.",
            show_default="fraud",
        ),
    ] = None,
    repository: Repository = None,
    state: State = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="host:port of a server; repeat it for several.",
            show_default="that of --state, or :8001",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK,
    port: Annotated[
        int,
        typer.Option(min=1, max=65_535, help="Port for HTTP/1.1 and HTTP/2."),
    ] = 8080,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="File of the callers' API keys; `tollgate gateway key` adds one.",
            show_default="everybody may call",
        ),
    ] = None,
    door_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate of the door with its chain; PEM. Turns on TLS."),
    ] = None,
    door_key: Annotated[
        Path | None,
        typer.Option(help="Private key of --door-cert; PEM, PKCS#8."),
    ] = None,
    fallback: Annotated[
        Path | None,
        typer.Option(
            help="YAML file: product to its rule for when no server answers.",
            show_default="the middle outcome, such as review",
        ),
    ] = None,
    deadline_ms: Annotated[
        float,
        typer.Option(
            min=1, max=60_000, help="Deadline of a request that names none, ms."
        ),
    ] = 50.0,
    max_body_kib: Annotated[int, typer.Option(min=1, help="Largest body, KiB.")] = 256,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Maximum rows in a request.")
    ] = 256,
    rows_in_flight: Annotated[
        int, typer.Option(min=1, help="Maximum rows in flight; more get 503.")
    ] = 1024,
    caller_rows_in_flight: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum rows in flight of one caller; more get 429.",
            show_default="three quarters with --api-keys, else all",
        ),
    ] = None,
    connections: Annotated[
        int, typer.Option(min=1, help="Maximum connections; more wait.")
    ] = 1024,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="Certificate authority of a gateway before the servers; PEM."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="The door's certificate at that gateway; with --tls-key."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key of --tls-cert; PEM.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File that contains only the door's API key at the gateway."),
    ] = None,
    metrics_port: MetricsPort = 0,
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Answer callers that speak HTTP and JSON, until Ctrl-C or SIGTERM."""
    try:
        from tollgate.door.http_server import Listening, serve
    except ModuleNotFoundError as exc:
        problem = f"{exc.name} is not installed"
        raise SetupError(problem, remedy=install_remedy("door")) from exc
    from tollgate.door.application import Limits
    from tollgate.door.callers import Callers
    from tollgate.door.deciders import Upstream

    if (door_cert is None) != (door_key is None):
        raise InputError("--door-cert", "and --door-key come together")
    if door_cert and door_key:
        _check_certificate(door_cert, door_key)
    tls, token = read_proof(tls_ca, tls_cert, key=tls_key, token=token_file)
    chosen = console.settings(
        product=",".join(product) if product else None,
        repository=repository,
        state=state,
    )
    settings = [
        msgspec.structs.replace(chosen, product_names=name) for name in chosen.products
    ]
    products = [_read_product(one) for one in settings]
    require_free_ports(host, {"--port": port})
    require_free_ports(metrics_host, {"--metrics-port": metrics_port})
    upstream = Upstream(
        addresses=url or [_server_url(chosen)],
        deadline_s=deadline_ms / 1e3,
        tls=tls,
        token=token,
        fallbacks=_read_fallbacks(fallback, products),
    )
    upstream.check()
    callers = Callers(api_keys)
    usual = max(1, rows_in_flight * 3 // 4 if api_keys else rows_in_flight)
    limits = Limits(
        body_bytes=max_body_kib * 1024,
        rows=max_rows,
        rows_in_flight=rows_in_flight,
        caller_rows_in_flight=min(caller_rows_in_flight or usual, rows_in_flight),
    )
    if max_rows > limits.caller_rows_in_flight:
        problem = f"{max_rows} rows are above the {limits.caller_rows_in_flight} of "
        problem += "one caller that may be in flight"
        raise InputError("--max-rows", problem)
    if api_keys and door_cert is None and host != LOOPBACK:
        console.say("API keys arrive unencrypted; end TLS here or before this door")
    console.say(f"{'https' if door_cert else 'http'}://{host}:{port}; Ctrl-C ends")
    serve(
        lambda: _application(
            settings,
            products,
            upstream=upstream,
            callers=callers,
            limits=limits,
            port=port,
            metrics=(metrics_host, metrics_port),
        ),
        Listening(
            host=host,
            port=port,
            connections=connections,
            tls_cert=door_cert,
            tls_key=door_key,
        ),
    )


def _application(
    settings: list[Settings],
    products: list[DoorProduct],
    *,
    upstream: Upstream,
    callers: Callers,
    limits: Limits,
    port: int,
    metrics: tuple[str, int],
) -> DoorApplication:
    """Make the application in the process that serves it."""
    from tollgate.door.application import DoorApplication
    from tollgate.door.deciders import Deciders
    from tollgate.door.silent_connections import close_silent_connections

    metrics_host, metrics_port = metrics

    def started(application: DoorApplication) -> Callable[[], None]:
        serve_metrics(application.metrics.registry, metrics_port, host=metrics_host)
        workers = [
            # At once: this process may replace one that ended long after the start.
            Worker("door-keys", callers.refresh, pause_s=_REFRESH_S, at_once=True),
            *(
                Worker(
                    "door-refresh",
                    partial(_refresh, one, application),
                    pause_s=_REFRESH_S,
                    at_once=True,
                )
                for one in settings
            ),
            Worker(
                "door-connections",
                partial(
                    close_silent_connections, port, first_s=_SILENT_S, idle_s=_IDLE_S
                ),
                pause_s=_SILENT_S / 2,
            ),
        ]
        for worker in workers:
            worker.start()
        # The garbage collector need not scan the objects of the start again.
        gc.collect()
        gc.freeze()

        def end() -> None:
            for worker in workers:
                worker.stop(_REFRESH_S)

        return end

    return DoorApplication(
        lambda: Deciders(products, upstream),
        callers=callers,
        limits=limits,
        started=started,
    )


def _refresh(chosen: Settings, application: DoorApplication) -> None:
    """Follow the active release of a product."""
    served = {one.name: one.release for one in application.products}
    if desired_release(chosen).name != served[chosen.product]:
        application.follow(_read_product(chosen))


def _check_certificate(certificate: Path, key: Path) -> None:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")
    except OSError as exc:
        problem = f"{certificate} cannot be used with {key}: {exc}"
        raise InputError("--door-cert", problem) from exc


def _read_product(chosen: Settings) -> DoorProduct:
    from tollgate.door.products import read_door_product

    with open_for_reading(chosen) as models:
        return read_door_product(models, product=chosen.product)


def _read_fallbacks(
    path: Path | None, products: list[DoorProduct]
) -> dict[str, Fallback]:
    """
    Read the rule of each product from a YAML file.

    Raises:
        InputError: The file cannot be read, names no product, or a rule is wrong.
    """
    from tollgate_client import fallback_from

    if path is None:
        return {}
    try:
        document: dict[str, dict[str, Any]] = msgspec.yaml.decode(
            path.read_bytes(), type=dict[str, dict[str, Any]]
        )
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, ValueError) as exc:
        raise InputError(path, " ".join(str(exc).split())) from exc
    known = {one.name: one for one in products}
    found = {}
    for name, rule in document.items():
        if name not in known:
            problem = f"is none of {', '.join(known)}"
            raise InputError(path, problem, where=name)
        if known[name].ranking is not None:
            problem = "ranks items, so it has no rule: popular items answer"
            raise InputError(path, problem, where=name)
        found[name] = fallback_from({**rule, "outcomes": known[name].outcomes})
    return found


def _server_url(chosen: Settings) -> str:
    """Return the address of the local server, or the default one."""
    from tollgate.server.address import find_server

    found = find_server(chosen.state_path)
    return found.grpc_url if found else _DEFAULT_URL
