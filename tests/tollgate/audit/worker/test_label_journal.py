"""Labels next to decisions, and the accuracy of releases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from sklearn.metrics import (
    average_precision_score,
    precision_score,
    recall_score,
    roc_auc_score,
)

from tests.support.audit.random_records import DECIDED_US, made
from tollgate.audit.chain.verification import verify
from tollgate.audit.releases.labelled_decisions import accuracy_by_release
from tollgate.audit.worker.label_journal import (
    labels_for_store,
    read_labels,
    seal_labels,
    sealed_labels,
)
from tollgate.audit.worker.retention import retain
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.journal.decision_record import Records

Open = Callable[..., Any]

DAY_US = 86_400_000_000


def file_of(records: Records, label: np.ndarray, path: Path, **more: Any) -> Path:
    """Write labels of records to a file, as a user would."""
    ids = [[one.decode() for one in column] for column in records.entity_id]
    frame = pl.DataFrame(
        {
            "transaction_id": [one.decode() for one in records.transaction_id],
            "customer_id": ids[0],
            "terminal_id": ids[1],
            "event_time": records.event_time_us,
            "label": label,
            "label_time": records.event_time_us + 7 * DAY_US,
            **more,
        }
    )
    if path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)
    return path


def seal(journal: Any, path: Path, spec: FeatureSpec) -> Any:
    """Read a file of labels and seal it."""
    labels = read_labels(path, spec=spec)
    return seal_labels(journal.chain, labels, spec=spec, subjects=journal.subjects)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_accuracy_equals_that_of_scikit_learn(
    open_journal: Open, spec: FeatureSpec, tmp_path: Path, suffix: str
) -> None:
    """Per release: precision, recall, AUC, average precision of labelled decisions."""
    journal = open_journal()
    whole = [made(200), made(300, first=200, release="fraud-2")]
    journal.sealer.seal(whole)
    chance = np.random.default_rng(5)
    for records in whole:
        fraud = (chance.random(len(records)) < records.score).astype(int)
        path = file_of(records, fraud, tmp_path / f"labels{suffix}")
        assert seal(journal, path, spec).rows == len(records)
    found = accuracy_by_release(journal.chain)
    assert [one.release for one in found] == ["fraud-1", "fraud-2"]
    chance = np.random.default_rng(5)
    for one, records in zip(found, whole, strict=True):
        fraud = (chance.random(len(records)) < records.score).astype(int)
        flagged, declined = records.decision >= 1, records.decision == 2
        assert (one.decisions, one.labelled) == (len(records), len(records))
        assert one.frauds == fraud.sum()
        for mine, theirs in (
            (one.flagged, precision_score(fraud, flagged)),
            (one.caught, recall_score(fraud, flagged)),
            (one.declined, precision_score(fraud, declined)),
            (one.caught_declined, recall_score(fraud, declined)),
            (one.roc_auc, roc_auc_score(fraud, records.score)),
            (one.average_precision, average_precision_score(fraud, records.score)),
        ):
            assert mine == pytest.approx(theirs)
    assert verify(journal.folder, marks=journal.marks()).findings == []


def test_old_unlabelled_decisions_can_count_as_legitimate(
    open_journal: Open, spec: FeatureSpec, tmp_path: Path
) -> None:
    """For feeds that report only frauds; young decisions are left out."""
    journal = open_journal()
    records = made(100)
    journal.sealer.seal([records])
    frauds = msgspec.structs.replace(
        records,
        transaction_id=records.transaction_id[:10],
        entity_id=[ids[:10] for ids in records.entity_id],
        event_time_us=records.event_time_us[:10],
    )
    path = file_of(frauds, np.ones(10, int), tmp_path / "labels.csv")
    seal(journal, path, spec)
    (found,) = accuracy_by_release(journal.chain)
    assert (found.labelled, found.frauds, found.flagged) == (10, 10, 1)
    assert np.isnan(found.roc_auc)
    half_us = int(records.decided_us[50])
    (found,) = accuracy_by_release(journal.chain, legitimate_before_us=half_us)
    assert (found.labelled, found.frauds) == (50, 10)
    flagged = records.decision[:50] >= 1
    assert found.flagged == flagged[:10].sum() / flagged.sum()


def test_labels_are_sealed_once_and_the_newest_counts(
    open_journal: Open, spec: FeatureSpec, tmp_path: Path
) -> None:
    """The same file again changes nothing; a higher revision replaces."""
    journal = open_journal()
    records = made(20)
    journal.sealer.seal([records])
    path = file_of(records, np.ones(20, int), tmp_path / "labels.parquet")
    assert seal(journal, path, spec).rows == 20
    assert seal(journal, path, spec) is None
    back = file_of(
        records, np.zeros(20, int), tmp_path / "back.parquet", revision=[1] * 20
    )
    assert seal(journal, back, spec).rows == 20
    assert seal(journal, path, spec) is None
    (found,) = accuracy_by_release(journal.chain)
    assert (found.labelled, found.frauds) == (20, 0)


def test_labels_of_people_without_a_key_are_left_out(
    open_journal: Open, spec: FeatureSpec, tmp_path: Path
) -> None:
    """For erased and unknown people no label is stored and no key is created."""
    journal = open_journal()
    records = made(50)
    journal.sealer.seal([records])
    gone = records.entity_id[0][0]
    journal.subjects.erase("customer", gone, day="2026-01-01")
    path = file_of(records, np.ones(50, int), tmp_path / "labels.csv")
    assert seal(journal, path, spec).rows == 50 - records.entity_id[0].count(gone)
    assert journal.subjects.known("customer", [gone]) == {}
    retain(journal.chain, before_us=DECIDED_US + 30 * DAY_US)
    assert sealed_labels(journal.chain).is_empty()


def test_store_gets_frauds_and_their_revisions(
    spec: FeatureSpec, tmp_path: Path
) -> None:
    """The store treats a purchase without a label as legitimate."""
    path = file_of(
        made(4), np.array([0, 1, 0, 1]), tmp_path / "l.csv", revision=[0, 0, 1, 2]
    )
    found = labels_for_store(read_labels(path, spec=spec))
    assert found.label.tolist() == [1, 0, 1]
    assert found.revision.tolist() == [0, 1, 2]
    assert found.transaction_id == made(4).transaction_id[1:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": [0, 2]}, "label: row 1: 2 is neither 0 nor 1"),
        ({"label_time": [None, 1]}, "label_time: row 0: is null"),
        ({"revision": [0, -1]}, "revision: row 1: -1 is not a number 0"),
    ],
)
def test_error_names_the_wrong_row(
    spec: FeatureSpec, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """File, column, row and value; nothing is loaded."""
    label = np.array(change.get("label", [0, 0]))
    more = {name: values for name, values in change.items() if name != "label"}
    path = file_of(made(2), label, tmp_path / "labels.parquet", **more)
    with pytest.raises(InputError) as caught:
        read_labels(path, spec=spec)
    assert words in str(caught.value)


def test_error_names_the_missing_column(spec: FeatureSpec, tmp_path: Path) -> None:
    """The error also lists the columns of the file."""
    path = tmp_path / "labels.csv"
    path.write_text("transaction_id,label\na,1\n")
    with pytest.raises(InputError, match="customer_id: column missing; the file has"):
        read_labels(path, spec=spec)
