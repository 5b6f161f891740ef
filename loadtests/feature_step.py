"""
Duration of a batch in the feature step: `python -m loadtests.feature_step`.

The step runs in this process, over a real Redis that holds a history; these figures
leave out Triton's messages around it (`python -m loadtests.h2load` has them). Next to
the elapsed time stand figures that do not depend on other users of the cores:
processor time of the step's thread and of Redis, and the number of times Redis read
from its sockets.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import msgspec
import numpy as np
import redis

from loadtests.harness import (
    Report,
    command_parser,
    run_command,
)
from loadtests.results.percentiles import latency_of
from loadtests.results.surroundings import CHECKOUT
from tollgate.features.spec.feature_spec import load_spec
from tollgate.load.store_contents import HISTORY_DAYS, fill_store, simulated_history
from tollgate.load.traffic import traffic_of
from tollgate.schema import CONTEXT_KEY_VARIABLE, STORE_URL_VARIABLE
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.steps.feature_step import FeatureStep

STEP = CHECKOUT / "model_repository" / "fraud_features"
_WARM_UP = 100
_SIZES = (1, 8, 32)
_TEXTS = ("transaction_id", "customer_id", "terminal_id")


class Tensor(msgspec.Struct, frozen=True, eq=False):
    """Substitute for Triton's tensor."""

    called: str
    array: Any

    def name(self) -> str:
        """Return its name."""
        return self.called

    def as_numpy(self) -> Any:
        """Return the array."""
        return self.array

    def shape(self) -> tuple[int, ...]:
        """Return its shape."""
        return tuple(self.array.shape)


class Response(msgspec.Struct, frozen=True, eq=False):
    """Substitute for Triton's response."""

    tensors: list[Tensor] | None = None
    error: Any = None


class Request(msgspec.Struct, frozen=True, eq=False):
    """Substitute for Triton's request."""

    tensors: dict[str, Tensor]
    parameters_json: str = "{}"

    def inputs(self) -> list[Tensor]:
        """Return its tensors."""
        return list(self.tensors.values())

    def parameters(self) -> str:
        """Return its parameters, as Triton writes them."""
        return self.parameters_json


class BatchTimes(msgspec.Struct, frozen=True, eq=False):
    """
    Times of some batches.

    Attributes:
        total_us: Duration of each batch; int64 [B].
        store_us: The part of it spent waiting for the store; int64 [B].
        step_ms: Processor time of the step's thread, per batch.
        redis_ms: Processor time of Redis, per batch.
        reads: Number of times Redis read from a socket, per batch: 1 is one round trip.
    """

    total_us: Any
    store_us: Any
    step_ms: float
    redis_ms: float
    reads: float


class Metric:
    """A metric that does nothing, so that Triton's metrics cost no time here."""

    COUNTER = GAUGE = HISTOGRAM = 0
    _value: ClassVar[float] = 0.0

    def __init__(self, *, name: str, description: str, kind: int) -> None:
        """Accept the arguments of Triton's class."""

    def Metric(self, *, labels: object, buckets: object = None) -> Metric:
        """Return a metric."""
        return self

    def increment(self, by: float) -> None:
        """Do nothing."""

    observe = set = increment


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table."""
    parser = command_parser("feature_step")
    parser.add_argument("--batches", type=int, default=2_000, help="of each size")
    parser.add_argument("--runs", type=int, default=3)
    return run_command(
        parser,
        arguments,
        measure=lambda options: Report(
            "\n".join(measure(batches=options.batches, runs=options.runs))
        ),
    )


def measure(*, batches: int, runs: int) -> list[str]:
    """Run the step over batches of each size, in turns; return a table of every run."""
    spec = load_spec(STEP / "1" / "features.yaml")
    history = simulated_history(spec, customers=500, terminals=1_000, days=HISTORY_DAYS)
    traffic = traffic_of(history, days=HISTORY_DAYS)
    head = "| rows | run | p50 ms | p90 ms | p99 ms | of it in the store, p50 | p99 "
    head += "| CPU of the step | of Redis | reads of Redis |"
    lines = [head, "|---:" * 10 + "|"]
    with (
        tempfile.TemporaryDirectory(prefix="tollgate-step-") as folder,
        EmbeddedRedis(Path(folder)) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        fill_store(spec, history, store_url=server.url)
        step = open_step(server.url)
        first = 0
        for run in range(1, runs + 1):
            for rows in _SIZES:
                count = batches + _WARM_UP
                columns = traffic.columns(first, rows * count)
                first += rows * count
                timed = _time(step, columns, rows=rows, client=client)
                lines.append(f"| {rows} | {run} | {_cells(timed)} |")
        outcomes = ", ".join(
            f"{count} {name}" for name, count in step._chain.counts.calls.items()
        )
        step.finalize()
    about = "CPU is per batch, in ms; reads are per batch, 1 is one round trip."
    return [*lines, "", f"{about} Calls of the store: {outcomes}."]


def _cells(timed: BatchTimes) -> str:
    whole, part = latency_of(timed.total_us), latency_of(timed.store_us)
    figures = (whole.p50_ms, whole.p90_ms, whole.p99_ms, part.p50_ms, part.p99_ms)
    cells = [*figures, timed.step_ms, timed.redis_ms, timed.reads]
    return " | ".join(f"{cell:.2f}" for cell in cells)


def open_step(
    store_url: str, parameters: Mapping[str, str] | None = None
) -> FeatureStep:
    """Open the step over a store, with parameters of its configuration."""
    triton: Any = types.ModuleType("triton_python_backend_utils")
    triton.MetricFamily = Metric
    triton.Tensor = Tensor
    triton.InferenceResponse = Response
    given = parameters or {}
    texts = {name: {"string_value": text} for name, text in given.items()}
    step = FeatureStep()
    # Only this code uses both; later code in this process must not see them.
    with (
        mock.patch.dict(sys.modules, {triton.__name__: triton}),
        mock.patch.dict(
            os.environ,
            {STORE_URL_VARIABLE: store_url, CONTEXT_KEY_VARIABLE: "0" * 64},
        ),
    ):
        step.initialize(
            {
                "model_config": json.dumps({"parameters": texts}),
                "model_name": STEP.name,
                "model_repository": str(STEP),
                "model_version": "1",
            }
        )
    return step


def _time(
    step: FeatureStep, columns: dict[str, Any], *, rows: int, client: redis.Redis
) -> BatchTimes:
    """Time batches of one-row requests, without the first ones."""
    whole = len(columns[_TEXTS[0]])
    count = whole // rows - _WARM_UP
    total_us, store_us = np.zeros((2, count), np.int64)
    redis_s, reads, step_s = 0.0, 0, 0.0
    for number, start in enumerate(range(0, whole, rows), -_WARM_UP):
        if number == 0:
            redis_s, reads = _work(client)
        requests = [request_of(columns, row) for row in range(start, start + rows)]
        cpu_s, begun_s = time.thread_time(), time.perf_counter()
        step.execute(requests)
        if number >= 0:
            total_us[number] = round((time.perf_counter() - begun_s) * 1e6)
            store_us[number] = round((step._chain.counts.call_s or 0.0) * 1e6)
            step_s += time.thread_time() - cpu_s
    after_s, reads_after = _work(client)
    return BatchTimes(
        total_us=total_us,
        store_us=store_us,
        step_ms=step_s / count * 1e3,
        redis_ms=(after_s - redis_s) / count * 1e3,
        reads=(reads_after - reads - 1) / count,  # one of them read this query
    )


def _work(client: redis.Redis) -> tuple[float, int]:
    """Query Redis for its processor time so far, s, and its number of reads."""
    info = client.info()
    cpu_s = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
    return cpu_s, int(info["total_reads_processed"])


def request_of(
    columns: dict[str, Any], row: int, *, parameters_json: str = "{}"
) -> Request:
    """Make a request of one row."""
    tensors = {}
    for name, column in columns.items():
        kind = np.object_ if name in _TEXTS else column.dtype
        tensors[name] = Tensor(name, column[row : row + 1].astype(kind)[:, None])
    return Request(tensors, parameters_json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
