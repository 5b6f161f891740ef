"""Tests of summing up one run."""

from __future__ import annotations

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from loadtests.requests.generator import GeneratorRun, Log
from loadtests.requests.recorded_answers import Answer, RecordedAnswers
from loadtests.results.measure import Work, summarize
from tollgate.load.bodies import frame
from tollgate.load.process_usage import Use
from tollgate_client.wire import bytes_tensor

START_US = 1_700_000_000_000_000
WORK = Work(
    answered=9,
    failed=0,
    purchases=10,
    feature_batches=5,
    model_batches=4,
    writes=19,
    cpu_s=1.0,
)
USE = Use(processes=5, pss_mb=200.0, rss_mb=300.0, cpu_s=2.0)


def answer(ended_us: int) -> Answer:
    """One row, decided."""
    response = service_pb2.ModelInferResponse()
    for name, raw in (("degraded", b"\0\0\0\0"), ("error", bytes_tensor([b""]))):
        response.outputs.add(name=name)
        response.raw_output_contents.append(raw)
    body = frame(response.SerializeToString())
    return Answer(ended_us=ended_us, body=body, failure="")


def test_only_requests_that_end_in_the_measured_time_count() -> None:
    """Warm-up and tail are left out of every figure, by the end of the request."""
    # Ends 0.5, 1.0, 1.5, 2.9, 3.0 s after the first request; measured is 1 s to 3 s.
    start = np.array([0, 900_000, 1_400_000, 2_000_000, 2_999_000])
    took = np.array([500_000, 100_000, 100_000, 900_000, 1_000])
    log = Log(start_us=START_US + start, status=np.full(5, 200), took_us=took)
    ends = (START_US + start + took).tolist()
    recorded = RecordedAnswers(
        answers=[answer(end) for end in ends], offered=6, continued=0
    )
    run = summarize(
        GeneratorRun(log=log, recorded=recorded, cpu_s=0.1),
        work=WORK,
        use=USE,
        bodies=4,
        warm_up_s=1.0,
        measured_s=2.0,
    )
    assert run.tally.requests == 3
    assert run.requests_per_s == run.decisions_per_s == 1.5
    assert (run.latency.p50_ms, run.latency.max_ms) == (100.0, 900.0)
    assert run.new_share == pytest.approx(4 / 6)
    assert run.writes_per_purchase == 1.9
