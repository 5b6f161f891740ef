"""Layers: cut where the contract cuts them, and judged by their 99th percentile."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from loadtests.layers import MEASURED, judge, split
from loadtests.open_loop import Sent
from tollgate.errors import ServerError
from tollgate.repository.product import Product, read_product
from tollgate.repository.slo import Layers
from tollgate.server.traces import Span, Traced

MS = 1_000_000  # ns


@pytest.fixture
def models(tmp_path: Path) -> Product:
    """The committed product."""
    checkout = Path(__file__).parents[2]
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(checkout / "model_repository", tmp_path / "models", ignore=leave)
    return read_product(tmp_path / "models", "fraud")


def traced(number: str, *, shift_ms: int = 0) -> Traced:
    """A request that was queued at 12, 17 and 24 ms and done at 27 ms."""
    at_ms = {"fraud_features": 12, "fraud_model": 17, "fraud_decision": 24}
    steps = {
        step: Span(step, {"QUEUE_START": (at + shift_ms) * MS})
        for step, at in at_ms.items()
    }
    steps["fraud_decision"].at_ns["COMPUTE_END"] = (27 + shift_ms) * MS
    return Traced(number, Span("fraud", {}), steps)


def sent(*latency_ms: float, late_ms: float = 0.0) -> Sent:
    """Requests that were due at 10 ms and sent a little later."""
    count = len(latency_ms)
    return Sent(
        due_s=np.full(count, 0.010),
        sent_s=np.full(count, 0.010 + late_ms / 1e3),
        latency_s=np.array(latency_ms) / 1e3,
        degraded=np.zeros(count, np.uint32),
        answered=np.isfinite(latency_ms),
    )


def test_the_layers_of_a_request_add_up(models: Product) -> None:
    """Sent at 11, queued at 12, 17 and 24, decided at 27, answered at 30 ms."""
    found = split([traced("0")], sent(20.0, late_ms=1.0), models=models)
    assert [round(float(found.layers_ms[name][0]), 6) for name in MEASURED] == [
        *(1.0, 5.0, 7.0, 3.0, 3.0)
    ]
    assert found.in_server_ms.round(6).tolist() == [15.0]


def test_what_is_not_whole_is_left_out(models: Product) -> None:
    """No number of ours, not answered, a step without its times."""
    half = traced("1")
    del half.steps["fraud_model"].at_ns["QUEUE_START"]
    pieces = [traced("x"), traced("7"), traced("2"), half, traced("0")]
    found = split(pieces, sent(20.0, 20.0, np.inf), models=models)
    assert len(found.in_server_ms) == 1
    with pytest.raises(ServerError, match="fraud: no request was traced"):
        split(pieces[:4], sent(20.0, 20.0, np.inf), models=models)


def test_a_layer_is_broken_by_its_tail(models: Product) -> None:
    """Half of 200 requests come 4 ms late into the server: p50 and p99 tell."""
    pieces = [traced(str(one), shift_ms=4 * (one % 2)) for one in range(200)]
    found = split(pieces, sent(*[30.0] * 200), models=models)
    request, features, *_ = judge(found, Layers(request=5.9, features=5.1))
    assert (request.layer, features.layer) == ("request", "features")
    assert request.p50_ms == pytest.approx(4.0)
    assert request.p99_ms == pytest.approx(6.0)
    assert (request.broken, features.broken) == (True, False)
