"""
Benefit of Triton's response cache: `python -m loadtests.prediction_cache_served`.

A product is served twice in each turn, with and without `response_cache` on its model
and memory for it. It gets dry requests, row by row, for rows that are all new, and for
the same hundred again and again, also 20 a request: no real traffic is like either.
The comparison is of the processor time per row of tritonserver and its steps, and of
the time that a lone caller waits for a row of the hundred.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from clients.client import Client
from loadtests.processes import use_of
from loadtests.surroundings import CHECKOUT
from tollgate.errors import TollgateError
from tollgate.features.spec import FeatureSpec, load_spec
from tollgate.features.wire import all_fields, wire_inputs
from tollgate.server.embedded import Embedded, serve

CONFIG = "cached"
RESPONSE_CACHE = "response_cache { enable: true }\n"
_CACHE_MB = 16
_DISTINCT = 100
_IN_FLIGHT = 16
_ALONE = 200
_SAMPLE = re.compile(r'^nv_(\w+)\{model="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)


class Told(msgspec.Struct, frozen=True):
    """
    Cost of one series of requests.

    Attributes:
        cpu_us: Processor time of tritonserver and its steps per row, µs.
        found_percent: Share of the requests that the model's cache answered, %.
        decided_rows: Rows per batch of the decision step.
    """

    cpu_us: float
    found_percent: float
    decided_rows: float


def with_cache(repository: Path, product: str) -> None:
    """Write a configuration of a product's model that uses the response cache."""
    model = repository / f"{product}_model"
    (model / "configs").mkdir(exist_ok=True)
    text = (model / "config.pbtxt").read_text() + RESPONSE_CACHE
    (model / "configs" / f"{CONFIG}.pbtxt").write_text(text)


def counters(page: str) -> dict[tuple[str, str], float]:
    """Read Triton's metrics: (model, name without nv_) -> value."""
    return {(model, name): float(value) for name, model, value in _SAMPLE.findall(page)}


def told(
    before: Mapping[tuple[str, str], float],
    after: Mapping[tuple[str, str], float],
    *,
    product: str,
    cpu_s: float,
    rows: int,
) -> Told:
    """Compute the cost from two readings of the counters."""

    def grown(part: str, name: str) -> float:
        key = (f"{product}_{part}", name)
        return after.get(key, 0.0) - before.get(key, 0.0)

    hits = grown("model", "cache_num_hits_per_model")
    asked = hits + grown("model", "cache_num_misses_per_model")
    batches = grown("decision", "inference_exec_count")
    decided = grown("decision", "inference_count")
    return Told(
        cpu_us=cpu_s / rows * 1e6,
        found_percent=100 * hits / asked if asked else 0.0,
        decided_rows=decided / batches if batches else 0.0,
    )


def measure(product: str, *, rows: int, turns: int) -> Iterator[str]:
    """Serve and send requests in turns; yield the lines of a table."""
    with tempfile.TemporaryDirectory(prefix="tollgate-cached-") as folder:
        repository = Path(folder, "model_repository")
        for part in (CHECKOUT / "model_repository").glob(f"{product}*"):
            shutil.copytree(part, repository / part.name)
        with_cache(repository, product)
        spec = load_spec(repository / f"{product}_features" / "1" / "features.yaml")
        for turn in range(turns):
            for name in ("", CONFIG):
                with serve(
                    repository,
                    products=(product,),
                    state=Path(folder, f"state-{turn}-{name}"),
                    model_config_name=name,
                    cache_mb=_CACHE_MB if name else 0,
                ) as server:
                    yield _asked(server, spec, product=product, rows=rows, name=name)


def _asked(
    server: Embedded, spec: FeatureSpec, *, product: str, rows: int, name: str
) -> str:
    fields, columns = _columns(spec, product, rows=_DISTINCT, seed=5)
    again = {key: list(some) * (rows // _DISTINCT) for key, some in columns.items()}
    _, fresh = _columns(spec, product, rows=rows, seed=6)
    with Client(
        server.grpc_url,
        product=product,
        inputs=wire_inputs(spec),
        fields=fields,
        timeout_s=30,
    ) as client:
        for _ in range(3):  # then the cache holds these rows, and every step is warm
            _ask(client, columns, batch_rows=1)
        waited_ms = [_alone_ms(client, columns, number) for number in range(_ALONE)]
        cells = [product, name or "none", f"{np.median(waited_ms):.2f}"]
        for asked, batch_rows in ((fresh, 1), (again, 1), (again, 20)):
            before, used_s = _read(server), use_of([server.triton.pid]).cpu_s
            _ask(client, asked, batch_rows=batch_rows)
            cpu_s = use_of([server.triton.pid]).cpu_s - used_s
            one = told(before, _read(server), product=product, cpu_s=cpu_s, rows=rows)
            cells += [f"{one.cpu_us:.0f}", f"{one.found_percent:.0f} %"]
            cells += [f"{one.decided_rows:.1f}"]
    return f"| {' | '.join(cells)} |"


def _ask(client: Client, columns: Mapping[str, Any], *, batch_rows: int) -> None:
    for _ in client.decide_many(
        columns, batch_rows=batch_rows, in_flight=_IN_FLIGHT, dry_run=True
    ):
        pass


def _alone_ms(client: Client, columns: Mapping[str, Any], number: int) -> float:
    row = number % _DISTINCT
    one = {name: column[row : row + 1] for name, column in columns.items()}
    began = time.perf_counter()
    client.decide(one, dry_run=True)
    return (time.perf_counter() - began) * 1e3


def _read(server: Embedded) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as page:
        return counters(page.read().decode())


def _columns(
    spec: FeatureSpec, product: str, *, rows: int, seed: int
) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Generate rows: declared fields with their types, columns of inputs."""
    from tollgate.simulate import simulate
    from tollgate.simulate.credit import simulate_credit

    if product == "credit":
        frame = simulate_credit(rows=rows, seed=seed)
    else:
        frame = simulate(customers=rows, terminals=400, days=2, radius=50, seed=seed)
        frame = frame[:rows]
    fields = all_fields(spec)
    columns = {name: frame[name].to_list() for name in (*fields, *wire_inputs(spec))}
    columns["event_time"] = frame["event_time"].dt.epoch("us").to_list()
    return fields, columns


def main(arguments: Sequence[str]) -> int:
    """Measure and print a table; a known error prints one line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.prediction_cache_served")
    parser.add_argument("--product", choices=["fraud", "credit"], default="credit")
    parser.add_argument("--rows", type=int, default=4_000, help="of each asking")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args(arguments)
    cells = ["product", "cache", "alone p50 ms"]
    for asking in ("new, 1 row", "again, 1 row", "again, 20 rows"):
        cells += [f"{asking}: CPU µs a row", "found", "rows a batch of decisions"]
    print(f"| {' | '.join(cells)} |")
    print("|---|---|" + "---:|" * (len(cells) - 2))
    try:
        for line in measure(given.product, rows=given.rows, turns=given.turns):
            print(line, flush=True)
    except TollgateError as error:
        print(f"loadtests.prediction_cache_served: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
