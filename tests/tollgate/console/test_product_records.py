"""What the console reads from files, and when it reads it again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from tollgate.console.product_records import MOST_FAULTS, ProductRecords
from tollgate.errors import RepositoryError
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.repository.releases.trial_changes import now_text
from tollgate.supervisor.fault_log import Fault, FaultLog

MODELS = Path(__file__).parents[3] / "model_repository"
METRICS = """# HELP tollgate_monitor_psi Population stability index
tollgate_monitor_last_look_timestamp_seconds{product="fraud"} 1.7955e+09
tollgate_monitor_judged_windows{LABELS} 9.0
tollgate_monitor_drifted_windows{LABELS} 2.0
"""
LABELS = 'product="fraud",release="fraud-1",window="decisions"'
COLUMN = f'{LABELS},kind="feature",name='


@pytest.fixture
def records(tmp_path: Path) -> ProductRecords:
    """Of a copy of this checkout's repository, and an empty state folder."""
    shutil.copytree(MODELS, tmp_path / "models")
    (tmp_path / "state").mkdir()
    return ProductRecords(tmp_path / "models", tmp_path / "state")


def fault(number: int) -> Fault:
    """A fault by number."""
    return Fault("2026-11-24T12:00:00Z", f"part-{number}", "ended", 0.1, "", "fraud-1")


def test_the_newest_faults_come_first_and_are_limited(
    records: ProductRecords, tmp_path: Path
) -> None:
    """A fault that is added is seen at the next call."""
    assert records.faults() == []
    log = FaultLog(tmp_path / "state")
    for number in range(60):
        log.add(fault(number))
    found = records.faults()
    assert [one.part for one in found] == [f"part-{59 - one}" for one in range(50)]
    assert len(found) == MOST_FAULTS
    log.add(fault(60))
    assert records.faults()[0].part == "part-60"


def test_drift_is_read_from_the_monitors_metrics(
    records: ProductRecords, tmp_path: Path
) -> None:
    """Drifted columns first; a column that cannot be judged has no PSI."""
    assert records.drift("fraud") is None
    lines = [METRICS.replace("LABELS", LABELS)]
    for name, drift, psi in (("amount", 0, 0.01), ("night", 1, 0.4)):
        labels = f'{COLUMN}"{name}"'
        lines += [
            f"tollgate_monitor_missing_share{{{labels}}} 0.0\n",
            f"tollgate_monitor_drift{{{labels}}} {drift}\n",
            f"tollgate_monitor_psi{{{labels}}} {psi}\n",
        ]
    lines.append(f'tollgate_monitor_missing_share{{{COLUMN}"weekend"}} 0.5\n')
    (tmp_path / "state" / "monitor.prom").write_text("".join(lines))
    report = records.drift("fraud")
    assert report is not None
    assert report.looked_s == 1.7955e9
    assert report.windows == [("fraud-1", "decisions", 9, 2)]
    assert [(one.name, one.drifted, one.psi) for one in report.columns] == [
        ("night", True, 0.4),
        ("amount", False, 0.01),
        ("weekend", False, None),
    ]
    assert report.columns[2].missing == 0.5
    assert records.drift("credit") is None


def test_only_documents_inside_the_repository_are_served(
    records: ProductRecords, tmp_path: Path
) -> None:
    """By name, and no link that leads out."""
    card = records.document("fraud_model", 1, name="card.html")
    assert card == (MODELS / "fraud_model" / "1" / "card.html").read_bytes()
    assert records.document("fraud_model", 1, name="model.onnx") is None
    assert records.document("..", 1, name="card.html") is None
    outside = tmp_path / "outside" / "card.html"
    outside.parent.mkdir()
    outside.write_text("secret")
    os.symlink(outside.parent, tmp_path / "models" / "fraud_model" / "7")
    assert records.document("fraud_model", 7, name="card.html") is None


def test_outcomes_are_those_of_the_active_policy(
    records: ProductRecords, tmp_path: Path
) -> None:
    """And of the next one, once the release names it."""
    assert records.words("fraud") == ("approve", "review", "decline")
    models = tmp_path / "models"
    version = models / "fraud_decision" / "2"
    shutil.copytree(models / "fraud_decision" / "1", version)
    policy = (version / "policy.yaml").read_text()
    (version / "policy.yaml").write_text(f"outcomes: [normal, watch, alarm]\n{policy}")
    release = read_release(models, product="fraud")
    versions = {**release.versions, "fraud_decision": 2}
    changed = msgspec.structs.replace(release, versions=versions, time=now_text())
    write_release(models, changed)
    assert records.words("fraud") == ("normal", "watch", "alarm")
    assert records.words("nothing") == ("approve", "review", "decline")


def test_outcomes_and_history_stay_while_the_history_cannot_be_read(
    records: ProductRecords, tmp_path: Path
) -> None:
    """A file that is damaged for a moment changes neither."""
    models = tmp_path / "models"
    policy = models / "fraud_decision" / "1" / "policy.yaml"
    policy.write_text(f"outcomes: [normal, watch, alarm]\n{policy.read_text()}")
    before = records.history("fraud")
    history = models / "fraud" / "history.jsonl"
    history.write_text('{"action": 7}\n')
    assert records.words("fraud") == ("normal", "watch", "alarm")
    assert records.history("fraud") == before
    with pytest.raises(RepositoryError, match=r"history\.jsonl"):
        records.trials("fraud", now_s=0.0)


def test_a_report_that_is_written_later_is_listed(
    records: ProductRecords, tmp_path: Path
) -> None:
    """Folders are listed again after they changed, and not for each poll."""
    folder = tmp_path / "models" / "fraud_decision" / "1"
    assert not any(
        one.model == "fraud_decision" for one in records.documents("fraud")["fraud-1"]
    )
    (folder / "card.html").write_text("a card")
    assert "/console/files/fraud_decision/1/card.html" in {
        one.href for one in records.documents("fraud")["fraud-1"]
    }


def test_a_product_without_a_trial_has_none(records: ProductRecords) -> None:
    """And its history is the release in force."""
    assert records.trials("fraud", now_s=0.0) == []
    (entry,) = records.history("fraud")
    assert (entry.action, entry.release) == ("activate", "fraud-1")
    names = {one.name for one in records.documents("fraud")["fraud-1"]}
    assert {"model card", "parity report"} <= names
