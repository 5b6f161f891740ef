"""Search for better batcher settings on a staging server: `tollgate tune`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tollgate.cli import console
from tollgate.cli.operations.serve_commands import State
from tollgate.cli.options import Json
from tollgate.errors import InputError, SetupError

if TYPE_CHECKING:
    from tollgate.server.address import Address
    from tollgate.settings import Settings
    from tollgate.tuning.bench import Bench, TuningOptions
    from tollgate.tuning.driver import Traffic
    from tollgate.tuning.search import TuningResult

Product = Annotated[
    str | None, typer.Option(help="Ensemble to tune.", show_default="fraud")
]
Preset = Annotated[
    Literal["throughput", "low-latency"],
    typer.Option(
        help="throughput: highest rate within slo.yaml; low-latency: "
        "fastest answers to requests that come one after the other."
    ),
]
Try = Annotated[
    list[str] | None,
    typer.Option(
        "--try",
        metavar="KNOB=VALUE,…",
        help="Values to try for a setting: delay_us, preferred, threads, "
        "features_instances, model_instances, decision_instances; "
        "may be repeated.",
    ),
]


def tune(
    preset: Preset = "throughput",
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the configuration to write.",
            show_default="that of the preset, or the next free one",
        ),
    ] = None,
    values: Try = None,
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

    The command sends synthetic purchases, which change the store, and restarts the
    server's steps many times; after the search the steps run with their previous
    settings. Exit status 1: nothing better.
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
        tuned = bench.tune(report=_print_progress)
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
            console.out.print(f"written  {path}", highlight=False, soft_wrap=True)


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


def _print_progress(text: str) -> None:
    """Print the progress; each message stays on one line."""
    console.err.print(text, highlight=False, soft_wrap=True)


def _print_result(bench: Bench, tuned: TuningResult, folder: Path) -> None:
    """Print the Pareto front, a comparison with the best, and where the rest is."""
    from rich.table import Table

    from tollgate.tuning.report import ending

    table = Table(box=None, pad_edge=False)
    columns = ("requests/s", "decisions/s", "p50 ms", "p99 ms", "CPU s/1,000")
    table.add_column("settings that nothing beats in all")
    for column in columns:
        table.add_column(column, justify="right")
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
        console.out.print(line, highlight=False, soft_wrap=True)
    console.out.print(f"all runs    {folder}", highlight=False, soft_wrap=True)
