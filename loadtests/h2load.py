"""
Measure the maximum throughput of one machine, and the latency at that load.

    python -m loadtests.h2load [--seconds 10] [--runs 3] [--out FILE] [--only NAME]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

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
from loadtests.requests.generator import (
    TAIL_S,
    Scenario,
    command_line,
    make_generator,
    pick,
)
from loadtests.results.markdown import markdown_table, share, spread
from loadtests.results.measure import LimitBench, Run, measure
from loadtests.results.surroundings import MeasurementConditions, measurement_conditions

WARM_UP_S = 2.0


class Measured(msgspec.Struct, frozen=True):
    """One scenario and its runs."""

    scenario: Scenario
    runs: tuple[Run, ...]


class LimitReport(msgspec.Struct, frozen=True):
    """
    Results of a complete measurement.

    Attributes:
        surroundings: Machine, commit and versions.
        release: Release that decided.
        history: Description of the store's contents before.
        warm_up_s: Warm-up of each run, s.
        measured: Results by scenario.
    """

    surroundings: MeasurementConditions
    command: str
    release: str
    history: str
    warm_up_s: float
    measured: tuple[Measured, ...]


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


def to_json(report: LimitReport) -> bytes:
    """Write all figures as JSON, for programs."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def to_markdown(report: LimitReport) -> str:
    """Write the summary as Markdown, for people."""
    around = report.surroundings
    seconds = report.measured[0].runs[0].measured_s
    count = len(report.measured[0].runs)
    versions = ", ".join(f"{name} {value}" for name, value in around.versions.items())
    lines = [
        f"Measured {around.date} at commit `{around.commit}`.",
        "",
        f"* Hardware: {around.hardware}; generator, server and store share it.",
        f"* Versions: {versions}; release `{report.release}`.",
        f"* Command: `{report.command}`",
        f"* Store before: {report.history}.",
        f"* Per run: {report.warm_up_s:g} s warm-up, then {seconds:g} s measured; "
        f"{_runs(count)} per scenario, closed loop, every request with purchases of "
        "its own.",
        "* Figures: median (lowest … highest) of the runs; percentiles from the raw "
        "samples of each run, max the highest of all.",
        "",
        *_latency_table(report),
        "",
        *_work_table(report),
    ]
    notes = _notes(report)
    if notes:
        lines += ["", *notes]
    lines += ["", "h2load's own command lines:", "", "```", *_commands(report), "```"]
    return "\n".join(lines) + "\n"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _latency_table(report: LimitReport) -> list[str]:
    head = (
        *("rows per request", "in flight", "requests/s", "decisions/s"),
        *("p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms", "errors", "degraded"),
    )
    return markdown_table(head, [_latency_row(one) for one in report.measured])


def _latency_row(one: Measured) -> list[str]:
    scenario, runs = one.scenario, one.runs
    errors = sum(_errors(run) for run in runs)
    degraded = sum(run.tally.degraded_rows for run in runs)
    rows = sum(run.tally.rows for run in runs)
    return [
        str(scenario.rows),
        f"{scenario.in_flight} ({scenario.connections} x {scenario.streams})",
        spread([run.requests_per_s for run in runs], 0),
        spread([run.decisions_per_s for run in runs], 0),
        spread([run.latency.p50_ms for run in runs], 1),
        spread([run.latency.p90_ms for run in runs], 1),
        spread([run.latency.p99_ms for run in runs], 1),
        spread([run.latency.p999_ms for run in runs], 1),
        f"{max(run.latency.max_ms for run in runs):.1f}",
        str(errors),
        share(degraded, rows),
    ]


def _work_table(report: LimitReport) -> list[str]:
    head = (
        *(
            "rows per request",
            "in flight",
            "new bodies",
            "writes per purchase",
            "rows per feature batch",
        ),
        *("rows per model batch", "server CPU ms per request", "generator CPU"),
        *("PSS MB", "RSS MB"),
    )
    return markdown_table(head, [_work_row(one) for one in report.measured])


def _work_row(one: Measured) -> list[str]:
    scenario, runs = one.scenario, one.runs
    return [
        str(scenario.rows),
        str(scenario.in_flight),
        f"{min(run.new_share for run in runs):.1%}",
        spread([run.writes_per_purchase for run in runs], 2),
        spread([_feature_batch(run) for run in runs], 1),
        spread([_model_batch(run) for run in runs], 1),
        spread([_server_cpu_ms(run) for run in runs], 2),
        f"{max(_generator_share(run) for run in runs):.0%}",
        f"{max(run.use.pss_mb for run in runs):.0f}",
        f"{max(run.use.rss_mb for run in runs):.0f}",
    ]


def _feature_batch(run: Run) -> float:
    return run.work.purchases / max(1, run.work.feature_batches)


def _model_batch(run: Run) -> float:
    return run.work.purchases / max(1, run.work.model_batches)


def _server_cpu_ms(run: Run) -> float:
    return run.work.cpu_s * 1e3 / max(1, run.work.answered)


def _generator_share(run: Run) -> float:
    """Return the share of all processor time that h2load used."""
    return run.generator_cpu_s / max(1e-9, run.generator_cpu_s + run.work.cpu_s)


def _errors(run: Run) -> int:
    return run.tally.refused_rows + sum(run.tally.failures.values())


def _notes(report: LimitReport) -> list[str]:
    """List failures, degraded bits, refused rows and bodies that flow control cut."""
    lines = []
    for one in report.measured:
        reasons: Counter[str] = Counter()
        for run in one.runs:
            reasons.update(run.tally.failures)
            reasons.update(run.tally.degraded)
            reasons["rows refused"] += run.tally.refused_rows
            reasons["bodies cut by flow control"] += run.continued_bodies
        text = ", ".join(f"{reason}: {count}" for reason, count in (+reasons).items())
        if text:
            lines.append(f"* `{one.scenario.name}`: {text}")
    return lines


def _commands(report: LimitReport) -> list[str]:
    from shlex import join

    return [
        join(
            command_line(
                one.scenario,
                grpc_url="127.0.0.1:PORT",
                run_s=report.warm_up_s + one.runs[0].measured_s + TAIL_S,
            )
        )
        for one in report.measured
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
