"""The figures of a run, from samples laid out by hand."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.load.results import ANSWERED, CALL, NO_ANSWER, Results
from tollgate.tuning.driver import Traffic, run_figures


def traffic(spec: FeatureSpec) -> Traffic:
    """Requests of two rows, promised within 50 ms."""
    return Traffic("fraud", spec, rows=2, within_ms=50.0)


def results(
    at_s: npt.NDArray[np.float64],
    latency_s: npt.NDArray[np.float64],
    late_s: npt.NDArray[np.float64],
) -> Results:
    """Requests of two rows; an infinite latency is a request without an answer."""
    answered = np.isfinite(latency_s)
    calls = np.zeros(len(at_s), CALL)
    calls["due_us"] = np.rint(at_s * 1e6)
    calls["late_us"] = np.rint(late_s * 1e6)
    calls["took_us"] = np.rint(np.where(answered, latency_s, 0.2) * 1e6)
    calls["rows"] = calls["decided"] = 2
    calls["kind"][~answered] = 1
    return Results(calls, (ANSWERED, NO_ANSWER), {})


def test_a_run_is_its_samples_after_the_warm_up(spec: FeatureSpec) -> None:
    """200 requests in 2.5 s: 40 before, then 1 to 160 ms, four not answered."""
    latency_s = np.concatenate([np.full(40, 9.9), np.arange(1, 161) / 1e3])
    latency_s[-4:] = np.inf
    late_s = np.concatenate([np.full(40, 9.9), np.full(160, 0.001)])
    answered = results(np.linspace(0, 2.5, 200), latency_s, late_s)
    seen = run_figures(answered, traffic(spec), rate_per_s=80.0, used_s=3.92)
    assert (seen.requests, seen.seconds) == (160, 2.0)
    assert seen.p50_ms == pytest.approx(81)  # an odd sample: no mean of two
    assert math.isinf(seen.p99_ms)  # more than one of a hundred never came
    assert seen.in_time_percent == pytest.approx(100 * 50 / 160)
    assert seen.answered_per_s == pytest.approx(156 / 2)
    assert seen.cpu_s == pytest.approx(3.92 / (196 * 2) * 1000)
    assert seen.late_p99_ms == pytest.approx(1.0)


def test_a_server_that_answers_nothing_has_no_percentile(spec: FeatureSpec) -> None:
    """And nothing was divided by nothing."""
    answered = results(np.zeros(1), np.array([np.inf]), np.zeros(1))
    seen = run_figures(answered, traffic(spec), rate_per_s=0.0, used_s=1.0)
    assert math.isinf(seen.p50_ms)
    assert (seen.in_time_percent, seen.answered_per_s) == (0.0, 0.0)


def test_callers_give_up_soon_after_the_promise(spec: FeatureSpec) -> None:
    """So that an overload ends with its run."""
    assert traffic(spec).timeout_s == 0.2
