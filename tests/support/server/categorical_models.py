"""Train models on data frames with words, and have raw rows answered by a server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tollgate.server.serving.embedded import serve
from tollgate_client import Client, Decisions, join

SIZES = ["small", "medium", "large", "huge"]  # in no order of the alphabet


def ordered_rows(rows: int, *, seed: int) -> pd.DataFrame:
    """Draw sizes that have an order, colours that have none, a number, an outcome."""
    random = np.random.default_rng(seed)
    size, colour = random.integers(0, 4, rows), random.integers(0, 3, rows)
    x = np.rint(8 * random.normal(size=rows)) / 8  # the same in float32
    logit = 1.2 * size - 1.8 + 0.8 * x + 0.7 * (colour == 1)
    return pd.DataFrame(
        {
            "size": np.array(SIZES)[size],
            "colour": np.array(["red", "green", "blue"])[colour],
            "x": x,
            "bad": (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int),
        }
    )


def code_rows(rows: int, *, count: int, seed: int) -> tuple[pd.DataFrame, list[str]]:
    """Draw rows with one of many codes, each with a risk of its own; and the codes."""
    random = np.random.default_rng(seed)
    codes = [f"m{one:03d}" for one in random.permutation(count)]
    risk, code = random.normal(0, 3, count), random.integers(0, count, rows)
    bad = random.random(rows) < 1 / (1 + np.exp(-risk[code]))
    x = np.rint(8 * random.normal(size=rows)) / 8  # the same in float32
    columns = {"code": np.array(codes)[code], "x": x, "bad": bad.astype(int)}
    return pd.DataFrame(columns), codes


def served(
    repository: Path, product: str, rows: pd.DataFrame, *, state: Path
) -> Decisions:
    """Serve a product and have raw rows decided: texts as texts, None as empty."""
    fields: dict[str, str] = {}
    columns: dict[str, Any] = {
        "transaction_id": [f"row-{one}" for one in range(len(rows))],
        "event_time": [int(time.time() * 1e6)] * len(rows),
    }
    for name in rows:
        number = rows[name].dtype.kind == "f"
        fields[name] = "FP64" if number else "BYTES"
        columns[name] = (
            rows[name].tolist()
            if number
            else [str(one) if one is not None else "" for one in rows[name]]
        )
    inputs = {"transaction_id": "BYTES", "event_time": "INT64"}
    with (
        serve(repository, products=(product,), state=state) as server,
        Client(
            server.grpc_url,
            product=product,
            inputs=inputs,
            fields=fields,
            timeout_s=60.0,
        ) as client,
    ):
        return join(list(client.decide_many(columns, in_flight=1)))


def farthest(answers: Decisions, expected: npt.NDArray[np.floating[Any]]) -> float:
    """Return the greatest difference of a score; every row must have one."""
    assert not any(answers.error.tolist())
    return float(np.abs(answers.score - expected).max())
