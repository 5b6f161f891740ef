"""
Write input data for NVIDIA's perf_analyzer, and print the commands to call it.

    python -m loadtests.perf_analyzer --out FOLDER

The data are synthetic purchases of a product that runs here, each with its own id; the
commands go to standard output. docs/loadtests.md says where the program is found.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.crowd.target import Target, local_target
from loadtests.harness import (
    Report,
    command_parser,
    run_command,
)
from tollgate.errors import InputError
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.load.synthetic import synthetic_purchases
from tollgate.server.address import ADDRESS_FILE
from tollgate.server.triton.launcher import ADMIN_HEADER

_OLD_S = 5.0  # age of the newest purchase: not ahead of any clock
_LOADS = (
    ("one after the other", "--concurrency-range 1"),
    ("64 in flight", "--concurrency-range 64"),
    ("16 rows in a request, 8 in flight", "-b 16 --concurrency-range 8"),
    (
        "at random, at a rate; what finds no thread free is late, uncharged",
        "--request-rate-range {rate:g} --request-distribution poisson --max-threads 64",
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Write input data, and print commands."""
    parser = command_parser("perf_analyzer")
    add = parser.add_argument
    add("--out", dest="folder", type=Path, required=True, help="folder for the file")
    add("--product", default="fraud")
    add("--purchases", type=int, default=20_000, help="before ids come again")
    add("--rate", type=float, default=200.0, help="of the open loop, requests/s")
    add("--state", type=Path, default=Path(".tollgate"), help="of the server")
    return run_command(parser, arguments, measure=write_inputs, least={"purchases": 1})


def write_inputs(options: argparse.Namespace) -> Report:
    """Write input data, and return commands."""
    target = local_target(options.state)
    spec = _spec(target, options.product)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"{options.product}.json"
    path.write_text(json.dumps(input_data(spec, options.purchases)))
    lines = commands(
        path,
        product=options.product,
        grpc_url=target.grpc_url,
        rate=options.rate,
        address=options.state / ADDRESS_FILE,
    )
    return Report("\n".join(lines))


def _spec(target: Target, product: str) -> FeatureSpec:
    if product not in target.specs:
        problem = f"{product!r} is none of {', '.join(target.specs)}"
        raise InputError("--product", problem)
    return target.specs[product]


def input_data(spec: FeatureSpec, purchases: int) -> dict[str, Any]:
    """
    Generate purchases in perf_analyzer's format.

    Args:
        spec: Feature spec; says what a request of the product contains.
        purchases: Number of purchases; N.

    Returns:
        {"data": [N of {input: {"content": [value], "shape": [1]}}]}, one row each;
        -b lets perf_analyzer put rows together. Strings are strings and numbers are
        numbers; NaN, which JSON lacks, is eight bytes in base64.
    """
    first_us = round((time.time() - _OLD_S) * 1e6) - purchases * 1_000
    seed = time.time_ns() % 2**31
    drawn = synthetic_purchases(spec, purchases, seed=seed, first_us=first_us)
    columns = {name: np.asarray(column).tolist() for name, column in drawn.items()}
    return {
        "data": [
            {name: _tensor(value) for name, value in zip(columns, row, strict=True)}
            for row in zip(*columns.values(), strict=True)
        ]
    }


def _tensor(value: str | float) -> dict[str, Any]:
    if isinstance(value, float) and math.isnan(value):
        raw = base64.b64encode(struct.pack("<d", value)).decode()
        return {"content": {"b64": raw}, "shape": [1]}
    return {"content": [value], "shape": [1]}


def commands(
    path: Path, *, product: str, grpc_url: str, rate: float, address: Path
) -> Iterator[str]:
    """
    Yield the commands of perf_analyzer, one per load.

    Args:
        path: Path of the input data.
        rate: Rate of the open-loop load, requests/s.
        address: File with the secret that opens the server's configuration, which
            perf_analyzer requests; the secret does not appear in the command.
    """
    secret = f'$(sed -n \'s/.*"admin_secret": "\\(.*\\)".*/\\1/p\' {address})'
    for says, words in _LOADS:
        yield f"# {says}"
        yield " ".join(
            [
                f"perf_analyzer -m {product} -i grpc -u {grpc_url}",
                f'-H "{ADMIN_HEADER}:{secret}" --input-data {path}',
                f"--percentile 99 -p 5000 {words.format(rate=rate)}",
            ]
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
