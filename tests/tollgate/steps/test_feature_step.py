"""The feature step without Triton around it: what it notes when the store fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import types
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tollgate.errors import InputError
from tollgate.repair.segments import read_segment, segments
from tollgate.schema import (
    STORE_DEADLINE_PARAMETER,
    UPDATES_PARAMETER,
    Applied,
    Degraded,
)
from tollgate.server.redis import EmbeddedRedis
from tollgate.steps.batch import Batch
from tollgate.steps.feature import (
    SPOOL_VARIABLE,
    STORE_URL_VARIABLE,
    FeatureStep,
    _store_settings,
)

NOW_US = 1_600_000_000_000_000


class Family:
    """A metric family that remembers, in the place of Triton's."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    told: ClassVar[dict[str, float]] = {}

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        self.name = name

    def Metric(
        self, *, labels: dict[str, str], buckets: list[float] | None = None
    ) -> Told:
        """Make one metric."""
        rest = {key: value for key, value in labels.items() if key not in OF_ALL}
        return Told(" ".join([self.name, *rest.values()]), self.told)


OF_ALL = ("model", "version")


class Told:
    """One metric: the sum of what it was told, or the last value."""

    def __init__(self, name: str, told: dict[str, float]) -> None:
        self.name = name
        self.told = told
        told[name] = 0

    def increment(self, by: float) -> None:
        """Raise a counter."""
        assert by >= 0
        self.told[self.name] += by

    def set(self, value: float) -> None:
        """Set a gauge."""
        self.told[self.name] = value

    def observe(self, value: float) -> None:
        """Count what a histogram sees."""
        assert value >= 0
        self.told[self.name] += 1


@pytest.fixture
def server(tmp_path: Path) -> EmbeddedRedis:
    """A Redis of the test's own, not started."""
    return EmbeddedRedis(tmp_path)


def step_over(
    url: str, *, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FeatureStep:
    """Initialize the step over a store, as Triton would."""
    triton = types.ModuleType("triton_python_backend_utils")
    monkeypatch.setattr(triton, "MetricFamily", Family, raising=False)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)
    monkeypatch.setenv(STORE_URL_VARIABLE, url)
    parameters = {STORE_DEADLINE_PARAMETER: {"string_value": "500"}}
    step = FeatureStep()
    step.initialize(
        {
            "model_config": json.dumps({"parameters": parameters}),
            "model_name": "fraud_features",
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
    """
    Yes and duplicate; unknown when it is silent; no when it is not there.

    The customer and the terminal are known by then, so their last known values serve.
    """
    with server:
        step = step_over(server.url, spec_path=spec_path, monkeypatch=monkeypatch)
        assert applied(step, b"1") == (Applied.YES, Degraded.COLD_START)
        assert applied(step, b"1") == (Applied.DUPLICATE, Degraded.COLD_START)
        os.kill(server.pid, signal.SIGSTOP)
        silent = applied(step, b"2")
        os.kill(server.pid, signal.SIGCONT)
        assert silent == (Applied.UNKNOWN, Degraded.LAST_KNOWN_VECTOR)
    assert applied(step, b"3") == (Applied.NO, Degraded.LAST_KNOWN_VECTOR)
    step.finalize()


def test_metrics_say_what_happened(
    server: EmbeddedRedis, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls by outcome, rows by bit, look-ups by found, by hand."""
    told = Family.told
    told.clear()
    with server:
        step = step_over(server.url, spec_path=spec_path, monkeypatch=monkeypatch)
        step._metrics._due_s = 0.0
        bits = applied(step, b"1")[1]
        step._metrics.batch(np.array([bits, 0], np.uint32))
    assert told["tollgate_store_calls_total answered"] == 1
    assert told["tollgate_store_call_seconds"] == 1
    assert told["tollgate_degraded_rows_total COLD_START"] == 1
    assert told["tollgate_store_breaker_state"] == 0
    assert told["tollgate_feed_watermark_seconds purchases"] == NOW_US / 1e6
    assert told["tollgate_last_known_bytes"] > 0
    for number in range(5):  # as many failures as open the breaker
        bits = applied(step, b"%d" % (2 + number))[1]
        step._metrics.batch(np.array([bits], np.uint32))
    assert told["tollgate_store_breaker_state"] == 2
    assert told["tollgate_store_breaker_opened_total"] == 1
    assert told["tollgate_store_calls_total failed"] == 5
    assert told["tollgate_degraded_rows_total LAST_KNOWN_VECTOR"] == 5
    assert told["tollgate_last_known_values_total yes"] == 10
    assert told["tollgate_spool_rows_total no"] == 5
    step.finalize()


def test_what_the_store_missed_goes_to_the_spool(
    spec_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder in the environment is where; without a store's address there is none."""
    spool = tmp_path / "spool"
    monkeypatch.setenv(SPOOL_VARIABLE, str(spool))
    nowhere = f"unix://{tmp_path}/nowhere.sock"
    step = step_over(nowhere, spec_path=spec_path, monkeypatch=monkeypatch)
    assert applied(step, b"7")[0] == Applied.NO
    step.finalize()
    (path,) = segments(spool)
    (event,) = read_segment(path, path.read_bytes()).events
    assert json.loads(event)["transaction_id"] == "7"
    path.unlink()
    step = step_over("", spec_path=spec_path, monkeypatch=monkeypatch)
    assert applied(step, b"8")[0] == Applied.NO
    step.finalize()
    assert segments(spool) == []


def test_who_updates_is_one_of_three() -> None:
    """`stream` leaves writing to the stream; any other word is refused by name."""
    assert _store_settings({}).updates
    assert _store_settings({UPDATES_PARAMETER: "both"}).updates
    assert not _store_settings({UPDATES_PARAMETER: "stream"}).updates
    with pytest.raises(InputError, match="'nobody' is none of scoring, stream, both"):
        _store_settings({UPDATES_PARAMETER: "nobody"})
