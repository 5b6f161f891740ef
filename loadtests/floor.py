"""
What the ensemble costs without any work: `python -m loadtests.floor`.

The same configurations, tensors and queue delays, with three Python steps that look at
nothing, write to no store and answer with tensors that they made once. What they take
is the server's, the messages' and the interpreter's share: no product whose steps are
these can take less. Measured in turns with the product, on one machine.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from loadtests.bodies import bodies_of
from loadtests.filling import (
    HISTORY_DAYS,
    compact_store,
    fill_store,
    served_spec,
    simulated_history,
)
from loadtests.generator import TAIL_S, Generator, make_generator, run_h2load
from loadtests.latency import latency_of
from loadtests.processes import use_of
from loadtests.scenarios import SCENARIOS, Scenario
from loadtests.surroundings import CHECKOUT, measured_with
from loadtests.traffic import Traffic, traffic_of
from tollgate.errors import InputError, TollgateError
from tollgate.server import control
from tollgate.server.embedded import serve
from tollgate.server.launcher import TritonServer

PRODUCT = "fraud"
NOTHING, ALL = "nothing", "product"
STEPS = tuple(f"{PRODUCT}_{part}" for part in ("features", "model", "decision"))
_WARM_UP_S = 1.0
_BACKEND = re.compile(r"^backend: .*$", re.MULTILINE)
_WARM_UPS = re.compile(r"^model_warmup \[.*?^\]\n", re.MULTILINE | re.DOTALL)
_STEP = '''\
"""Answers at once, with tensors that are made once for each number of rows."""

import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        kinds = {one["name"]: one["data_type"] for one in config["input"]}
        self._numbers = next(n for n, k in kinds.items() if k != "TYPE_STRING")
        self._outputs = [
            (one["name"], int(one["dims"][0]), one["data_type"])
            for one in config["output"]
        ]
        self._kept = {}

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        tensor = pb.get_input_tensor_by_name(request, self._numbers)
        rows = len(tensor.as_numpy())
        if rows not in self._kept:
            self._kept[rows] = [self._made(rows, *one) for one in self._outputs]
        return pb.InferenceResponse(self._kept[rows])

    def _made(self, rows, name, width, kind):
        if kind == "TYPE_STRING":
            return pb.Tensor(name, np.full((rows, width), b"approve", np.object_))
        zeros = np.zeros((rows, width), pb.triton_string_to_numpy(kind))
        return pb.Tensor(name, zeros)
'''

# Loads a server with a scenario, once; goes on in the traffic.
Load = Callable[[Scenario], "Cost"]


class Cost(msgspec.Struct, frozen=True):
    """
    What one run came to.

    Attributes:
        decisions_per_s: Rows answered.
        p50_ms: Of the requests; likewise p99_ms.
        cpu_us: Processor time of server, steps and store for a row.
    """

    decisions_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


class Options(msgspec.Struct, frozen=True):
    """What the command line says."""

    scenarios: tuple[Scenario, ...]
    seconds: float
    runs: int
    customers: int
    terminals: int


def main(arguments: Sequence[str]) -> int:
    """Measure in turns, and print Markdown; a known error is one line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.floor")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--only", choices=names, nargs="+", default=names)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured per run")
    parser.add_argument("--runs", type=int, default=3, help="of each, in turns")
    parser.add_argument("--customers", type=int, default=5_000)
    parser.add_argument("--terminals", type=int, default=10_000)
    given = parser.parse_args(arguments)
    command = " ".join(["python -m loadtests.floor", *arguments])
    try:
        for name in ("seconds", "runs"):
            if getattr(given, name) <= 0:
                raise InputError(f"--{name}", f"{getattr(given, name)} is not above 0")
        options = Options(
            scenarios=tuple(one for one in SCENARIOS if one.name in given.only),
            seconds=given.seconds,
            runs=given.runs,
            customers=given.customers,
            terminals=given.terminals,
        )
        costs, told = run_all(options, command=command)
    except TollgateError as error:
        print(f"loadtests.floor: {error}", file=sys.stderr)
        return error.exit_status
    print(to_markdown(costs, told), end="")
    return 0


def write_floor(repository: Path, *, source: Path) -> None:
    """
    Write an ensemble whose steps do nothing, with the configurations of one that works.

    Args:
        repository: Folder to write to.
        source: The model repository that holds the product.
    """
    for model in (PRODUCT, *STEPS):
        (repository / model / "1").mkdir(parents=True)
        text = (source / model / "config.pbtxt").read_text()
        if model in STEPS:
            (repository / model / "1" / "model.py").write_text(_STEP)
            text = _WARM_UPS.sub("", _BACKEND.sub('backend: "python"', text))
        (repository / model / "config.pbtxt").write_text(text)


@contextmanager
def floor(repository: Path, *, state: Path) -> Iterator[TritonServer]:
    """Serve what `write_floor` wrote."""
    with TritonServer(repository, state=state, store_url="", journal_url="") as server:
        for model in (*STEPS, PRODUCT):
            control.load_model(server, model, config=None)
        yield server


def run_all(
    options: Options, *, command: str
) -> tuple[dict[tuple[str, str], list[Cost]], str]:
    """
    Serve both, and load them in turns.

    Returns:
        The runs by scenario and server, and how and where they were measured.
    """
    costs: dict[tuple[str, str], list[Cost]] = {}
    source = CHECKOUT / "model_repository"
    with tempfile.TemporaryDirectory(prefix="tollgate-floor-") as name:
        folder = Path(name)
        generator = make_generator(folder)
        spec = served_spec(source)
        history = simulated_history(
            spec,
            customers=options.customers,
            terminals=options.terminals,
            days=HISTORY_DAYS,
        )
        write_floor(folder / "floor", source=source)
        with (
            serve(source, state=folder / "state") as product,
            floor(folder / "floor", state=folder / "floor-state") as nothing,
        ):
            fill_store(spec, history, store_url=product.store_url)
            compact_store(product.store_url)
            told = f"`{command}`; {measured_with(product)}"
            traffic = traffic_of(history, days=HISTORY_DAYS)
            store = [product.redis.pid] if product.redis else []
            loads = {
                NOTHING: _loader(nothing, (), generator, traffic, folder, options),
                ALL: _loader(
                    product.triton, store, generator, traffic, folder, options
                ),
            }
            for number in range(options.runs):
                for scenario in options.scenarios:
                    for server in sorted(loads, reverse=bool(number % 2)):
                        cost = loads[server](scenario)
                        costs.setdefault((scenario.name, server), []).append(cost)
                        _say(f"{scenario.name}, {server}: {cost.cpu_us:.0f} µs a row")
    return costs, told


def _loader(
    server: TritonServer,
    beside: Sequence[int],
    generator: Generator,
    traffic: Traffic,
    folder: Path,
    options: Options,
) -> Load:
    """Make what loads one server, beside whose processes others count, too."""
    sent = 0

    def load(scenario: Scenario) -> Cost:
        nonlocal sent
        run_s = _WARM_UP_S + options.seconds + TAIL_S
        count = int(scenario.most_requests_per_s * run_s)
        columns = traffic.columns(sent, count * scenario.rows)
        before_s = use_of([server.pid, *beside]).cpu_s
        generated = run_h2load(
            generator,
            scenario,
            bodies=bodies_of(columns, rows=scenario.rows),
            grpc_url=server.grpc_url,
            run_s=run_s,
            folder=folder,
        )
        used_s = use_of([server.pid, *beside]).cpu_s - before_s
        sent += min(generated.kept.offered, count) * scenario.rows
        log = generated.log
        end_us = log.start_us + log.took_us - int(log.start_us.min())
        from_us = int(_WARM_UP_S * 1e6)
        inside = (end_us >= from_us) & (end_us < from_us + options.seconds * 1e6)
        inside &= log.status == 200
        latency = latency_of(np.asarray(log.took_us[inside]))
        answered = sum(not one.failure for one in generated.kept.answers)
        return Cost(
            decisions_per_s=int(inside.sum()) * scenario.rows / options.seconds,
            p50_ms=latency.p50_ms,
            p99_ms=latency.p99_ms,
            cpu_us=used_s / max(1, answered * scenario.rows) * 1e6,
        )

    return load


def to_markdown(costs: dict[tuple[str, str], list[Cost]], told: str) -> str:
    """Write the medians of the runs as a table, and each run's ratio of costs."""
    lines = [
        told,
        "",
        "| load | server | decisions/s | p50 ms | p99 ms | processor µs a decision |",
        "|---|---|---:|---:|---:|---:|",
    ]
    names = list(dict.fromkeys(name for name, _ in costs))
    for name in names:
        for server in (NOTHING, ALL):
            runs = costs[name, server]
            rate, p50, p99, cpu = (
                median(getattr(one, field) for one in runs)
                for field in Cost.__struct_fields__
            )
            cells = f"{rate:,.0f} | {p50:.1f} | {p99:.1f} | {cpu:.0f}"
            lines.append(f"| {name} | {server} | {cells} |")
    lines.append("")
    for name in names:
        pairs = zip(costs[name, NOTHING], costs[name, ALL], strict=True)
        parts = ", ".join(f"{a.cpu_us / b.cpu_us:.2f}" for a, b in pairs)
        lines.append(f"{name}: {NOTHING} of {ALL}, run by run: {parts}.")
    return "\n".join(lines) + "\n"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
