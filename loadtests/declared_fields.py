"""
Cost of declared fields: `python -m loadtests.declared_fields`.

Products without windows that differ in the number of fields they declare; of five
fields, three are numbers and the rest strings. Each has its own server. They are loaded
in turns, so that other work on this machine affects all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from clients.client import Client
from loadtests.latency import percentile
from loadtests.plain_product import release_simple_model, write_product
from loadtests.processes import use_of
from loadtests.surroundings import measured_with
from tollgate.errors import ServerError, TollgateError
from tollgate.server.embedded import Embedded, serve

WORDS = ("a", "b", "c", "d", "e")
_INPUTS = {"transaction_id": "BYTES", "event_time": "INT64"}
_NAME = "declared"
_PATIENT_MS = 2_000
_TIMEOUT_S = 30.0
_POLICY = """\
version: 1
product: declared
labels: [fine, bad]
score: bad
thresholds: {review: 0.4, decline: 0.7}
fallback: {model_output: review}
rules: []
reasons: {SCORE_REVIEW: review, SCORE_DECLINE: decline, MODEL_UNAVAILABLE: none}
"""
# Rows per request, requests in flight, requests of a block.
_SHAPES = ((1, 1, 300), (32, 1, 200), (1, 32, 1_500))


class Served(msgspec.Struct, frozen=True, eq=False):
    """One product: its fields by name and type, its server, a client."""

    fields: dict[str, str]
    server: Embedded
    client: Client


class Block(msgspec.Struct, frozen=True, eq=False):
    """
    Results of some requests of one shape.

    Attributes:
        latency_us: Latency of each; int64 [N].
        seconds: Duration of all, s.
        cpu_s: Processor time of server and store, s.
    """

    latency_us: npt.NDArray[np.int64]
    seconds: float
    cpu_s: float


def fields_of(count: int) -> dict[str, str]:
    """Name `count` fields, with their types on the wire."""
    number = [at % 5 < 3 for at in range(count)]
    return {
        f"{'n' if one else 'w'}{at}": "FP64" if one else "BYTES"
        for at, one in enumerate(number)
    }


def spec_text(fields: dict[str, str]) -> str:
    """Write the features.yaml of a product that has only these fields."""
    words = ", ".join(WORDS)
    lines = ["version: 1", f"product: {_NAME}", "amount: false", "fields:"]
    for name, kind in fields.items():
        form = "number, decimals: 2"
        if kind == "BYTES":
            form = f"category, vocabulary: [{words}]"
        lines.append(f"  - {{name: {name}, type: {form}}}")
    lines.append("features:")
    for name, kind in fields.items():
        made = f"category: {name}"
        if kind == "FP64":
            made = f"field: {name}, default: .nan"
        lines.append(f"  - {{name: {name}, {made}}}")
    return "\n".join(lines) + "\n"


def columns_of(fields: dict[str, str], rows: int, *, tag: str) -> dict[str, Any]:
    """Draw columns of rows with new ids."""
    chance = np.random.default_rng(rows)
    return {
        "transaction_id": [f"{tag}-{row}" for row in range(rows)],
        "event_time": [time.time_ns() // 1000] * rows,
        **{
            name: np.round(chance.random(rows) * 100, 2)
            if kind == "FP64"
            else [WORDS[at] for at in chance.integers(0, len(WORDS), rows)]
            for name, kind in fields.items()
        },
    }


def make(repository: Path, fields: dict[str, str]) -> None:
    """Write a product with these fields."""
    spec = write_product(
        repository,
        spec_text=spec_text(fields),
        policy_text=_POLICY,
        store_deadline_ms=_PATIENT_MS,
    )
    release_simple_model(repository, spec)


def open_served(stack: ExitStack, folder: Path, fields: dict[str, str]) -> Served:
    """Write a product, serve it and open a client for it."""
    repository = folder / "model_repository"
    make(repository, fields)
    state = folder / "state"
    server = stack.enter_context(serve(repository, products=(_NAME,), state=state))
    client = Client(
        server.grpc_url,
        product=_NAME,
        inputs=_INPUTS,
        fields=fields,
        timeout_s=_TIMEOUT_S,
    )
    return Served(fields, server, stack.enter_context(client))


def ask(served: Served, rows: int, in_flight: int, requests: int, *, tag: str) -> Block:
    """Request decisions of new rows; fail if one is missing."""
    roots = [served.server.triton.pid]
    if served.server.redis is not None:
        roots.append(served.server.redis.pid)
    columns = columns_of(served.fields, rows * requests, tag=tag)
    before_s, begun_s = use_of(roots).cpu_s, time.perf_counter()
    answers = list(
        served.client.decide_many(columns, batch_rows=rows, in_flight=in_flight)
    )
    seconds = time.perf_counter() - begun_s
    cpu_s = use_of(roots).cpu_s - before_s
    for one in answers:
        bad = one.error[one.error != ""]
        if len(bad):
            raise ServerError(_NAME, f"a row was not decided: {bad[0]}")
    latency_us = np.array([one.latency_s[0] * 1e6 for one in answers], np.int64)
    return Block(latency_us, seconds, cpu_s)


def measure(counts: Sequence[int], *, runs: int) -> list[str]:
    """Load every product in turns; return a table."""
    head = "| fields | rows | in flight | run | p50 ms | p99 ms | rows/s | CPU, ms |"
    lines = [head, "|---:" * 8 + "|"]
    with (
        tempfile.TemporaryDirectory(prefix="tollgate-fields-") as name,
        ExitStack() as stack,
    ):
        products = [
            open_served(stack, Path(name) / str(count), fields_of(count))
            for count in counts
        ]
        for run in range(runs + 1):  # the first one warms up
            for rows, in_flight, requests in _SHAPES:
                for one in products:
                    tag = f"{run}-{rows}-{in_flight}"
                    block = ask(one, rows, in_flight, requests, tag=tag)
                    if run:
                        cells = (len(one.fields), rows, in_flight, run)
                        lines.append(_line(cells, block, rows=rows))
        around = measured_with(products[0].server)
    return [*lines, "", f"CPU is that of server and store per request. {around}."]


def _line(cells: Sequence[int], block: Block, *, rows: int) -> str:
    ordered = np.sort(block.latency_us)
    count = len(ordered)
    figures = [
        *map(str, cells),
        *(f"{percentile(ordered, one) / 1e3:.1f}" for one in (50, 99)),
        f"{count * rows / block.seconds:,.0f}",
        f"{block.cpu_s / count * 1e3:.2f}",
    ]
    return f"| {' | '.join(figures)} |"


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table; a known error prints one line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.declared_fields")
    parser.add_argument("--fields", type=int, nargs="+", default=[5, 25, 100])
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args(arguments)
    try:
        lines = measure(given.fields, runs=given.runs)
    except TollgateError as error:
        print(f"loadtests.declared_fields: {error}", file=sys.stderr)
        return error.exit_status
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
