"""Tests of the report."""

from __future__ import annotations

import msgspec
import pytest

from loadtests.h2load import (
    LimitReport,
    Measured,
    to_json,
    to_markdown,
)
from loadtests.requests.generator import SCENARIOS
from loadtests.requests.recorded_answers import Tally
from loadtests.results.markdown import share, spread
from loadtests.results.measure import Run, Work
from loadtests.results.percentiles import Latency
from loadtests.results.surroundings import MeasurementConditions
from tollgate.load.process_usage import Use


def run_of(requests_per_s: float, *, degraded: int = 0, failed: int = 0) -> Run:
    """A run of 16 rows a request, whose percentiles follow from its rate."""
    rows = int(requests_per_s * 16)
    return Run(
        measured_s=1.0,
        requests_per_s=requests_per_s,
        decisions_per_s=rows,
        latency=Latency(
            p50_ms=requests_per_s / 100,
            p90_ms=10.0,
            p99_ms=11.0,
            p999_ms=12.0,
            max_ms=requests_per_s / 10,
        ),
        tally=Tally(
            requests=int(requests_per_s),
            rows=rows,
            refused_rows=0,
            degraded_rows=degraded,
            degraded={"COLD_START": degraded} if degraded else {},
            failures={"gRPC status 14: full": failed} if failed else {},
        ),
        new_share=1.0,
        writes_per_purchase=2.0,
        continued_bodies=0,
        work=Work(
            answered=100,
            failed=0,
            purchases=1600,
            feature_batches=100,
            model_batches=50,
            writes=3200,
            cpu_s=0.9,
        ),
        use=Use(processes=5, pss_mb=220.4, rss_mb=300.6, cpu_s=3.0),
        generator_cpu_s=0.1,
    )


@pytest.fixture
def report() -> LimitReport:
    """Three runs of one scenario."""
    return LimitReport(
        surroundings=MeasurementConditions(
            date="2020-01-02 03:04 UTC",
            commit="abc1234",
            hardware="2 x CPU",
            versions={"Triton": "2.51.0"},
        ),
        command="python -m loadtests.h2load",
        release="fraud-1",
        history="some purchases",
        warm_up_s=2.0,
        measured=(
            Measured(
                scenario=SCENARIOS[3],
                runs=(run_of(900), run_of(1100, degraded=48, failed=2), run_of(1000)),
            ),
        ),
    )


def test_figures_are_the_median_and_the_range(report: LimitReport) -> None:
    """A percentile is never an average; errors add up, the maximum is the highest."""
    text = to_markdown(report)
    assert (
        "| 16 | 8 (4 x 2) | 1,000 (900 … 1,100) | 16,000 (14,400 … 17,600) "
        "| 10.0 (9.0 … 11.0) | 10.0 (10.0 … 10.0) | 11.0 (11.0 … 11.0) "
        "| 12.0 (12.0 … 12.0) | 110.0 | 2 | 0.10% |\n"
    ) in text
    assert (
        "| 16 | 8 | 100.0% | 2.00 (2.00 … 2.00) | 16.0 (16.0 … 16.0) "
        "| 32.0 (32.0 … 32.0) | 9.00 (9.00 … 9.00) | 10% | 220 | 301 |\n"
    ) in text


def test_a_report_says_under_which_conditions(report: LimitReport) -> None:
    """Figures without date, commit, machine, versions and command are worth nothing."""
    text = to_markdown(report)
    for words in (
        "2020-01-02 03:04 UTC",
        "`abc1234`",
        "2 x CPU",
        "Triton 2.51.0",
        "`python -m loadtests.h2load`",
        "2 s warm-up, then 1 s measured; 3 runs per scenario, closed loop",
        "* `16-rows-8`: gRPC status 14: full: 2, COLD_START: 48\n",
        "h2load -t 1 -c 4 -m 2 -D 3500ms",
    ):
        assert words in text


def test_tables_have_as_many_cells_as_heads(report: LimitReport) -> None:
    """Otherwise Markdown drops cells silently."""
    lines = to_markdown(report).splitlines()
    tables = [line.count("|") for line in lines if line.startswith("|")]
    assert tables == [tables[0]] * 3 + [tables[3]] * 3


def test_json_holds_the_whole_report(report: LimitReport) -> None:
    """Programs read what people read, and each run."""
    assert msgspec.json.decode(to_json(report), type=LimitReport) == report


def test_the_median_of_two_is_a_run_that_was() -> None:
    """The lower one, not their mean."""
    runs = [run_of(200), run_of(100)]
    text = spread([run.requests_per_s for run in runs], 0)
    assert text == "100 (100 … 200)"
    assert spread([run.requests_per_s for run in runs[:1]], 0) == "200"


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(0, 0, "0"), (0, 9, "0"), (1, 4, "25.00%"), (1, 100_000, "1.0e-05")],
)
def test_a_small_share_is_not_nothing(part: int, whole: int, words: str) -> None:
    """0 is written only for none."""
    assert share(part, whole) == words
