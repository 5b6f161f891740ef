"""
Run scenarios of loadtests/scenarios.yaml as an open loop; write raw results.

    python -m loadtests.run SCENARIO... [--rate 2000] [--seconds 600] --out FOLDER

`python -m loadtests.page` reads what it writes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from loadtests.harness import (
    Population,
    Report,
    add_population,
    add_repository,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from loadtests.paced.bench import Bench, remote_bench, served
from loadtests.paced.driving import DRIVERS, Order, run_once
from loadtests.paced.raw import Raw, write_raw
from loadtests.paced.scenario import Scenario, read_scenario
from tollgate.errors import InputError


def main(arguments: Sequence[str]) -> int:
    """Run, and write a file for each run."""
    parser = command_parser("run")
    add = parser.add_argument
    add("names", nargs="+", metavar="SCENARIO", help="a name, or FILE:NAME")
    add("--rate", type=float, nargs="+", help="requests/s at the busiest; each is run")
    add("--seconds", type=float, help="length of the whole")
    add("--rows", type=int, help="in each request")
    add("--warm-up", type=float, metavar="SECONDS", help="not counted")
    add("--runs", type=int, default=1, help="of each, in turns")
    add("--layers", action="store_true", help="record the batches of the steps, too")
    add("--driver", choices=DRIVERS, default=DRIVERS[0], help="who sends")
    add("--connections", type=int, default=4)
    add("--seed", type=int, default=1)
    add("--label", default="", help="name of the measured variant in the report")
    add_population(parser)
    add_repository(parser)
    add("--model-config-name", default="", help="named configuration to serve")
    add("--grpc-url", default="", help="a server that runs already, host:port")
    add("--out", dest="folder", type=Path, required=True, help="folder for the files")
    least = {"runs": 1, "connections": 1, "seed": 0}
    return run_command(parser, arguments, measure=measure, least=least)


def measure(options: argparse.Namespace) -> Report:
    """Run the scenarios, and list the files."""
    return Report("\n".join(map(str, run_all(options))))


def run_all(options: argparse.Namespace) -> list[Path]:
    """
    Run every scenario once, then all a second time, and so on.

    Returns:
        Paths of the files.

    Raises:
        InputError: There are such files already.
        TollgateError: A run failed; the results of the runs before it stay.
    """
    scenarios = _scenarios(options)
    _require_free(options, scenarios)
    options.folder.mkdir(parents=True, exist_ok=True)
    first = 0
    written = []
    with _bench(options, scenarios) as bench:
        for run in range(1, options.runs + 1):
            for name, scenario in scenarios:
                order = Order(
                    name=name,
                    scenario=scenario,
                    run=run,
                    seed=options.seed + run - 1,
                    first=first,
                    driver=options.driver,
                    connections=options.connections,
                    layers=options.layers,
                    label=options.label,
                    command=options.command,
                )
                say(f"{name}, {_size(scenario)}, run {run} of {options.runs}")
                raw = run_once(bench, order)
                first += len(raw.calls) * scenario.rows
                path = _path(options, name, scenario, run=run)
                write_raw(path, raw)
                written.append(path)
                say(_summary(raw))
    return written


def _scenarios(options: argparse.Namespace) -> list[tuple[str, Scenario]]:
    """Read the scenarios, each at every rate."""
    scenarios = []
    for word in options.names:
        name, scenario = read_scenario(word)
        for rate in options.rate or [None]:
            sized = scenario.at(
                rate=rate,
                seconds=options.seconds,
                rows=options.rows,
                warm_up_s=options.warm_up,
            )
            scenarios.append((name, sized))
    return scenarios


@contextmanager
def _bench(
    options: argparse.Namespace, scenarios: Sequence[tuple[str, Scenario]]
) -> Iterator[Bench]:
    population = Population(options.customers, options.terminals)
    repository = options.repository
    with temporary_folder("load") as folder:
        if options.grpc_url:
            yield remote_bench(options.grpc_url, repository, population, folder=folder)
            return
        troubles = [one.trouble for _, one in scenarios if one.trouble]
        with served(
            repository,
            population,
            folder=folder,
            behind_proxy=any(one.kind == "store-slow" for one in troubles),
            config_name=options.model_config_name,
        ) as bench:
            yield bench


def _size(scenario: Scenario) -> str:
    return (
        f"{scenario.peak_rate:,.0f} requests/s of {scenario.rows} rows, "
        f"{scenario.seconds:,.0f} s"
    )


def _require_free(
    options: argparse.Namespace, scenarios: Sequence[tuple[str, Scenario]]
) -> None:
    """Raise if a result file exists already: results are not replaced."""
    taken: set[Path] = set()
    for run in range(1, options.runs + 1):
        for name, scenario in scenarios:
            path = _path(options, name, scenario, run=run)
            if path in taken:
                problem = f"{path.name} is requested twice: --runs repeats a scenario"
                raise InputError("scenario", problem)
            if path.exists():
                problem = "has results already: take another --out or --label"
                raise InputError(path, problem)
            taken.add(path)


def _path(
    options: argparse.Namespace, name: str, scenario: Scenario, *, run: int
) -> Path:
    label = f"{options.label}-".replace("/", "-") if options.label else ""
    size = f"{scenario.peak_rate:.0f}x{scenario.rows}"
    return options.folder / f"{label}{name}-{size}-{run}.npz"


def _summary(raw: Raw) -> str:
    took_ms = np.percentile(raw.calls["took_us"] / 1e3, [50, 99])
    failed = int((raw.calls["kind"] > 0).sum())
    return (
        f"  {len(raw.calls):,} requests, p50 {took_ms[0]:.1f} ms, p99 "
        f"{took_ms[1]:.1f} ms with the warm-up, {failed:,} without an answer"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
