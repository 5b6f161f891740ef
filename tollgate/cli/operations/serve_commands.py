"""Serve products and pack support bundles: `tollgate up`, `serve` and `bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tollgate.cli import console
from tollgate.cli.free_ports import require_free_ports
from tollgate.cli.options import ModelConfigName, Repository
from tollgate.cli.repositories import served_folder
from tollgate.errors import InputError
from tollgate.settings import Settings

State = Annotated[
    str | None,
    typer.Option(
        help="Folder for the store, logs and copies of the repository.",
        show_default=".tollgate",
    ),
]
Products = Annotated[
    list[str] | None,
    typer.Option(
        "--product",
        help="Ensemble to serve; may be repeated.",
        metavar="NAME",
        show_default="fraud",
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        help="Port of Triton's gRPC; 0 takes a free one.", show_default="8001"
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        help="Port of Triton's metrics; 0 takes a free one.", show_default="8002"
    ),
]
JournalUrl = Annotated[
    str | None,
    typer.Option(
        help="URL of the Redis for decision records; '' for none.",
        show_default="the store",
    ),
]
CacheMb = Annotated[
    int | None,
    typer.Option(
        help="Memory of Triton's response cache, for models that enable it; 0: none.",
        metavar="MB",
        min=0,
        show_default="0",
    ),
]
OtlpEndpoint = Annotated[
    str | None,
    typer.Option(
        help="OpenTelemetry collector that receives traces over HTTP.",
        metavar="URL",
        show_default="OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
]
TraceRate = Annotated[
    int | None,
    typer.Option(
        help="Trace one of N requests without trace context; 0: none.",
        metavar="N",
        min=0,
        show_default="0",
    ),
]
Form = Annotated[
    Literal["ensemble", "fused"] | None,
    typer.Option(
        help="Serve three models in an ensemble, or all steps fused into one model, "
        "which costs less processor time.",
        show_default="form in slo.yaml, or ensemble",
    ),
]
SidePort = Annotated[
    int,
    typer.Option(
        help="Admin port with /livez, /readyz and /metrics; 0 takes a free one.",
        min=0,
        max=65535,
    ),
]

ConsoleSecretFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the secret that opens /console on the admin port.",
        show_default="none on loopback, else the admin secret in STATE/server.json",
    ),
]


def up(
    repository: Repository = None,
    state: State = None,
    product: Products = None,
    grpc_port: GrpcPort = None,
    metrics_port: MetricsPort = None,
    store_url: Annotated[
        str | None,
        typer.Option(
            help="URL of a Redis that runs elsewhere.", show_default="start one"
        ),
    ] = None,
    store_server: Annotated[
        str | None,
        typer.Option(
            help="redis-server or valkey-server to start, by path or name on PATH.",
            metavar="PROGRAM",
            show_default="the Redis from pip",
        ),
    ] = None,
    journal_url: JournalUrl = None,
    model_config_name: ModelConfigName = None,
    cache_mb: CacheMb = None,
    otlp_endpoint: OtlpEndpoint = None,
    trace_rate: TraceRate = None,
    form: Form = None,
    side_port: SidePort = 8003,
    console_secret_file: ConsoleSecretFile = None,
) -> None:
    """Serve products here: Redis, Triton and releases, until Ctrl-C or SIGTERM."""
    from tollgate.cli.operations.supervised_server import supervise

    chosen = console.settings(
        repository=repository,
        state=state,
        product=_joined(product),
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        store_url=store_url,
        store_server=store_server,
        journal_url=journal_url,
        model_config_name=model_config_name,
        cache_mb=cache_mb,
        otlp_endpoint=otlp_endpoint,
        trace_rate=trace_rate,
        form=form,
    )
    if chosen.store_url and chosen.store_server:
        problem = f"{chosen.store_server} would not be used: a store URL is set too"
        raise InputError("--store-server", f"{problem}; leave one of them out")
    _require_ports(chosen, side_port=side_port)
    supervise(chosen, admin_port=side_port, console_secret_file=console_secret_file)


def serve(
    repository: Repository = None,
    state: State = None,
    product: Products = None,
    grpc_port: GrpcPort = None,
    metrics_port: MetricsPort = None,
    store_url: Annotated[
        str | None, typer.Option(help="URL of the online store.")
    ] = None,
    journal_url: JournalUrl = None,
    model_config_name: ModelConfigName = None,
    cache_mb: CacheMb = None,
    otlp_endpoint: OtlpEndpoint = None,
    trace_rate: TraceRate = None,
    form: Form = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address of all three ports; other hosts can connect unless "
            "it is loopback."
        ),
    ] = "127.0.0.1",
    side_port: SidePort = 8003,
    console_secret_file: ConsoleSecretFile = None,
    recycle_after: Annotated[
        float,
        typer.Option(
            help="Age at which a Python step is restarted, less up to a fifth; "
            "0: never.",
            metavar="HOURS",
            min=0,
        ),
    ] = 24.0,
    recycle_above: Annotated[
        float,
        typer.Option(
            help="Resident memory above which a Python step is restarted; 0: never.",
            metavar="MB",
            min=0,
        ),
    ] = 1024.0,
    drain_delay: Annotated[
        float,
        typer.Option(
            help="Time to continue serving after SIGTERM, while /readyz reports "
            "not ready.",
            metavar="SECONDS",
            min=0,
        ),
    ] = 0.0,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(help="Format of the supervisor's log lines."),
    ] = "text",
) -> None:
    """Serve products with an external store; restart processes that die."""
    from tollgate.cli.operations.supervised_server import supervise
    from tollgate.supervisor.recycling import Recycling

    chosen = console.settings(
        repository=repository,
        state=state,
        product=_joined(product),
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        store_url=store_url,
        journal_url=journal_url,
        model_config_name=model_config_name,
        cache_mb=cache_mb,
        otlp_endpoint=otlp_endpoint,
        trace_rate=trace_rate,
        form=form,
    )
    if not chosen.store_url:
        raise InputError("--store-url", "no store is named; `tollgate up` starts one")
    _require_ports(chosen, side_port=side_port, host=host)
    supervise(
        chosen,
        admin_port=side_port,
        host=host,
        recycling=Recycling(
            age_s=recycle_after * 3600, resident_bytes=round(recycle_above * 1e6)
        ),
        drain_delay_s=drain_delay,
        log_format=log_format,
        recall=True,
        console_secret_file=console_secret_file,
    )


def _require_ports(
    chosen: Settings, *, side_port: int, host: str = "127.0.0.1"
) -> None:
    """Refuse ports that are in use before models are prepared."""
    ports = {
        "--grpc-port (setting grpc_port)": chosen.grpc_port,
        "--metrics-port (setting metrics_port)": chosen.metrics_port,
        "--side-port": side_port,
    }
    require_free_ports(host, ports)


def _joined(products: list[str] | None) -> str | None:
    """Join settings of several products into one text."""
    return ",".join(products) if products else None


def bundle(
    out: Annotated[Path, typer.Argument(help="Path of the .tar.gz file to write.")],
    repository: Repository = None,
    state: State = None,
) -> None:
    """Pack logs, configurations, faults and counters for an engineer."""
    from tollgate.supervisor.bundle import write_bundle

    chosen = console.settings(repository=repository, state=state)
    written = write_bundle(
        out, state=chosen.state_path, repository=served_folder(chosen)
    )
    console.result(str(written))
