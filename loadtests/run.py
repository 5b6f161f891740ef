"""
Run scenarios of loadtests/scenarios.yaml as an open loop; write raw results.

    python -m loadtests.run SCENARIO... [--rate 2000] [--seconds 600] --out FOLDER

`python -m loadtests.page` reads what it writes.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from loadtests.paced.bench import Bench, Population, remote_bench, served
from loadtests.paced.driving import DRIVERS, Order, run_once
from loadtests.paced.raw import Raw, write_raw
from loadtests.paced.scenario import Scenario, read_scenario
from loadtests.results.surroundings import CHECKOUT
from tollgate.errors import InputError, TollgateError


class Options(msgspec.Struct, frozen=True):
    """Options of the command line."""

    scenarios: tuple[tuple[str, Scenario], ...]
    runs: int
    seed: int
    driver: str
    connections: int
    layers: bool
    label: str
    population: Population
    repository: Path
    config_name: str
    grpc_url: str
    out: Path
    command: str


def main(arguments: Sequence[str]) -> int:
    """Run, and write a file for each run; a known error prints one line."""
    try:
        options = _options(arguments)
        run_all(options)
    except TollgateError as error:
        print(f"loadtests.run: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _options(arguments: Sequence[str]) -> Options:
    given = _parser().parse_args(arguments)
    for name, least in (("runs", 1), ("connections", 1), ("seed", 0)):
        if getattr(given, name) < least:
            raise InputError(f"--{name}", f"{getattr(given, name)} is below {least}")
    scenarios = []
    for word in given.scenarios:
        name, scenario = read_scenario(word)
        for rate in given.rate or [None]:
            sized = scenario.at(
                rate=rate,
                seconds=given.seconds,
                rows=given.rows,
                warm_up_s=given.warm_up,
            )
            scenarios.append((name, sized))
    return Options(
        scenarios=tuple(scenarios),
        runs=given.runs,
        seed=given.seed,
        driver=given.driver,
        connections=given.connections,
        layers=given.layers,
        label=given.label,
        population=Population(given.customers, given.terminals),
        repository=given.repository,
        config_name=given.model_config_name,
        grpc_url=given.grpc_url,
        out=given.out,
        command=shlex.join(["python", "-m", "loadtests.run", *arguments]),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.run")
    add = parser.add_argument
    add("scenarios", nargs="+", metavar="SCENARIO", help="a name, or FILE:NAME")
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
    add("--customers", type=int, default=Population().customers)
    add("--terminals", type=int, default=Population().terminals)
    add("--repository", type=Path, default=CHECKOUT / "model_repository")
    add("--model-config-name", default="", help="named configuration to serve")
    add("--grpc-url", default="", help="a server that runs already, host:port")
    add("--out", type=Path, required=True, help="folder for the files")
    return parser


def run_all(options: Options) -> list[Path]:
    """
    Run every scenario once, then all a second time, and so on.

    Returns:
        Paths of the files.

    Raises:
        InputError: There are such files already.
        TollgateError: A run failed; the results of the runs before it stay.
    """
    _require_free(options)
    options.out.mkdir(parents=True, exist_ok=True)
    first = 0
    written = []
    with _bench(options) as bench:
        for run in range(1, options.runs + 1):
            for name, scenario in options.scenarios:
                order = _order(options, name, scenario, run=run, first=first)
                _say(f"{name}, {_size(scenario)}, run {run} of {options.runs}")
                raw = run_once(bench, order)
                first += len(raw.calls) * scenario.rows
                path = _path(options, name, scenario, run=run)
                write_raw(path, raw)
                written.append(path)
                _say(_summary(raw))
    for path in written:
        print(path)
    return written


def _order(
    options: Options, name: str, scenario: Scenario, *, run: int, first: int
) -> Order:
    return Order(
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


@contextmanager
def _bench(options: Options) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="tollgate-load-") as name:
        folder = Path(name)
        if options.grpc_url:
            yield remote_bench(
                options.grpc_url, options.repository, options.population, folder=folder
            )
            return
        troubles = [one.trouble for _, one in options.scenarios if one.trouble]
        with served(
            options.repository,
            options.population,
            folder=folder,
            behind_proxy=any(one.kind == "store-slow" for one in troubles),
            config_name=options.config_name,
            say=_say,
        ) as bench:
            yield bench


def _size(scenario: Scenario) -> str:
    return (
        f"{scenario.peak_rate:,.0f} requests/s of {scenario.rows} rows, "
        f"{scenario.seconds:,.0f} s"
    )


def _require_free(options: Options) -> None:
    """Raise if a result file exists already: results are not replaced."""
    taken: set[Path] = set()
    for run in range(1, options.runs + 1):
        for name, scenario in options.scenarios:
            path = _path(options, name, scenario, run=run)
            if path in taken:
                problem = f"{path.name} is requested twice: --runs repeats a scenario"
                raise InputError("scenario", problem)
            if path.exists():
                problem = "has results already: take another --out or --label"
                raise InputError(path, problem)
            taken.add(path)


def _path(options: Options, name: str, scenario: Scenario, *, run: int) -> Path:
    label = f"{options.label}-".replace("/", "-") if options.label else ""
    size = f"{scenario.peak_rate:.0f}x{scenario.rows}"
    return options.out / f"{label}{name}-{size}-{run}.npz"


def _summary(raw: Raw) -> str:
    took_ms = np.percentile(raw.calls["took_us"] / 1e3, [50, 99])
    failed = int((raw.calls["kind"] > 0).sum())
    return (
        f"  {len(raw.calls):,} requests, p50 {took_ms[0]:.1f} ms, p99 "
        f"{took_ms[1]:.1f} ms with the warm-up, {failed:,} without an answer"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
