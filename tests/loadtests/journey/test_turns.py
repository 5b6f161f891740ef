"""Tests of summing up one turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtests.journey.stages import Stage
from loadtests.journey.turns import Plan, in_flight, summarize
from loadtests.requests.generator import SCENARIOS, Generator, GeneratorRun, Log
from loadtests.requests.recorded_answers import RecordedAnswers
from tollgate.load.process_usage import Use
from tollgate.load.traffic import Traffic

START_US = 1_700_000_000_000_000


def stage(name: str) -> Stage:
    """A stage that gets no request."""
    return Stage(
        name=name,
        url="127.0.0.1:1",
        pids=(),
        store_pid=0,
        store_url="",
        batches=lambda: (0, 0),
        require_alive=lambda: None,
    )


@pytest.fixture
def plan() -> Plan:
    """1 s of warm-up, 2 s measured."""
    nothing = np.zeros(0, np.int64)
    return Plan(
        generator=Generator(binary="h2load", version="1", preload=Path("vary.so")),
        traffic=Traffic(entity_id={}, cents=nothing, time_us=nothing, period_us=1),
        folder=Path(),
        warm_up_s=1.0,
        measured_s=2.0,
    )


def use(cpu_s: float, pss_mb: float) -> Use:
    """Make the resource use of processes."""
    return Use(processes=1, pss_mb=pss_mb, rss_mb=pss_mb, cpu_s=cpu_s)


def test_a_turn_counts_good_answers_that_end_in_the_measured_time(plan: Plan) -> None:
    """Cost is per row of all that were answered, the warm-up's too."""
    # Ends 0.5, 1.0, 2.9 and 3.0 s after the first request; 1 s to 3 s are measured.
    start = np.array([0, 900_000, 2_000_000, 2_999_000, 2_000_000])
    took = np.array([500_000, 100_000, 900_000, 1_000, 1_000])
    status = np.array([200, 200, 200, 200, 500])
    log = Log(start_us=START_US + start, status=status, took_us=took)
    turn = summarize(
        plan,
        stage("lean"),
        SCENARIOS[3],
        generated=GeneratorRun(
            log=log,
            recorded=RecordedAnswers(answers=[], offered=5, continued=0),
            cpu_s=0.7,
        ),
        use=((use(1.0, 100), use(0.5, 10)), (use(1.5, 120), use(0.6, 11))),
        batches=((10, 5), (70, 9)),
    )
    assert (turn.requests_per_s, turn.decisions_per_s) == (1.0, 16.0)
    assert (turn.latency.p50_ms, turn.latency.max_ms) == (100.0, 900.0)
    assert turn.failed == 1
    assert turn.cpu_ms == pytest.approx(600 / (4 * 16))
    assert (turn.service_mb, turn.store_mb) == (120, 11)
    assert turn.batch_rows == 15
    assert turn.generator_cpu == pytest.approx(0.2)


def test_every_stage_has_as_many_requests_under_way() -> None:
    """HTTP/1.1 has one on each connection."""
    for scenario in SCENARIOS:
        plain = in_flight(scenario, stage("naive"))
        assert plain.in_flight == scenario.in_flight
        assert plain.streams == 1
        assert in_flight(scenario, stage("ensemble")) == scenario
        assert in_flight(scenario, stage("fused:250")) == scenario
