"""
Measure the maximum throughput of one machine, and the latency at that load.

    python -m loadtests.h2load [--seconds 10] [--runs 3] [--out FILE] [--only NAME]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtests.harness import (
    Population,
    Report,
    StoreContents,
    add_population,
    add_repository,
    command_parser,
    run_command,
    say,
    serve_filled,
    temporary_folder,
)
from loadtests.requests.generator import Scenario, make_generator, pick
from loadtests.results.measure import LimitBench, Run, measure
from loadtests.results.run_report import LimitReport, Measured, to_json, to_markdown
from loadtests.results.surroundings import measurement_conditions

WARM_UP_S = 2.0


def main(arguments: Sequence[str]) -> int:
    """Measure, and print or write the report."""
    parser = command_parser("h2load")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured per run")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, metavar="SECONDS")
    parser.add_argument("--runs", type=int, default=3, help="per scenario")
    parser.add_argument("--only", metavar="NAME", help="one scenario")
    add_population(parser)
    parser.add_argument("--out", type=Path, help="Markdown here, JSON next to it")
    add_repository(parser)
    least = {"seconds": 0.1, "warm_up": 0.0, "runs": 1}
    return run_command(parser, arguments, measure=measure_limit, least=least)


def measure_limit(options: argparse.Namespace) -> Report:
    """
    Serve the product from a temporary state, fill its store, and measure.

    Raises:
        SetupError: This machine lacks a program or a library.
        ServerError: The product or h2load failed.
    """
    scenarios = pick(options.only)
    population = Population(options.customers, options.terminals)
    with temporary_folder("load") as folder:
        generator = make_generator(folder)
        say("simulating the history")
        contents = StoreContents(population, repository=options.repository)
        with serve_filled(
            contents, folder / "state", repository=options.repository
        ) as server:
            bench = LimitBench(server, generator, contents.traffic, folder)
            report = LimitReport(
                surroundings=measurement_conditions(server, h2load=generator.version),
                command=options.command,
                release=server.serving["fraud"].release,
                history=str(contents),
                warm_up_s=options.warm_up,
                measured=_measure_all(bench, scenarios, options),
            )
    return Report(to_markdown(report), data=to_json(report))


def _measure_all(
    bench: LimitBench, scenarios: Sequence[Scenario], options: argparse.Namespace
) -> tuple[Measured, ...]:
    """Measure all runs; each continues in the traffic where the last one stopped."""
    first = 0
    measured = []
    for scenario in scenarios:
        runs: list[Run] = []
        for number in range(1, options.runs + 1):
            run, first = measure(
                bench,
                scenario,
                first=first,
                warm_up_s=options.warm_up,
                measured_s=options.seconds,
            )
            runs.append(run)
            say(
                f"{scenario.name}, run {number}: {run.decisions_per_s:,.0f} "
                f"decisions/s, p50 {run.latency.p50_ms:.1f} ms, "
                f"p99 {run.latency.p99_ms:.1f} ms"
            )
        measured.append(Measured(scenario=scenario, runs=tuple(runs)))
    return tuple(measured)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
