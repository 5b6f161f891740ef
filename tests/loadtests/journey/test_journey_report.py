"""Tests of the journey's report and its options."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadtests.journey.__main__ import main
from loadtests.journey.equal import Agreement
from loadtests.journey.report import JourneyReport, to_json, to_markdown
from loadtests.journey.same_rate import AtRate
from loadtests.journey.turns import Turn
from loadtests.results.percentiles import Latency

COMPARED = ("naive", "fused")


def turn(stage: str, requests_per_s: float) -> Turn:
    """A turn whose figures follow from its rate."""
    return Turn(
        stage=stage,
        scenario="1-row-64",
        requests_per_s=requests_per_s,
        decisions_per_s=requests_per_s,
        latency=Latency(requests_per_s / 100, 10.0, 11.0, 12.0, 13.0),
        failed=1,
        degraded_share=0.02 if stage == "fused" else 0.0,
        batch_rows=15.5 if stage == "fused" else 0.0,
        cpu_ms=0.5 if stage == "fused" else 1.0,
        service_mb=100.4,
        store_mb=7.0,
        generator_cpu=0.1,
        failures={"HTTP status 500": 1},
    )


def report() -> JourneyReport:
    """Three turns of two stages, and one of each at a rate."""
    turns = [turn(stage, rate) for rate in (900, 1100, 1000) for stage in COMPARED]
    latency = Latency(1.0, 2.0, 3.0, 4.0, 5.0)
    return JourneyReport(
        measured_on="2026-11-21 12:00 UTC, commit abc, 2 x Some CPU",
        command="python -m loadtests.journey",
        history="10 purchases",
        warm_up_s=1.0,
        measured_s=2.0,
        equal=Agreement(rows=64, decisions={"approve": 30, "decline": 2}, apart=2.1e-7),
        turns=tuple(turns),
        rates=tuple(AtRate(stage, 70.5, latency, 3) for stage in COMPARED),
    )


def test_a_row_has_the_median_and_the_range_of_its_turns() -> None:
    """Stages stand in the order in which they took their turns."""
    text = to_markdown(report())
    rows = [
        line for line in text.splitlines() if line.startswith(("| naive", "| fused"))
    ]
    assert rows == [
        "| naive | 1,000 (900 … 1,100) | 1,000 (900 … 1,100) | 10.0 (9.0 … 11.0) | "
        "11.0 (11.0 … 11.0) | 1.00 (1.00 … 1.00) | 100 | 7 | 3 | 0.0% |  |",
        "| fused | 1,000 (900 … 1,100) | 1,000 (900 … 1,100) | 10.0 (9.0 … 11.0) | "
        "11.0 (11.0 … 11.0) | 0.50 (0.50 … 0.50) | 100 | 7 | 3 | 2.0% | "
        "15.5 (15.5 … 15.5) |",
        "| fused / naive | 1.00 (1.00 … 1.00) | 1.00 (1.00 … 1.00) | "
        "1.00 (1.00 … 1.00) | 0.50 (0.50 … 0.50) |",
        "| naive | 1.0 | 3.0 | 5.0 | 3 |",
        "| fused | 1.0 | 3.0 | 5.0 | 3 |",
    ]
    assert "* `naive`, 3: HTTP status 500" in text
    assert "30 approve, 2 decline" in text
    assert "The same 70.5 a second" in text


def test_a_result_fills_both_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text around the figures stays; a page without a place changes neither."""
    page, readme = tmp_path / "docs/journey.md", tmp_path / "README.md"
    page.parent.mkdir()
    result = tmp_path / "result.json"
    result.write_bytes(to_json(report()))
    frame = (
        "before\n\n<!-- figures: docs/journey.md -->\n{}<!-- figures: end -->\nend\n"
    )
    page.write_text(frame.format("| `old` | 1; 2 |\n"))
    readme.write_text("no place\n")
    words = ["--result", str(result), "--pages", str(tmp_path)]
    assert main(words) == 2
    assert "README.md: has 0 places" in capsys.readouterr().err
    assert "`old`" in page.read_text()
    readme.write_text(frame.format(""))
    assert main(words) == 0
    table = (
        "| service | 64 |\n| --- | ---: |\n"
        "| `naive`: FastAPI, pydantic, pandas | 1,000; 11.0 |\n"
        "| `fused`: Tollgate in one process | 1,000; 11.0 |\n\n"
    )
    assert readme.read_text() == frame.format(table)
    head, _, rest = page.read_text().partition("| `naive` | 1,000 (900 … 1,100); ")
    assert head.startswith("before\n\n<!-- figures: docs/journey.md -->\n| service |")
    assert rest.startswith("11.0 (11.0 … 11.0); 1.00 (1.00 … 1.00) |\n| `fused` |")
    assert rest.endswith("each turn.\n\n<!-- figures: end -->\nend\n")
    assert "| naive | 1.0 | 3.0 | 5.0 | 3 |" in rest


def test_json_holds_every_turn() -> None:
    """A program reads back what was measured."""
    assert msgspec.json.decode(to_json(report()), type=JourneyReport) == report()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "lean,mine"], "--stages: 'mine' is none of naive, standalone"),
        (["--stages", "lean,lean"], "--stages: needs another than lean"),
        (["--stages", "lean:9,naive"], "--stages: 'lean:9': only fused takes"),
        (["--result", "/nowhere.json"], "/nowhere.json: "),
        (["--pages", "/nowhere"], "/nowhere/docs/journey.md: "),
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
