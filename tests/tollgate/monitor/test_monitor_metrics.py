"""Metrics and page of the monitor."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from prometheus_client import GCCollector, ProcessCollector, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.audit.random_records import REPOSITORY
from tests.support.monitor.sealed_journals import (
    DAY_US,
    LIST_METRICS,
    LOOKED_US,
    Sealed,
    decisions,
    labels_of,
    shifted,
)
from tollgate.audit.worker.label_journal import read_labels, seal_labels
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.metrics import PAGES
from tollgate.monitor.journal_monitor import MonitorOptions, ProductMonitor
from tollgate.monitor.monitor_metrics import (
    PREFIX,
    MonitorMetrics,
    samples_of,
)
from tollgate.monitor.monitor_page import monitor_page
from tollgate.worker import LoopCollector, Worker

PAPER = Path(__file__).parents[3] / "docs/monitor.md"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def looked(
    tmp_path_factory: pytest.TempPathFactory, spec: FeatureSpec
) -> ProductMonitor:
    """Return a monitored journal: a calm window, a shifted one, a day, labels."""
    state = tmp_path_factory.mktemp("state")
    sealed = Sealed(state)
    bits = np.zeros(1_000, np.uint32)
    bits[::100] = 1
    calm = decisions(1_000, degraded=bits)
    sealed.seal(calm, shifted(1_100, first=1_000))
    label = (np.arange(1_000) % 4 == 0).astype(np.int64)
    path = labels_of(
        calm, label, state / "labels.parquet", took_us=np.full(1_000, DAY_US)
    )
    read = read_labels(path, spec=spec)
    seal_labels(sealed.chain, read, spec=spec, subjects=sealed.subjects)
    found = ProductMonitor(
        sealed.folder, repository=None, options=MonitorOptions(window=1_000)
    )
    found.look(LOOKED_US)
    found.judge(LOOKED_US)
    return found


@pytest.fixture
def samples(looked: ProductMonitor, tmp_path: Path) -> Samples:
    """Parse the file for node_exporter as Prometheus does."""
    metrics = MonitorMetrics([looked])
    metrics.refresh()
    path = tmp_path / "tollgate.prom"
    metrics.write(path)
    return {
        (one.name.removeprefix(PREFIX), frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(path.read_text())
        for one in family.samples
    }


def value(samples: Samples, metric: str, /, **labels: str) -> float:
    """Return a sample of the only release."""
    whole = {"product": "fraud", "release": "fraud-1", **labels}
    return samples[metric, frozenset(whole.items())]


def test_every_metric_is_documented_and_exported(samples: Samples) -> None:
    """The table of docs/monitor.md, the code, and the file, which has no lists."""
    table = set(re.findall(rf"^\| `{PREFIX}(\w+)`", PAPER.read_text(), re.MULTILINE))
    monitored = {
        row.name.removeprefix(PREFIX)
        for row in PAGES["monitor"][1]
        if row.name.startswith(PREFIX)
    }
    assert table == monitored
    lists = {name.removeprefix(PREFIX) for name in LIST_METRICS}
    assert monitored - lists == {name for name, _ in samples}


def test_metrics_page_matches_the_documented_table(looked: ProductMonitor) -> None:
    """The same names and labels, including those of the process; without lists."""
    metrics = MonitorMetrics([looked])
    metrics.refresh()
    GCCollector(registry=metrics.registry)
    ProcessCollector(registry=metrics.registry)
    Worker("a loop", lambda: None, pause_s=None)
    metrics.registry.register(LoopCollector())
    rows = {
        row.name: set(row.labels)
        for row in PAGES["monitor"][1]
        if row.name not in LIST_METRICS
    }
    text = generate_latest(metrics.registry).decode()
    exported = {
        one.name: set(one.labels)
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    assert exported == rows


def test_inactive_release_exports_no_drift(tmp_path: Path) -> None:
    """Otherwise the alarm would never end; its drifted windows stay counted."""
    sealed = Sealed(tmp_path)
    sealed.seal(shifted(1_000, first=0))
    found = ProductMonitor(
        sealed.folder, repository=REPOSITORY, options=MonitorOptions(window=1_000)
    )
    found.look(LOOKED_US)
    assert drifting(found) == {"fraud-1"}
    after = decisions(1_000, release="fraud-2", writer="b" * 16)
    later = msgspec.structs.replace(after, decided_us=after.decided_us + 2 * DAY_US)
    sealed.seal(later)
    found.look(LOOKED_US)
    assert drifting(found) == set()
    labels = {"window": "decisions", "release": "fraud-1", "product": "fraud"}
    assert ("drifted_windows", labels, 1) in list(samples_of(found))


def drifting(found: ProductMonitor) -> set[str]:
    """Return the releases with a drifted column in the metrics."""
    return {
        labels["release"]
        for name, labels, value in samples_of(found)
        if name == "drift" and value
    }


def test_metrics_equal_the_newest_windows(
    samples: Samples, looked: ProductMonitor
) -> None:
    """A calendar feature without a complete period has no figure."""
    newest = looked.streams["fraud-1"].windows[-1]
    verdicts = {one.name: one for one in newest.verdicts}
    amount = {"window": "decisions", "kind": "feature", "name": "amount"}
    assert value(samples, "drift", **amount) == 1
    assert value(samples, "psi", **amount) == verdicts["amount"].found.psi
    assert value(samples, "shift_sigmas", **amount) > 1
    score = {"window": "decisions", "kind": "score", "name": "score"}
    assert value(samples, "drift", **score) == 0
    weekend = {**amount, "name": "during_weekend"}
    with pytest.raises(KeyError):
        value(samples, "drift", **weekend)
    assert value(samples, "missing_share", **weekend) == 0
    assert value(samples, "judged_windows", window="decisions") == 2
    assert value(samples, "drifted_windows", window="decisions") == 1
    assert value(samples, "decisions", fate="degraded") == 10
    assert value(samples, "degraded_share", bit="STORE_UNAVAILABLE") == 0
    shares = [
        value(samples, "decision_share", decision=one)
        for one in ("approve", "review", "decline")
    ]
    assert sum(shares) == pytest.approx(1)
    assert value(samples, "labelled_decisions") == 1_000
    assert value(samples, "frauds") == 250


def test_unwritable_file_is_reported(looked: ProductMonitor, tmp_path: Path) -> None:
    """By its name; no partial file stays."""
    with pytest.raises(InputError, match="cannot be written"):
        MonitorMetrics([looked]).write(tmp_path / "none" / "x.prom")


def test_page_is_complete_and_loads_nothing(
    looked: ProductMonitor,
) -> None:
    """No script, no address; drift comes first, and every column is there."""
    page = monitor_page([looked])
    assert "<h1>Drift in fraud</h1>" in page
    assert not re.search(r"<script|<link|<img|https?:|url\(", page)
    assert page.count("<svg") >= 20
    for name in looked.streams["fraud-1"].windows[-1].verdicts:
        assert f"<th>{name.name}</th>" in page
    assert '<td class="drift">drift</td>' in page
    assert "judged 7 days after its purchase" in " ".join(page.split())


def test_a_page_says_no_drift_only_if_a_window_was_judged(
    tmp_path: Path,
) -> None:
    """Of 999 decisions none is, with windows of 1,000; of 1,000 one is."""
    sealed, first = Sealed(tmp_path), decisions(999)
    sealed.seal(first)
    options = MonitorOptions(window=1_000)
    found = ProductMonitor(sealed.folder, repository=None, options=options)
    now_us = int(first.decided_us[-1]) + 60_000_000  # before the day ends
    found.look(now_us)
    page = monitor_page([found])
    assert '<header class="open">' in page
    assert "<h1>No window judged yet</h1>" in page
    sealed.seal(decisions(1, first=999))
    found.look(now_us)
    page = monitor_page([found])
    assert '<header class="calm">' in page
    assert "<h1>No drift</h1>" in page


def test_names_are_escaped_in_the_page(looked: ProductMonitor) -> None:
    """A release's name is shown as text."""
    streams = looked.streams
    looked.streams = {"<b>x</b>": streams["fraud-1"]}
    try:
        page = monitor_page([looked])
    finally:
        looked.streams = streams
    assert "<b>x</b>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
