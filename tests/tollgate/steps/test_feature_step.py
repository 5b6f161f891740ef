"""The feature step without Triton around it: what it notes when the store fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tollgate.schema import STORE_DEADLINE_PARAMETER, Applied, Degraded
from tollgate.server.redis import EmbeddedRedis
from tollgate.steps.feature import STORE_URL_VARIABLE, Batch, FeatureStep

NOW_US = 1_600_000_000_000_000


@pytest.fixture
def server(tmp_path: Path) -> EmbeddedRedis:
    """A Redis of the test's own, not started."""
    return EmbeddedRedis(tmp_path)


def step_over(
    url: str, *, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FeatureStep:
    """Initialize the step over a store, as Triton would."""
    monkeypatch.setitem(
        sys.modules,
        "triton_python_backend_utils",
        types.ModuleType("triton_python_backend_utils"),
    )
    monkeypatch.setenv(STORE_URL_VARIABLE, url)
    parameters = {STORE_DEADLINE_PARAMETER: {"string_value": "500"}}
    step = FeatureStep()
    step.initialize(
        {
            "model_config": json.dumps({"parameters": parameters}),
            "model_repository": str(spec_path.parent.parent),
            "model_version": spec_path.parent.name,
        }
    )
    return step


def applied(step: FeatureStep, transaction_id: bytes) -> tuple[int, int]:
    """Score one purchase; `applied` and `degraded` of its context."""
    _, context = step._score(
        Batch(
            ids={
                "transaction_id": [transaction_id],
                "customer_id": [b"c"],
                "terminal_id": [b"t"],
            },
            cents=np.array([100]),
            time_us=np.array([NOW_US]),
            errors={},
            bounds=[0, 1],
            dry=[False],
        ),
        arrival_us=0,
    )
    return int(context["applied"][0]), int(context["degraded"][0])


def test_applied_tells_what_is_known_of_the_store(
    server: EmbeddedRedis, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yes and duplicate; unknown when it is silent; no when it is not there."""
    with server:
        step = step_over(server.url, spec_path=spec_path, monkeypatch=monkeypatch)
        assert applied(step, b"1") == (Applied.YES, Degraded.COLD_START)
        assert applied(step, b"1") == (Applied.DUPLICATE, Degraded.COLD_START)
        os.kill(server.pid, signal.SIGSTOP)
        silent = applied(step, b"2")
        os.kill(server.pid, signal.SIGCONT)
        assert silent == (Applied.UNKNOWN, Degraded.STORE_UNAVAILABLE)
    assert applied(step, b"3") == (Applied.NO, Degraded.STORE_UNAVAILABLE)
