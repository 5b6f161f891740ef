"""
Measure the maximum throughput of one machine, and the latency at that load.

    python -m loadtests.h2load [--seconds 10] [--runs 3] [--out FILE] [--only NAME]
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtests.requests.closed_loop import Scenario, pick
from loadtests.requests.generator import make_generator
from loadtests.results.measure import LimitBench, Run, measure
from loadtests.results.run_report import Measured, Report, to_json, to_markdown
from loadtests.results.surroundings import CHECKOUT, measurement_conditions
from tollgate.errors import InputError, TollgateError
from tollgate.load.store_contents import (
    HISTORY_DAYS,
    compact_store,
    fill_store,
    served_spec,
    simulated_history,
)
from tollgate.load.traffic import traffic_of

WARM_UP_S = 2.0


class Options(msgspec.Struct, frozen=True):
    """Options of the command line."""

    repository: Path
    scenarios: tuple[Scenario, ...]
    seconds: float
    warm_up_s: float
    runs: int
    customers: int
    terminals: int
    out: Path | None


def main(arguments: Sequence[str]) -> int:
    """Measure, and print or write the report; a known error prints one line."""
    try:
        options = _options(arguments)
        command = shlex.join(["python", "-m", "loadtests.h2load", *arguments])
        report = run_all(options, command=command)
    except TollgateError as error:
        print(f"loadtests.h2load: {error}", file=sys.stderr)
        return error.exit_status
    text = to_markdown(report)
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)
        options.out.with_suffix(".json").write_bytes(to_json(report))
    return 0


def _options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m loadtests.h2load")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured per run")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, metavar="SECONDS")
    parser.add_argument("--runs", type=int, default=3, help="per scenario")
    parser.add_argument("--only", metavar="NAME", help="one scenario")
    parser.add_argument("--customers", type=int, default=5_000)
    parser.add_argument("--terminals", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="Markdown here, JSON next to it")
    parser.add_argument(
        "--repository", type=Path, default=CHECKOUT / "model_repository"
    )
    given = parser.parse_args(arguments)
    for name, least in (("seconds", 0.1), ("warm_up", 0.0), ("runs", 1)):
        if getattr(given, name) < least:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(flag, f"{getattr(given, name)} is below {least}")
    if given.out is not None and not given.out.resolve().parent.is_dir():
        raise InputError("--out", f"{given.out.parent} is not a folder")
    return Options(
        repository=given.repository,
        scenarios=pick(given.only),
        seconds=given.seconds,
        warm_up_s=given.warm_up,
        runs=given.runs,
        customers=given.customers,
        terminals=given.terminals,
        out=given.out,
    )


def run_all(options: Options, *, command: str) -> Report:
    """
    Serve the product from a temporary state, fill its store, and measure.

    Raises:
        SetupError: This machine lacks a program or a library.
        ServerError: The product or h2load failed.
    """
    from tollgate.server.serving.embedded import serve

    with tempfile.TemporaryDirectory(prefix="tollgate-load-") as name:
        folder = Path(name)
        generator = make_generator(folder)
        spec = served_spec(options.repository)
        _say("simulating the history")
        history = simulated_history(
            spec,
            customers=options.customers,
            terminals=options.terminals,
            days=HISTORY_DAYS,
        )
        with serve(options.repository, state=folder / "state") as server:
            _say(f"filling the store with {len(history):,} purchases")
            fill_store(spec, history, store_url=server.store_url)
            compact_store(server.store_url)
            bench = LimitBench(
                server=server,
                generator=generator,
                traffic=traffic_of(history, days=HISTORY_DAYS),
                folder=folder,
            )
            return Report(
                surroundings=measurement_conditions(server, h2load=generator.version),
                command=command,
                release=server.serving["fraud"].release,
                history=f"{len(history):,} simulated purchases of "
                f"{options.customers:,} customers at {options.terminals:,} terminals "
                f"over {HISTORY_DAYS} days",
                warm_up_s=options.warm_up_s,
                measured=_measure_all(bench, options),
            )


def _measure_all(bench: LimitBench, options: Options) -> tuple[Measured, ...]:
    """
    Measure all runs; each continues in the traffic where the previous one stopped.
    """
    first = 0
    measured = []
    for scenario in options.scenarios:
        runs: list[Run] = []
        for number in range(1, options.runs + 1):
            run, first = measure(
                bench,
                scenario,
                first=first,
                warm_up_s=options.warm_up_s,
                measured_s=options.seconds,
            )
            runs.append(run)
            _say(
                f"{scenario.name}, run {number}: {run.decisions_per_s:,.0f} "
                f"decisions/s, p50 {run.latency.p50_ms:.1f} ms, "
                f"p99 {run.latency.p99_ms:.1f} ms"
            )
        measured.append(Measured(scenario=scenario, runs=tuple(runs)))
    return tuple(measured)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
