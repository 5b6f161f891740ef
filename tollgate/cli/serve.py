"""Commands for SREs: `up` and `check`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli import console
from tollgate.errors import ServerError

Repository = Annotated[
    str | None, typer.Option(help="Model repository.", show_default="model_repository")
]
State = Annotated[
    str | None,
    typer.Option(help="Folder for store, logs and copies.", show_default=".tollgate"),
]
Product = Annotated[
    str | None, typer.Option(help="Ensemble in it.", show_default="fraud")
]
ModelConfigName = Annotated[
    str | None,
    typer.Option(
        help="Take configs/NAME.pbtxt of each model that has it.",
        metavar="NAME",
        show_default="config.pbtxt",
    ),
]

_WATCH_S = 0.5


def up(
    repository: Repository = None,
    state: State = None,
    product: Product = None,
    grpc_port: Annotated[
        int | None, typer.Option(help="0 takes a free one.", show_default="8001")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="0 takes a free one.", show_default="8002")
    ] = None,
    store_url: Annotated[
        str | None,
        typer.Option(help="A Redis that runs elsewhere.", show_default="start one"),
    ] = None,
    model_config_name: ModelConfigName = None,
) -> None:
    """Serve a product here: Redis, Triton and the release, until Ctrl-C or SIGTERM."""
    from tollgate.repository.check import require_sound
    from tollgate.server.embedded import serve

    chosen = console.settings(
        repository=repository,
        state=state,
        product=product,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        store_url=store_url,
        model_config_name=model_config_name,
    )
    require_sound(
        chosen.repository_path,
        product=chosen.product,
        config_name=chosen.model_config_name,
    )
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with serve(
        chosen.repository_path,
        product=chosen.product,
        state=chosen.state_path,
        grpc_port=chosen.grpc_port,
        metrics_port=chosen.metrics_port,
        store_url=chosen.store_url or None,
        model_config_name=chosen.model_config_name,
    ) as server:
        console.out.print(
            f"READY  {chosen.product}, release {server.release}\n"
            f"grpc     {server.grpc_url}\n"
            f"metrics  {server.metrics_url}\n"
            f"logs     {chosen.state_path / 'logs'}",
            highlight=False,
        )
        while not stopped.wait(_WATCH_S):
            if not server.triton.alive():
                raise ServerError("tritonserver", "died; its log has more")
            if server.redis is not None and not server.redis.alive():
                raise ServerError("redis-server", "died; its log has more")
        console.say("draining …")


def check(
    repository: Repository = None,
    product: Product = None,
    model_config_name: ModelConfigName = None,
) -> None:
    """Check that a model repository fits together: wiring, versions, hashes."""
    from tollgate.repository import check as linter

    chosen = console.settings(
        repository=repository, product=product, model_config_name=model_config_name
    )
    findings = linter.check(
        chosen.repository_path,
        product=chosen.product,
        config_name=chosen.model_config_name,
    )
    for finding in findings:
        console.out.print(str(_short(finding)), highlight=False, soft_wrap=True)
    if findings:
        console.say(f"{len(findings)} problem(s)")
        raise typer.Exit(2)
    console.out.print(f"{chosen.product}: sound", highlight=False)


def _short(finding: object) -> str:
    """Show a finding's file relative to where the person stands."""
    return str(finding).replace(f"{Path.cwd()}/", "")
