"""Measure a product against the latency budget of its slo.yaml: `tollgate budget`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console
from tollgate.cli.operations.release_commands import Product, State
from tollgate.cli.operations.slo_limits import Promise, promise_of
from tollgate.cli.options import Json
from tollgate.errors import SetupError

if TYPE_CHECKING:
    from tollgate.latency_budget.layers import Judged


def budget(
    rate: Annotated[
        float,
        typer.Option(
            help="Requests per second, sent at random times (Poisson).", min=1
        ),
    ] = 200.0,
    seconds: Annotated[
        float,
        typer.Option(help="Seconds to measure; the first two do not count.", min=3),
    ] = 20.0,
    rows: Annotated[
        int, typer.Option(help="Purchases per request.", min=1, max=32)
    ] = 1,
    target: Annotated[
        bool,
        typer.Option("--target", help="Compare with target_ms instead of budget_ms."),
    ] = False,
    room: Annotated[
        float,
        typer.Option(
            help="Factor for every limit, for a machine that also does other work.",
            min=1,
        ),
    ] = 1.0,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Write the synthetic purchases to store and journal; only "
            "for staging.",
        ),
    ] = False,
    grpc_url: Annotated[
        str | None,
        typer.Option(
            help="Address of any server, or dns:///host:port for several in "
            "turn; layers are then not measured.",
            show_default="that of --state",
        ),
    ] = None,
    product: Product = None,
    repository: Annotated[
        str | None,
        typer.Option(
            help="Model repository of the server at --grpc-url.",
            show_default="model_repository",
        ),
    ] = None,
    state: State = None,
    json: Json = False,
) -> None:
    """
    Measure each layer of the running server against its budget in slo.yaml.

    Exit status 1: the 99th percentile of a layer (`request`: its mean) exceeds its
    budget, or too few responses arrive in time.
    """
    from tollgate.cli.operations.budget_report import print_layers, print_steps, to_json
    from tollgate.latency_budget.layers import judge
    from tollgate.latency_budget.measurement import Load, measure
    from tollgate.repository.product_models import read_product
    from tollgate.repository.releases.served_versions import served_spec
    from tollgate.repository.slo import read_slo
    from tollgate.server.address import find_server

    chosen = console.settings(product=product, state=state, repository=repository)
    load = Load(rate_per_s=rate, seconds=seconds, rows=rows, dry=not apply)
    if grpc_url is not None:
        from tollgate.cli.operations.remote_response_times import judge_answers

        judge_answers(
            grpc_url, load, chosen=chosen, target=target, room=room, json=json
        )
        return
    server = find_server(chosen.state_path)
    if server is None:
        remedy = "start `tollgate up`"
        raise SetupError(f"no server runs in {chosen.state}", remedy=remedy)
    folder = Path(server.repository)
    slo = read_slo(folder, product=chosen.product)
    promise = promise_of(slo, target=target, room=room)
    spec = served_spec(folder, product=chosen.product)
    found = measure(
        server,
        load,
        state=chosen.state_path,
        models=read_product(folder, chosen.product),
        spec=spec,
    )
    judged = judge(found.split, promise.layers_ms)
    in_time = found.in_time_percent(promise.within_ms)
    broken = _broken(judged, promise, in_time)
    if json:
        report = to_json(found, judged, promise, in_time=in_time, broken=broken)
        console.print_json(report)
    else:
        print_layers(found, judged, promise, in_time=in_time)
        print_steps(found)
    if broken:
        console.say("broken: " + "; ".join(broken))
        raise typer.Exit(1)


def _broken(judged: list[Judged], promise: Promise, in_time: float) -> list[str]:
    """
    List the layers that take too long, and whether too few responses were in time.
    """
    broken = [
        f"{one.layer} takes {one.judged_ms:.1f} ms of {one.limit_ms:g}"
        for one in judged
        if one.broken
    ]
    if in_time < promise.percent:
        broken.append(
            f"{in_time:.2f} % were decided within {promise.within_ms:g} ms, "
            f"{promise.percent:g} % are promised"
        )
    return broken
