"""The table of metrics says what the workers' pages say, and the paper says it too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families

from tollgate.alarms.consumer import AlarmMetrics
from tollgate.alarms.webhook import WebhookMetrics
from tollgate.audit.worker.audit_worker import WorkerMetrics
from tollgate.challenger.challenger_worker import TrialMetrics, TrialWorkerCounts
from tollgate.challenger.decision_counts import ALL, Arm, Group, Pairs
from tollgate.challenger.trials import Trial, TrialState
from tollgate.door.door_metrics import DoorMetrics
from tollgate.gateway.gateway_metrics import GatewayMetrics
from tollgate.gateway.template import Limits
from tollgate.metrics import (
    CUSTOM,
    PAGES,
    Page,
    metrics,
    tables_text,
)
from tollgate.stream.consumer import StreamMetrics
from tollgate.worker import LoopCollector

PAPER = Path(__file__).parents[2] / "docs" / "metrics.md"


def trial() -> TrialState:
    """A trial of 10 rows that both decided, 3 of them differently."""
    pairs = Pairs(rows=10, matrix=[5, 1, 0, 0, 1, 2, 0, 0, 1])
    champion = Arm(rows=10, decisions=[6, 3, 1], score_sum=2.0, scores=[10])
    challenger = Arm(
        rows=10, errors=2, decisions=[5, 2, 3], score_sum=4.0, scores=[5, 3]
    )
    group = Group(pairs=pairs, champion=champion, challenger=challenger)
    named = Trial("fraud", "shadow", "fraud-1", "fraud-2", "2026-11-22T00:00:00Z")
    return TrialState(trial=named, groups={ALL: group})


def registry(page: str) -> CollectorRegistry:
    """Make the registry of a worker, as its command does."""
    limits = Limits(1000, 40, 28, 1)
    made = {
        "gateway": lambda: GatewayMetrics(Path("absent"), limits=limits).registry,
        "door": lambda: DoorMetrics(dict).registry,
        "journal": lambda: WorkerMetrics("fraud").registry,
        "stream": lambda: StreamMetrics("fraud").registry,
        "alarms": lambda: AlarmMetrics("fraud").registry,
        "webhook": lambda: WebhookMetrics("fraud").registry,
        "challenger": lambda: (
            TrialMetrics(
                "fraud", trials=lambda: [trial()], tally=TrialWorkerCounts
            ).registry
        ),
    }[page]()
    GCCollector(registry=made)
    ProcessCollector(registry=made)
    made.register(LoopCollector())
    return made


@pytest.mark.parametrize(
    "page",
    ["journal", "stream", "alarms", "webhook", "challenger", "gateway", "door"],
)
def test_the_page_of_a_worker_is_what_the_table_says(page: Page) -> None:
    """The same names, and no label but those named."""
    text = generate_latest(registry(page)).decode()
    exported = set(re.findall(r"^# HELP (\S+)", text, re.MULTILINE))
    exported = {name for name in exported if not name.endswith("_created")}
    rows = {row.name: row for row in PAGES[page][1]}
    assert exported == set(rows)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = family.name
            row = rows.get(name) or rows.get(f"{name}_total")
            if row is not None:
                assert set(sample.labels) - {"le"} == set(row.labels), sample


def test_a_trial_is_exported_as_it_was_counted() -> None:
    """Flips are off the matrix's diagonal; a mean is over scored rows."""
    found = registry("challenger")
    named = {"product": "fraud", "challenger": "fraud-2", "mode": "shadow"}
    assert found.get_sample_value("tollgate_trial_pairs", named) == 10
    assert found.get_sample_value("tollgate_trial_flips", named) == 3
    theirs = {**named, "arm": "challenger"}
    assert found.get_sample_value("tollgate_trial_score_mean", theirs) == 0.5
    declined = {**theirs, "outcome": "decline"}
    assert found.get_sample_value("tollgate_trial_decisions", declined) == 3


def test_the_paper_holds_the_tables() -> None:
    """docs/metrics.md is what `tollgate metrics --into docs/metrics.md` writes."""
    assert tables_text() in PAPER.read_text()


def test_nobody_queries_what_prometheus_does_not_have() -> None:
    """What the adapter makes stands in the paper, and is no series to ask for."""
    made = {row.name for row in CUSTOM[1]}
    assert made == {
        "tollgate_queue_seconds",
        "tollgate_pending_requests",
        "tollgate_under_way_requests",
    }
    assert not made & {name for one in metrics() for name in one.row.series}
    assert all(f"| `{name}` |" in PAPER.read_text() for name in made)


def test_names_say_what_they_are() -> None:
    """A counter of ours ends in _total or _sum; a row stands once on a page."""
    for one in metrics():
        ends = ("_total", "_sum")
        if one.row.kind == "counter" and one.row.name.startswith("tollgate_"):
            assert one.row.name.endswith(ends), one.row.name
    for _, rows in PAGES.values():
        names = [row.name for row in rows]
        assert len(names) == len(set(names))
