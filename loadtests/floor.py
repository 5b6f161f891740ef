"""
Cost of the ensemble without any work: `python -m loadtests.floor`.

The same configurations, tensors and queue delays, with three Python steps that read
nothing, write to no store and answer with tensors that they made once. Their time is
the share of the server, the messages and the interpreter, for batches of the size that
is printed: quick steps form smaller batches. Measured in turns with the product.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from loadtests.harness import (
    REPOSITORY,
    Population,
    Report,
    StoreContents,
    add_population,
    command_parser,
    run_command,
    say,
    serve_filled,
    temporary_folder,
)
from loadtests.requests.generator import SCENARIOS, make_generator
from loadtests.results.measure import LimitBench, Run, measure
from loadtests.results.surroundings import measured_with
from tollgate.server.serving.embedded import Embedded
from tollgate.server.triton import control
from tollgate.server.triton.launcher import TritonServer

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
            text = {"decision": b"approve", "release": b"none"}.get(name, b"")
            return pb.Tensor(name, np.full((rows, width), text, np.object_))
        zeros = np.zeros((rows, width), pb.triton_string_to_numpy(kind))
        return pb.Tensor(name, zeros)
'''

# Runs by scenario and server.
Runs = Mapping[tuple[str, str], Sequence[Run]]


def main(arguments: Sequence[str]) -> int:
    """Measure in turns, and print Markdown."""
    parser = command_parser("floor")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--only", choices=names, nargs="+", default=names)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured per run")
    parser.add_argument("--runs", type=int, default=3, help="of each, in turns")
    add_population(parser)
    return run_command(
        parser,
        arguments,
        measure=lambda options: Report(to_markdown(*run_all(options))),
        least={"seconds": 0.1, "runs": 1},
    )


def run_all(options: argparse.Namespace) -> tuple[Runs, str]:
    """
    Serve both, and load them in turns.

    Returns:
        The runs, and a description of the measurement.
    """
    runs: dict[tuple[str, str], list[Run]] = {}
    contents = StoreContents(Population(options.customers, options.terminals))
    with temporary_folder("floor") as folder:
        generator = make_generator(folder)
        write_floor(folder / "floor", source=REPOSITORY)
        with (
            serve_filled(contents, folder / "state") as product,
            floor(
                folder / "floor",
                state=folder / "floor-state",
                store_url=product.store_url,
            ) as nothing,
        ):
            description = f"`{options.command}`; {measured_with(product)}"
            benches = {
                name: LimitBench(server, generator, contents.traffic, folder)
                for name, server in ((NOTHING, nothing), (ALL, product))
            }
            first = dict.fromkeys(benches, 0)
            for number in range(options.runs):
                for scenario in [one for one in SCENARIOS if one.name in options.only]:
                    for name in sorted(benches, reverse=bool(number % 2)):
                        run, first[name] = measure(
                            benches[name],
                            scenario,
                            first=first[name],
                            warm_up_s=_WARM_UP_S,
                            measured_s=options.seconds,
                        )
                        runs.setdefault((scenario.name, name), []).append(run)
                        say(f"{scenario.name}, {name}: {cpu_us(run):.0f} µs a row")
    return runs, description


def write_floor(repository: Path, *, source: Path) -> None:
    """
    Write an ensemble whose steps do nothing, with the configurations of a real one.

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
def floor(repository: Path, *, state: Path, store_url: str) -> Iterator[Embedded]:
    """
    Serve the ensemble of `write_floor`.

    Args:
        repository: Folder of the ensemble.
        state: Folder for logs and the backend directory.
        store_url: A store with counters to read; the steps do not use it.
    """
    with TritonServer(repository, state=state, store_url="", journal_url="") as triton:
        for model in (*STEPS, PRODUCT):
            control.load_model(triton, model, config=None)
        yield Embedded(
            grpc_url=triton.grpc_url,
            metrics_url=triton.metrics_url,
            store_url=store_url,
            triton=triton,
            serving={},
            problems={},
            redis=None,
        )


def cpu_us(run: Run) -> float:
    """Return the processor time of server, steps and store per row, µs."""
    return run.work.cpu_s / max(1, run.work.purchases) * 1e6


def to_markdown(runs: Runs, description: str) -> str:
    """Write the medians of the runs as a table, and each run's ratio of costs."""
    lines = [
        description,
        "",
        "| load | steps | decisions/s | p50 ms | p99 ms | processor µs a decision "
        "| rows a batch | failed |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (name, server), some in sorted(runs.items(), key=lambda one: one[0][0]):
        cells = [
            f"{median(run.decisions_per_s for run in some):,.0f}",
            f"{median(run.latency.p50_ms for run in some):.1f}",
            f"{median(run.latency.p99_ms for run in some):.1f}",
            f"{median(cpu_us(run) for run in some):,.0f}",
            f"{median(_rows_a_batch(run) for run in some):.1f}",
            str(sum(sum(run.tally.failures.values()) for run in some)),
        ]
        lines.append(f"| {name} | {server} | {' | '.join(cells)} |")
    lines.append("")
    for name in dict.fromkeys(name for name, _ in runs):
        pairs = zip(runs[name, NOTHING], runs[name, ALL], strict=True)
        parts = ", ".join(f"{cpu_us(a) / cpu_us(b):.2f}" for a, b in pairs)
        lines.append(f"{name}: {NOTHING} of {ALL}, run by run: {parts}.")
    return "\n".join(lines) + "\n"


def _rows_a_batch(run: Run) -> float:
    return run.work.purchases / max(1, run.work.feature_batches)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
