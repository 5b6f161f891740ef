"""The tables have each figure, and the command fails when a proof does."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from loadtests.ranking.report import FormLatency, RankingReport, to_markdown
from tests.loadtests.ranking.test_latency import RUN
from tests.loadtests.ranking.test_ranking_faults import PROVEN as FAULT
from tests.loadtests.ranking.test_truth import PROVEN as TRUTH

RUNS = [replace(RUN, p95_ms=one) for one in (42.0, 40.0, 60.0)]
REPORT = RankingReport(
    shop="6 events of 2 users with 3 items",
    surroundings="a day, a machine",
    command="python -m loadtests.ranking",
    deadline_s=0.1,
    latency=[
        FormLatency("ensemble", "none prepared", RUNS, replace(RUN, rate=230.0), RUNS),
        FormLatency("fused", "none prepared", RUNS, None, RUNS[:1]),
        FormLatency("fused", "none prepared", RUNS, None, []),
    ],
    truth={"ensemble": TRUTH},
    faults={"fused": [FAULT]},
)


def cells(text: str, start: str) -> list[str]:
    """Return the cells of the first line that starts so."""
    line = next(one for one in text.splitlines() if one.startswith(start))
    return [one.strip() for one in line.strip("|").split("|")]


def test_latency_is_a_median_and_a_range() -> None:
    text = to_markdown(REPORT)
    row = cells(text, "| ensemble | none prepared")
    assert row[4] == "42.0 (40.0 … 60.0)"
    assert row[6:9] == ["100.00%", "0", "0.0 (0.0 … 0.0) %"]
    assert row[-1] == "230 (79.0 ms)"
    below, skipped = (
        line for line in text.splitlines() if line.startswith("| fused | none prepared")
    )
    assert below.endswith("below 100 |")
    assert skipped.endswith("not searched |")


def test_truth_and_faults_have_their_counts() -> None:
    text = to_markdown(REPORT)
    assert cells(text, "| ensemble | 2 |")[2:] == [
        *("1", "1", "1", "1, 1", "0", "0.5", "0.000", "0", "0", "0", "yes")
    ]
    row = cells(text, "| fused | no fault")
    assert row[2:8] == ["10", "0", "0", "9, 1", "100.00%", "personal 36, client 4"]
    assert row[-1] == "yes"
    assert "6 events of 2 users" in text.splitlines()[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"truth": {"fused": replace(TRUTH, out_shown=1)}},
        {"faults": {"fused": [FAULT, replace(FAULT, short=1)]}},
    ],
)
def test_one_failed_proof_is_a_failed_command(change: dict[str, object]) -> None:
    assert REPORT.ok
    assert not replace(REPORT, **change).ok


def test_json_has_every_run() -> None:
    read = msgspec.json.decode(msgspec.json.encode(REPORT), type=RankingReport)
    assert [one.p95_ms for one in read.latency[0].runs] == [42.0, 40.0, 60.0]
