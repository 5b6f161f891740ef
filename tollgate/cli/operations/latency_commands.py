"""Measure and tune latency: `tollgate budget` and `tollgate tune`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import typer
from rich.table import Table

from tollgate.cli import console
from tollgate.cli.options import Json, Product, State
from tollgate.cli.repositories import open_for_reading
from tollgate.errors import InputError, SetupError

if TYPE_CHECKING:
    from tollgate.latency_budget.layers import Judged
    from tollgate.latency_budget.measurement import Load, Measured
    from tollgate.load.arrivals import F64
    from tollgate.repository.slo import Layers, Slo
    from tollgate.server.address import Address
    from tollgate.settings import Settings
    from tollgate.tuning.bench import Bench, TuningOptions
    from tollgate.tuning.driver import Traffic
    from tollgate.tuning.search import TuningResult


class Promise(msgspec.Struct, frozen=True):
    """Limits to judge by: the promise (SLA) of a slo.yaml, or its aim (SLO)."""

    layers_ms: Layers
    within_ms: float
    percent: float


def promise_of(slo: Slo, *, target: bool, room: float) -> Promise:
    """
    Read the limits to judge by from a slo.yaml.

    Args:
        slo: The product's slo.yaml.
        target: True to take its aim (`target_ms`) instead of its promise.
        room: Factor that every limit is multiplied by.

    Raises:
        InputError: The slo.yaml has no aim.
    """
    if not target:
        layers, within_ms = slo.layers_ms, slo.latency_objective_ms
    elif slo.target_ms is not None:
        layers, within_ms = slo.target_ms, slo.latency_target_ms
    else:
        raise InputError("--target", "the product's slo.yaml has no target_ms")
    return Promise(layers.scaled(room), within_ms * room, slo.objective_percent)


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
    from tollgate.latency_budget.layers import judge
    from tollgate.latency_budget.measurement import Load, measure
    from tollgate.repository.product_models import read_product
    from tollgate.repository.releases.served_versions import served_spec
    from tollgate.repository.slo import read_slo
    from tollgate.server.address import find_server

    chosen = console.settings(product=product, state=state, repository=repository)
    load = Load(rate_per_s=rate, seconds=seconds, rows=rows, dry=not apply)
    if grpc_url is not None:
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
    """List layers that take too long, and whether too few responses were in time."""
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


def judge_answers(
    grpc_url: str,
    load: Load,
    *,
    chosen: Settings,
    target: bool,
    room: float,
    json: bool,
) -> None:
    """
    Send a load and print its response times; exit with status 1 if too few are in time.

    Raises:
        ServerError: No server responds at the address.
    """
    from tollgate.latency_budget.measurement import measure_answers
    from tollgate.repository.releases.served_versions import served_spec
    from tollgate.repository.slo import read_slo

    with open_for_reading(chosen) as models:
        slo = read_slo(models, product=chosen.product)
        promise = promise_of(slo, target=target, room=room)
        spec = served_spec(models, product=chosen.product)
    sent = measure_answers(
        grpc_url,
        load,
        product=chosen.product,
        spec=spec,
    )
    latency_ms = sent.latency_s * 1e3
    in_time = 100 * float(np.mean(sent.answered & (latency_ms <= promise.within_ms)))
    result = {
        "load": load,
        "answered_percent": 100 * float(np.mean(sent.answered)),
        "in_time_percent": in_time,
        "within_ms": promise.within_ms,
        "promised_percent": promise.percent,
        "p50_ms": float(np.percentile(latency_ms, 50)),
        "p99_ms": float(np.percentile(latency_ms, 99)),
    }
    if json:
        console.print_json(result)
    else:
        console.result(
            f"{len(latency_ms):,} requests of {load.rows} rows at {load.rate_per_s:g} "
            f"per second, {'dry' if load.dry else 'applied'}: p50 "
            f"{result['p50_ms']:.1f} ms, p99 {result['p99_ms']:.1f} ms; "
            f"{in_time:.2f} % "
            f"decided within {promise.within_ms:g} ms, {promise.percent:g} % are "
            "promised"
        )
    if in_time < promise.percent:
        console.say("broken: too few were decided in time")
        raise typer.Exit(1)


_PERCENTILES = (50, 99)


def to_json(
    found: Measured,
    judged: list[Judged],
    promise: Promise,
    *,
    in_time: float,
    broken: list[str],
) -> dict[str, Any]:
    """Convert the result to a dictionary with a name for every value, for programs."""
    mean_ms, p50_ms, p99_ms = _mean_and_percentiles(found.split.in_server_ms)
    product, *steps = found.counts
    return {
        "load": found.load,
        "layers": judged,
        "in_server": {"mean_ms": mean_ms, "p50_ms": p50_ms, "p99_ms": p99_ms},
        "triton_mean_ms": found.counts[product].whole_ms,
        "steps": {
            step: {
                "requests": found.counts[step].requests,
                "rows_per_batch": found.counts[step].rows_per_batch,
                "queue_ms": found.counts[step].queue_ms,
                "work_ms": found.counts[step].work_ms,
                "busy": found.at_once.busy[step],
            }
            for step in steps
        },
        "busy_together": found.at_once.together,
        "requests_of_others": found.others,
        "lost_batches": found.lost,
        "sender": found.sender,
        "in_time_percent": in_time,
        "within_ms": promise.within_ms,
        "broken": broken,
    }


def print_layers(
    found: Measured, judged: list[Judged], promise: Promise, *, in_time: float
) -> None:
    """Print the budget next to the measured times, and the load that was sent."""
    table = _table("layer", "budget ms", "mean ms", "p50 ms", "p99 ms", "")
    for one in judged:
        cells = [_ms(x) for x in (one.limit_ms, one.mean_ms, one.p50_ms, one.p99_ms)]
        table.add_row(one.layer, *cells, "broken" if one.broken else "")
    table.add_row("reserve", _ms(promise.layers_ms.reserve), "", "", "", "")
    in_server = map(_ms, _mean_and_percentiles(found.split.in_server_ms))
    table.add_row("in the server", "", *in_server, "")
    late = map(_ms, _mean_and_percentiles((found.sent.sent_s - found.sent.due_s) * 1e3))
    table.add_row("sent late", "", *late, "")
    whole = map(_ms, _mean_and_percentiles(found.sent.latency_s * 1e3))
    table.add_row("whole", _ms(promise.within_ms), *whole, "")
    console.out.print(table)
    load = found.load
    console.result(
        f"{len(found.sent.due_s):,} requests of {load.rows} rows at "
        f"{load.rate_per_s:g} per second, {'dry' if load.dry else 'applied'}, "
        f"{found.sender} sender; {in_time:.2f} % decided within "
        f"{promise.within_ms:g} ms, {promise.percent:g} % are promised"
    )


def print_steps(found: Measured) -> None:
    """Print Triton's statistics of each step, and how many instances worked at once."""
    product, *steps = found.counts
    table = _table("step", "rows per batch", "queue ms", "work ms", "busy %")
    for step in steps:
        counts, busy = found.counts[step], found.at_once.busy[step]
        cells = (counts.rows_per_batch, counts.queue_ms, counts.work_ms, 100 * busy)
        table.add_row(step, *map(_ms, cells))
    console.out.print()
    console.out.print(table)
    _, one, *more = (100 * share for share in found.at_once.together)
    line = (
        f"one step busy {one:.1f} % of the time, several at once {sum(more):.1f} %; "
        f"Triton's own mean of {product} is {found.counts[product].whole_ms:.1f} ms"
    )
    if found.others:
        line += f"; {found.others:,} requests of others are in Triton's means"
    if found.lost:
        line += f"; {found.lost:,} batches were not reported"
    console.result(line)


def _mean_and_percentiles(values: F64) -> tuple[float, float, float]:
    """Format mean, median and 99th percentile."""
    p50, p99 = np.percentile(values, _PERCENTILES).tolist()
    return float(values.mean()), p50, p99


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place and column else "left")
    return table


def tune(
    preset: Annotated[
        Literal["throughput", "low-latency"],
        typer.Option(
            help="throughput: highest rate within slo.yaml; low-latency: "
            "fastest answers to requests that come one after the other."
        ),
    ] = "throughput",
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the configuration to write.",
            show_default="that of the preset, or the next free one",
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KNOB=VALUE,…",
            help="Values to try for a setting: form (ensemble, fused), delay_us, "
            "preferred, threads, features_instances, model_instances, "
            "decision_instances, fused_queue_delay_us; may be repeated.",
        ),
    ] = None,
    most: Annotated[
        int, typer.Option(help="Maximum number of settings to try.", min=1)
    ] = 16,
    seconds: Annotated[
        float,
        typer.Option(help="Seconds of a first run; later ones are longer.", min=0.5),
    ] = 3.0,
    turns: Annotated[
        int, typer.Option(help="Rounds of the comparison at the end.", min=3, max=10)
    ] = 5,
    rows: Annotated[
        int, typer.Option(help="Purchases per request.", min=1, max=32)
    ] = 1,
    p99: Annotated[
        float | None,
        typer.Option(
            help="Maximum p99 latency, in milliseconds.",
            metavar="MS",
            min=0.1,
            show_default="latency_target_ms of slo.yaml",
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(help="Requests per second at the start.", min=5)
    ] = 100.0,
    seed: Annotated[int, typer.Option(help="Seed of the random choices.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the results into.", show_default="STATE/tune/NAME"
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option(help="Write the best settings as a named configuration.")
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", help="Tune the server even if it may have callers.")
    ] = False,
    restore: Annotated[
        bool,
        typer.Option(
            "--restore", help="Only restore settings that a killed run left behind."
        ),
    ] = False,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """
    Search for batcher settings with which a staging server carries more load.

    It tries both forms of the product, ensemble and fused, and recommends one of them.
    The command sends synthetic purchases, which change the store, and restarts the
    server's steps many times; after the search the product runs in the same form, with
    the previous settings. Exit status 1: nothing better.
    """
    from tollgate.tuning.bench import TuningOptions

    chosen = console.settings(product=product, state=state)
    wanted = TuningOptions(
        preset=preset,
        name=name or "",
        values=tuple(values or ()),
        most=most,
        seconds=seconds,
        turns=turns,
        rows=rows,
        p99_ms=p99,
        rate_per_s=rate,
        seed=seed,
        cores=len(os.sched_getaffinity(0)),
        command=_command_line(preset, seconds, values or [], rows=rows, p99=p99),
    )
    server = _server(chosen, yes=yes or restore, write=write)
    try:
        with _ended_by_signals():
            _tune(
                chosen,
                wanted,
                server,
                out=out,
                write=write,
                restore=restore,
                as_json=as_json,
            )
    except KeyboardInterrupt:
        console.say("ended; the server runs as before, and nothing was written")
        raise


def _tune(
    chosen: Settings,
    wanted: TuningOptions,
    server: Address,
    *,
    out: Path | None,
    write: bool,
    restore: bool,
    as_json: bool,
) -> None:
    from tollgate.tuning.bench import Bench

    traffic = _traffic(server, product=chosen.product, rows=wanted.rows)
    bench = Bench(server, wanted, traffic=traffic, state=chosen.state_path)
    if write and not restore:
        bench.require_free_name()
    with bench.override as override:
        if override.left:
            console.say(f"put back: {', '.join(override.left)}")
        if restore:
            return
        tuned = bench.tune(report=console.say)
    folder = out or chosen.state_path / "tune" / bench.wanted.name
    bench.keep(tuned, folder)
    if not as_json:
        _print_result(bench, tuned, folder)
    written = bench.write(tuned) if write and tuned.winner is not None else []
    if as_json:
        report = {
            "circumstances": bench.circumstances(),
            "tuned": tuned,
            "folder": folder,
            "written": written,
        }
        console.print_json(report)
    if tuned.winner is None:
        raise typer.Exit(1)
    if not as_json:
        for path in written:
            console.result(f"written  {path}")


def _command_line(
    preset: str, seconds: float, values: list[str], *, rows: int, p99: float | None
) -> str:
    """Write the command line without names of folders."""
    words = [f"--preset {preset}", f"--seconds {seconds:g}"]
    words += [f"--try {one}" for one in values]
    words += [f"--rows {rows}"] if rows > 1 else []
    words += [f"--p99 {p99:g}"] if p99 else []
    return " ".join(["tollgate tune", *words])


def _traffic(server: Address, *, product: str, rows: int) -> Traffic:
    """Describe the requests of the product, for the load."""
    from tollgate.repository.releases.served_versions import served_spec
    from tollgate.repository.slo import read_slo
    from tollgate.tuning.driver import Traffic

    folder = Path(server.repository)
    spec = served_spec(folder, product=product)
    return Traffic(
        product=product,
        spec=spec,
        rows=rows,
        within_ms=read_slo(folder, product=product).latency_objective_ms,
    )


def _server(chosen: Settings, *, yes: bool, write: bool) -> Address:
    """Find the server; refuse one that may have callers."""
    from tollgate.server.address import find_server
    from tollgate.tuning.bench import require_idle

    server = find_server(chosen.state_path)
    if server is None:
        remedy = "start `tollgate up`"
        raise SetupError(f"no server runs in {chosen.state}", remedy=remedy)
    if server.origin and write:
        problem = f"{server.origin} is an object store; --no-write, or tune a folder"
        raise InputError("--write", problem)
    if not yes:
        if not chosen.staging:
            problem = "would load this server and restart its steps; say `staging: "
            problem += "true` in tollgate.yaml where that may be, or --yes"
            raise InputError("tune", problem)
        try:
            require_idle(server)
        except InputError as error:
            problem = f"{error.problem}; --yes goes on all the same"
            raise InputError(error.source, problem) from error
    return server


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C during the search, so that settings are restored."""
    import signal

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_result(bench: Bench, tuned: TuningResult, folder: Path) -> None:
    """Print the Pareto front, a comparison with the best, and where the rest is."""
    from tollgate.tuning.report import ending

    columns = ("requests/s", "decisions/s", "p50 ms", "p99 ms", "CPU s/1,000")
    table = console.number_table("settings that nothing beats in all", *columns)
    for point in bench.points(tuned):
        seen = point.seen
        cells = (
            f"{seen.answered_per_s:,.0f}",
            f"{seen.answered_per_s * bench.wanted.rows:,.0f}",
            f"{seen.p50_ms:.1f}",
            f"{seen.p99_ms:.1f}",
            f"{seen.cpu_s:.2f}",
        )
        if point.on_front:
            table.add_row(str(point.candidate), *cells)
    console.out.print(table)
    for line in ending(tuned, bench.circumstances()):
        console.result(line)
    console.result(f"all runs    {folder}")
