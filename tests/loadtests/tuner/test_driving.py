"""What a run says, from samples laid out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtests.tuner.driving import Traffic, seen_of
from loadtests.tuner.sending import Answered
from tollgate.features.spec import FeatureSpec


def traffic(spec: FeatureSpec) -> Traffic:
    """Requests of two rows, promised within 50 ms."""
    return Traffic("fraud", spec, {}, {}, rows=2, within_ms=50.0)


def test_a_run_is_its_samples_after_the_warm_up(spec: FeatureSpec) -> None:
    """200 requests in 2.5 s: 40 before, then 1 to 160 ms, four not answered."""
    latency_s = np.concatenate([np.full(40, 9.9), np.arange(1, 161) / 1e3])
    latency_s[-4:] = np.inf
    late_s = np.concatenate([np.full(40, 9.9), np.full(160, 0.001)])
    answered = Answered(np.linspace(0, 2.5, 200), latency_s, late_s)
    told = seen_of(answered, traffic(spec), rate_per_s=80.0, used_s=3.92)
    assert (told.requests, told.seconds) == (160, 2.0)
    assert told.p50_ms == pytest.approx(81)  # an odd sample: no mean of two
    assert math.isinf(told.p99_ms)  # more than one of a hundred never came
    assert told.in_time_percent == pytest.approx(100 * 50 / 160)
    assert told.answered_per_s == pytest.approx(156 / 2)
    assert told.cpu_s == pytest.approx(3.92 / (196 * 2) * 1000)
    assert told.late_p99_ms == pytest.approx(1.0)


def test_a_server_that_answers_nothing_has_no_percentile(spec: FeatureSpec) -> None:
    """And nothing was divided by nothing."""
    answered = Answered(np.zeros(1), np.array([np.inf]), np.zeros(1))
    told = seen_of(answered, traffic(spec), rate_per_s=0.0, used_s=1.0)
    assert math.isinf(told.p50_ms)
    assert (told.in_time_percent, told.answered_per_s) == (0.0, 0.0)


def test_callers_give_up_soon_after_the_promise(spec: FeatureSpec) -> None:
    """So that an overload ends with its run."""
    assert traffic(spec).timeout_s == 0.2
