"""Both senders report the same results for the same requests."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from time import perf_counter

import pytest

from tollgate.features.spec.feature_spec import all_fields, load_spec, wire_inputs
from tollgate.load.arrivals import evenly
from tollgate.load.sender import open_sender
from tollgate.load.synthetic import synthetic_purchases
from tollgate.testing import TestServer
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

COMPILED, ASYNCIO = "compiled", "asyncio"
SPEC = Path(__file__).parents[3] / "model_repository/fraud_features/1/features.yaml"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            COMPILED,
            marks=pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler"),
        ),
        ASYNCIO,
    ],
)
def test_results_have_the_times_of_the_clock(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due, sent and answered in their order, within the time in which it was done."""
    if name == ASYNCIO:
        monkeypatch.setenv("PATH", "/nowhere")  # without a compiler
    spec = load_spec(SPEC)
    first_us = time.time_ns() // 1000 - 10_000_000
    columns = synthetic_purchases(spec, 60, seed=3, first_us=first_us)
    checked = check_columns(columns, inputs=wire_inputs(spec), fields=all_fields(spec))
    requests = list(
        requests_of(checked, product="fraud", size=2, dry_run=True, deadline_s=5)
    )
    with (
        TestServer() as server,
        open_sender(server.url, timeout_s=5) as chosen,
    ):
        assert chosen.name == name
        began_s = perf_counter()
        sent = chosen.at_times(requests, evenly(len(requests), rate_per_s=100))
        ended_s = perf_counter()
    assert sent.answered.all()
    assert len(sent.due_s) == 30
    assert (sent.sent_s >= sent.due_s).all()
    assert (sent.due_s + sent.latency_s > sent.sent_s).all()
    assert began_s < sent.due_s[0]
    assert sent.due_s[-1] + sent.latency_s[-1] < ended_s
