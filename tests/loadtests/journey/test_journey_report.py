"""Tests of the journey's report and its options."""

from __future__ import annotations

import msgspec
import pytest

from loadtests.journey.__main__ import main, stages_of
from loadtests.journey.equal import Agreement
from loadtests.journey.report import JourneyReport, to_json, to_markdown
from loadtests.journey.same_rate import AtRate
from loadtests.journey.stages import PARTS, STAGES
from loadtests.journey.turns import Turn
from loadtests.results.percentiles import Latency


def turn(stage: str, requests_per_s: float) -> Turn:
    """A turn whose figures follow from its rate."""
    return Turn(
        stage=stage,
        scenario="1-row-64",
        requests_per_s=requests_per_s,
        decisions_per_s=requests_per_s,
        latency=Latency(requests_per_s / 100, 10.0, 11.0, 12.0, 13.0),
        mean_ms=10.0,
        failed=1,
        degraded_share=0.02 if stage == "tollgate" else 0.0,
        cpu_ms=0.5 if stage == "tollgate" else 1.0,
        service_mb=100.4,
        store_mb=7.0,
        parts_ms=dict(zip(PARTS, (1.0, 2.0, 3.5), strict=True)),
        generator_cpu=0.1,
        failures={"HTTP status 500": 1},
    )


def report() -> JourneyReport:
    """Three turns of two stages, and one of each at a rate."""
    turns = [turn(stage, rate) for rate in (900, 1100, 1000) for stage in STAGES[::4]]
    latency = Latency(1.0, 2.0, 3.0, 4.0, 5.0)
    return JourneyReport(
        measured_on="2026-11-21 12:00 UTC, commit abc, 2 x Some CPU",
        command="python -m loadtests.journey",
        history="10 purchases",
        warm_up_s=1.0,
        measured_s=2.0,
        equal=Agreement(rows=64, decisions={"approve": 30, "decline": 2}, apart=2.1e-7),
        turns=tuple(turns),
        rates=tuple(AtRate(stage, 70.5, latency, 3) for stage in STAGES[::4]),
    )


def test_a_row_has_the_median_and_the_range_of_its_turns() -> None:
    """Stages stand in the order in which they took their turns."""
    text = to_markdown(report())
    rows = [
        line for line in text.splitlines() if line.startswith(("| naive", "| toll"))
    ]
    assert rows == [
        "| naive | 1,000 (900 … 1,100) | 1,000 (900 … 1,100) | 10.0 (9.0 … 11.0) | "
        "11.0 (11.0 … 11.0) | 1.00 (1.00 … 1.00) | 100 | 7 | 3 | 0.0% |",
        "| tollgate | 1,000 (900 … 1,100) | 1,000 (900 … 1,100) | 10.0 (9.0 … 11.0) | "
        "11.0 (11.0 … 11.0) | 0.50 (0.50 … 0.50) | 100 | 7 | 3 | 2.0% |",
        "| tollgate / naive | 1.00 (1.00 … 1.00) | 1.00 (1.00 … 1.00) | "
        "1.00 (1.00 … 1.00) | 0.50 (0.50 … 0.50) |",
        "| naive | 1.00 | 2.00 | 3.50 | 3.50 |",
        "| tollgate | 1.00 | 2.00 | 3.50 | 3.50 |",
        "| naive | 1.0 | 3.0 | 5.0 | 3 |",
        "| tollgate | 1.0 | 3.0 | 5.0 | 3 |",
    ]
    assert "* `naive`, 3: HTTP status 500" in text
    assert "30 approve, 2 decline" in text
    assert "The same 70.5 a second" in text


def test_json_holds_every_turn() -> None:
    """A program reads back what was measured."""
    assert msgspec.json.decode(to_json(report()), type=JourneyReport) == report()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "lean,mine"], "--stages: 'mine' is none of naive, phase1"),
        (["--stages", "lean,naive"], "--stages: needs tollgate"),
        (["--check", "20"], "--check: 20 is no multiple of 16"),
        (["--rounds", "0"], "--rounds: 0 is below 1"),
        (["--only", "x"], "--only: 'x' is none of"),
        (["--out", "/nowhere/at/all.md"], "--out: /nowhere/at is not a folder"),
    ],
)
def test_a_bad_option_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By flag and value; exit status 2, and nothing is started."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"loadtests.journey: {words}")
    assert error.count("\n") == 1


def test_stages_keep_the_order_of_the_journey() -> None:
    """However they are named."""
    assert stages_of("tollgate,naive") == ("naive", "tollgate")
