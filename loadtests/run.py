"""
Run scenarios of loadtests/scenarios.yaml as an open loop; write raw results.

    python -m loadtests.run SCENARIO... [--rate 2000] [--seconds 600] --out FOLDER
    python -m loadtests.run steady --share 0.5 0.7 --form fused --out FOLDER
    python -m loadtests.run steady --rows 16 --p99-ms 20 --out FOLDER

`python -m loadtests.pages` reads what it writes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median_low

import msgspec
import numpy as np
import numpy.typing as npt

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
from loadtests.paced.bench import (
    STATE_FOLDER,
    Bench,
    counting,
    fault_injection,
    marks_of,
    open_bench,
    remote_bench,
    stream_read,
)
from loadtests.paced.raw import BATCH, About, Raw, no_batches, write_raw
from loadtests.paced.requests import write_bodies
from loadtests.paced.scenario import Scenario, arrivals, read_scenario
from loadtests.requests.generator import make_generator, pick
from loadtests.results.measure import LimitBench
from loadtests.results.measure import measure as limit_run
from tollgate.errors import InputError, ServerError
from tollgate.latency_budget.layers import Queues, queues_of, split
from tollgate.latency_budget.step_batches import I64, Batches, record_batches
from tollgate.latency_budget.step_counts import counts_in_one_model, counts_of
from tollgate.load.arrivals import F64
from tollgate.load.asyncio_sender import AsyncioSender
from tollgate.load.bodies import Load
from tollgate.load.compiled_sender import CompiledSender
from tollgate.load.results import Results
from tollgate.load.sender import Sender
from tollgate.repository.product_models import read_product
from tollgate.server.triton.control import is_fused

_LIMIT_WARM_UP_S, _LIMIT_S = 2.0, 5.0
_STEPS = 6  # of a search: to a 64th of the closed loop's rate


def main(arguments: Sequence[str]) -> int:
    """Run, and write a file for each run."""
    parser = command_parser("run")
    add = parser.add_argument
    add("names", nargs="+", metavar="SCENARIO", help="a name, or FILE:NAME")
    size = parser.add_mutually_exclusive_group()
    rates = "requests/s at the busiest; each is run"
    size.add_argument("--rate", type=float, nargs="+", help=rates)
    shares = "rates as shares of the closed loop's, measured before"
    size.add_argument("--share", type=float, nargs="+", help=shares)
    limit = "search the highest rate with this p99"
    size.add_argument("--p99-ms", type=float, help=limit)
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
    add("--form", choices=("ensemble", "fused"), default="", help="of the product")
    add("--model-config-name", default="", help="named configuration to serve")
    add("--grpc-url", default="", help="a server that runs already, host:port")
    add("--out", dest="folder", type=Path, required=True, help="folder for the files")
    least = {"runs": 1, "connections": 1, "seed": 0}
    return run_command(parser, arguments, measure=measure, least=least)


def measure(options: argparse.Namespace) -> Report:
    """Run the scenarios; list what a search found, and the files."""
    return Report("\n".join(run_all(options)))


def run_all(options: argparse.Namespace) -> list[str]:
    """
    Run every scenario once, then all a second time, and so on.

    Returns:
        What a search found, and paths of the files.

    Raises:
        InputError: There are such files already, or rates depend on the closed loop of
            a server at an address.
        TollgateError: A run failed; the results of the runs before it stay.
    """
    scenarios = _scenarios(options, options.rate or [None])
    relative = options.share or options.p99_ms
    if relative and options.grpc_url:
        raise InputError("--grpc-url", "a rate found by measuring needs our own server")
    if not relative:
        _require_free(options, scenarios)
    options.folder.mkdir(parents=True, exist_ok=True)
    with _bench(options, scenarios) as bench:
        runs = Runs(bench, options)
        if not relative:
            runs.in_turns(scenarios)
            return [*map(str, runs.files)]
        found = []
        for name, scenario in scenarios:
            most = runs.closed_loop(scenario)
            if options.share:
                rates = [scenario.at(rate=share * most) for share in options.share]
                runs.in_turns([(name, one) for one in rates])
                continue
            rate = highest_rate(
                lambda rate, name=name, scenario=scenario: runs.holds(
                    name, scenario.at(rate=rate), p99_ms=options.p99_ms
                ),
                most=most,
            )
            found.append(
                f"{name}, {scenario.rows} rows: p99 is {options.p99_ms:g} ms or less "
                f"up to {rate:,.0f} requests/s, {rate / most:.2f} of the closed loop's "
                f"{most:,.0f}"
            )
        return [*found, *map(str, runs.files)]


class Runs:
    """The runs on one server; each continues the purchases of the one before it."""

    def __init__(self, bench: Bench, options: argparse.Namespace) -> None:
        self._bench = bench
        self._options = options
        self._first = 0
        self.files: list[Path] = []

    def in_turns(self, scenarios: Sequence[tuple[str, Scenario]]) -> None:
        """Run each of them as often as `--runs` says."""
        _require_free(self._options, scenarios)
        for run in range(1, self._options.runs + 1):
            for name, scenario in scenarios:
                self._one(name, scenario, run=run)

    def holds(self, name: str, scenario: Scenario, *, p99_ms: float) -> bool:
        """Return whether the median run keeps its p99."""
        _require_free(self._options, [(name, scenario)])
        runs = range(1, self._options.runs + 1)
        found = [self._one(name, scenario, run=run)[1] for run in runs]
        return bool(median_low(found) <= p99_ms)

    def closed_loop(self, scenario: Scenario) -> float:
        """Measure the requests per second with 64 in flight, or 8 of many rows."""
        server, folder = self._bench.server, self._bench.folder
        assert server is not None
        (shape,) = pick("1-row-64" if scenario.rows == 1 else "16-rows-8")
        shape = msgspec.structs.replace(shape, rows=scenario.rows)
        limit = LimitBench(server, make_generator(folder), self._bench.traffic, folder)
        with stream_read(server.store_url, product="fraud"):
            run, self._first = limit_run(
                limit,
                shape,
                first=self._first,
                warm_up_s=_LIMIT_WARM_UP_S,
                measured_s=_LIMIT_S,
            )
        say(f"closed loop: {run.requests_per_s:,.0f} requests/s")
        return run.requests_per_s

    def _one(self, name: str, scenario: Scenario, *, run: int) -> tuple[float, ...]:
        """Run once; return p50, p99 and p99.9 in ms."""
        options = self._options
        say(f"{name}, {_size(scenario)}, run {run} of {options.runs}")
        raw = run_once(self._bench, options, name, scenario, run=run, first=self._first)
        self._first += len(raw.calls) * scenario.rows
        path = _path(options, name, scenario, run=run)
        write_raw(path, raw)
        self.files.append(path)
        took_ms = latency_ms(raw)
        failed = int((raw.calls["kind"] > 0).sum())
        say(
            f"  {len(raw.calls):,} requests, p50 {took_ms[0]:.1f} ms, p99 "
            f"{took_ms[1]:.1f} ms, p99.9 {took_ms[2]:.1f} ms after the warm-up, "
            f"{failed:,} without an answer"
        )
        return took_ms


def latency_ms(raw: Raw) -> tuple[float, ...]:
    """
    Compute p50, p99 and p99.9 from when each request was due, ms.

    The warm-up is left out; a request without an answer counts as an endless one.
    """
    counted = raw.calls[raw.calls["due_us"] >= raw.about.scenario.warm_up_s * 1e6]
    took_ms = np.where(counted["kind"] > 0, np.inf, counted["took_us"] / 1e3)
    if not len(took_ms):
        return (np.inf,) * 3
    found = np.percentile(took_ms, [50, 99, 99.9], method="inverted_cdf")
    return tuple(found.tolist())


def highest_rate(holds: Callable[[float], bool], *, most: float) -> float:
    """
    Bisect for the highest rate that holds, requests per second; 0 if none does.

    Args:
        holds: Tries a rate.
        most: A rate that certainly does not hold.
    """
    lowest = 0.0
    for _ in range(_STEPS):
        rate = float(round((lowest + most) / 2))
        if rate in (lowest, most):
            break
        if holds(rate):
            lowest = rate
        else:
            most = rate
    return lowest


def _scenarios(
    options: argparse.Namespace, rates: Sequence[float | None]
) -> list[tuple[str, Scenario]]:
    """Read the scenarios, each at every rate."""
    scenarios = []
    for word in options.names:
        name, scenario = read_scenario(word)
        for rate in rates:
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
        with open_bench(
            repository,
            population,
            folder=folder,
            behind_proxy=any(one.kind == "store-slow" for one in troubles),
            config_name=options.model_config_name,
            form=options.form,
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


# Record the work of the steps during a run: time per layer, and every batch.


class StepRecording(msgspec.Struct, frozen=True, eq=False):
    """Batches of a run, and the queue times of its requests by Triton's count."""

    batches: Batches
    queues: Queues


@contextmanager
def recording_steps(bench: Bench, *, wanted: bool) -> Iterator[list[StepRecording]]:
    """
    Record the batches of our server's steps during the block, if that is wanted.

    Yields:
        A list that has one element when the block has ended, if recording is wanted.

    Raises:
        InputError: The server is not ours.
        ServerError: It reports no batches.
    """
    found: list[StepRecording] = []
    if not wanted:
        yield found
        return
    if bench.server is None:
        raise InputError(
            "--layers", "the steps of a server at an address cannot be recorded"
        )
    triton = bench.server.triton
    models = read_product(bench.repository, "fraud")
    steps = (models.features_step, models.model_step, models.decision_step)
    with record_batches(bench.folder / STATE_FOLDER, steps) as recorded:
        before = counts_of(triton, (models.name, *steps))
        yield found
        after = counts_of(triton, (models.name, *steps))
    (batches,) = recorded
    counts = {name: now.since(before[name]) for name, now in after.items()}
    if is_fused(triton, models.name):
        counts |= counts_in_one_model(counts[models.name], batches)
    features, _, decision = (counts[step] for step in steps)
    found.append(StepRecording(batches, queues_of(features, decision)))


def layers_and_batches(
    recording: StepRecording, results: Results, *, warm_up_s: float
) -> tuple[dict[str, F64], npt.NDArray[np.void]]:
    """
    Split the requests that were due after the warm-up into layers; convert batches.

    Args:
        warm_up_s: Time at the beginning that does not count, s.

    Returns:
        `layers_ms` and `batches` of `Raw`; no layers when no request was answered.
    """
    calls = results.calls
    first = int(np.searchsorted(calls["due_us"], warm_up_s * 1e6))
    begin_us = round(results.begin_s * 1e6)
    batches = batch_table(recording.batches, begin_us=begin_us, requests=len(calls))
    try:
        found = split(
            recording.batches,
            results,
            counted=results.responded,
            queues=recording.queues,
            first=first,
        )
    except ServerError:
        return {}, batches  # not one request was answered
    return dict(found.layers_ms), batches


def batch_table(
    batches: Batches, *, begin_us: int, requests: int
) -> npt.NDArray[np.void]:
    """
    Convert batches to BATCH, by step and start.

    Args:
        batches: Batches that the steps reported.
        begin_us: Beginning of the run, on the monotonic clock.
        requests: Number of requests that were sent; higher numbers belong to other
            callers.
    """
    count = len(batches.step)
    if not count:
        return no_batches()
    found = np.zeros(count, BATCH)
    found["step"] = batches.step
    found["start_us"] = batches.start_us - begin_us
    found["took_us"] = batches.end_us - batches.start_us
    found["rows"] = batches.rows
    order = np.lexsort((found["start_us"], found["step"]))
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    origin = _origins(batches, requests)
    found["origin"] = np.where(origin >= 0, place[origin], -1)
    ordered: npt.NDArray[np.void] = found[order]
    return ordered


def _origins(batches: Batches, requests: int) -> I64:
    """Find the batch of the feature step that the first request of each came from."""
    ours = batches.request < requests
    request, batch = batches.request[ours], batches.batch[ours]
    of_features = batches.step[batch] == 0
    through = np.full(requests, -1, np.int64)
    through[request[of_features]] = batch[of_features]
    origin = np.full(len(batches.step), -1, np.int64)
    # Go backwards, so that the first of several requests is written last.
    origin[batch[::-1]] = through[request[::-1]]
    return origin


DRIVERS = ("compiled", "python")


def run_once(
    bench: Bench,
    options: argparse.Namespace,
    name: str,
    scenario: Scenario,
    *,
    run: int,
    first: int,
) -> Raw:
    """
    Run a scenario once.

    Args:
        name: Name of the scenario.
        run: Number of the run, from 1.
        first: Index of the first purchase of the traffic that was not sent yet.

    Raises:
        InputError: This server does not support it.
        ServerError: The server or the sender failed.
    """
    seed = options.seed + run - 1
    at_s = arrivals(scenario, seed=seed)
    if not len(at_s):
        raise InputError("--seconds", "not one request is due in so short a time")
    bodies = bench.folder / "bodies.bin"
    load = Load(
        at_s=at_s,
        bodies=write_bodies(
            bodies,
            bench.traffic,
            scenario=scenario,
            at_s=at_s,
            first=first,
            seed=seed,
        ),
        timeout_s=scenario.timeout_ms / 1e3,
        connections=options.connections,
        retries=scenario.retries,
    )
    with (
        fault_injection(scenario, bench.target) as trouble,
        counting(bench.server) as counted,
        recording_steps(bench, wanted=options.layers) as recordings,
    ):
        sender = _sender(options.driver, bench, load)
        results = sender.send(load, began=trouble.began)
    bodies.unlink()
    layers_ms, batches = {}, None
    if recordings:
        layers_ms, batches = layers_and_batches(
            recordings[0], results, warm_up_s=scenario.warm_up_s
        )
    return Raw(
        about=About(
            name=name,
            scenario=scenario,
            run=run,
            label=options.label,
            seed=seed,
            driver=options.driver,
            connections=options.connections,
            command=options.command,
            measured=bench.measured(),
            store=bench.store,
            kinds=results.kinds,
            examples=results.examples,
            marks=marks_of(scenario),
            sender_cpu_s=results.sender_cpu_s,
            server=counted[0] if counted else None,
        ),
        calls=results.calls,
        layers_ms=layers_ms,
        batches=no_batches() if batches is None else batches,
    )


def _sender(driver: str, bench: Bench, load: Load) -> Sender:
    if driver == "compiled":
        return CompiledSender(bench.grpc_url, load.timeout_s, bench.folder)
    return AsyncioSender(bench.grpc_url, load.timeout_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
