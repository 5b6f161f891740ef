"""Training rows from the journal: as served, with labels as of a time, with consent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tests.support.audit.decided_records import decided
from tests.support.audit.random_records import DECIDED_US, SPEC_HASH, made
from tollgate.audit.releases.labelled_decisions import dataset
from tollgate.audit.worker.label_journal import pseudonymised, seal_labels
from tollgate.cli.app import app
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.journal.decision_record import Records
from tollgate.schema import Degraded
from tollgate.store.store_events import Labels

Open = Callable[..., Any]

DAY_US = 86_400_000_000
LATER_US = DECIDED_US + 400 * DAY_US


def labels_of(
    records: Records, label: np.ndarray, *, after_days: int = 7, revision: int = 0
) -> Labels:
    """Return labels of purchases, known a number of days later."""
    return Labels(
        transaction_id=records.transaction_id,
        entity_id=records.entity_id,
        event_time_us=records.event_time_us,
        label=label.astype(np.uint8),
        label_time_us=records.event_time_us + after_days * DAY_US,
        revision=np.full(len(records), revision),
    )


def seal(journal: Any, labels: Labels, spec: FeatureSpec) -> None:
    """Seal labels."""
    seal_labels(journal.chain, labels, spec=spec, subjects=journal.subjects)


def test_rows_hold_served_features_and_labels(
    open_journal: Open, spec: FeatureSpec
) -> None:
    """Features are bit-identical; every number is a feature or the label."""
    journal = open_journal()
    records = decided(50, degraded={4: int(Degraded.COLD_START)})
    label = (np.arange(50) % 3 == 0).astype(int)
    journal.sealer.seal([records])
    seal(journal, labels_of(records, label), spec)
    found = dataset(journal.chain, as_of_us=LATER_US)
    table = found.table
    features = table.select(spec.feature_names).to_numpy()
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features, records.features)
    np.testing.assert_array_equal(table["label"].to_numpy(), label)
    assert set(table["release"]) == {"fraud-1"}
    assert table["degraded"].to_list()[:6] == ["", "", "", "", "COLD_START", ""]
    numbers = [name for name, kind in table.schema.items() if kind.is_numeric()]
    assert numbers == [*spec.feature_names, "label"]
    content = str(table.rows())
    for ids in (records.transaction_id, *records.entity_id):
        assert not any(one.decode() in content for one in ids)
    assert (found.decisions, found.frauds, found.unlabelled) == (50, 17, 0)


def test_label_counts_from_its_label_time(
    open_journal: Open, spec: FeatureSpec
) -> None:
    """Later labels and later corrections are left out."""
    journal = open_journal()
    records = decided(20)
    journal.sealer.seal([records])
    seal(journal, labels_of(records, np.ones(20)), spec)
    back = labels_of(records, np.zeros(20), after_days=60, revision=1)
    seal(journal, back, spec)

    def at(days: float, **more: Any) -> Any:
        as_of_us = int(DECIDED_US + days * DAY_US)
        return dataset(journal.chain, as_of_us=as_of_us, **more)

    early = at(5)
    assert (len(early.table), early.unlabelled) == (0, 20)
    assert at(10).frauds == 20
    assert (at(100).frauds, len(at(100).table)) == (0, 20)
    with pytest.raises(InputError, match="holds no decision to learn from"):
        at(-1)
    # Ten have no label at the time: they are legitimate when they are old enough.
    found = at(5, legitimate_after_us=4 * DAY_US)
    assert (len(found.table), found.frauds) == (20, 0)
    assert found.table["label_time"].null_count() == 20
    assert len(at(5, legitimate_after_us=6 * DAY_US).table) == 0


def test_labels_of_a_file_add_to_sealed_labels(
    open_journal: Open, spec: FeatureSpec
) -> None:
    """A newer label replaces; labels of people without a key are left out."""
    journal = open_journal()
    records = decided(20)
    journal.sealer.seal([records])
    seal(journal, labels_of(records, np.ones(20)), spec)
    more = labels_of(records, np.zeros(20), after_days=8)
    gone = records.entity_id[0][0]
    journal.subjects.erase("customer", gone, day="2026-01-01")
    table = pseudonymised(more, spec=spec, subjects=journal.subjects)
    found = dataset(journal.chain, as_of_us=LATER_US, more_labels=table)
    assert found.frauds == records.entity_id[0].count(gone)


def test_rows_that_must_not_train_are_left_out(
    open_journal: Open, spec: FeatureSpec
) -> None:
    """Rows without consent, of other features or releases, or decided before."""
    journal = open_journal()
    first = decided(20)
    again = msgspec.structs.replace(
        decided(5, first=20),
        transaction_id=first.transaction_id[:5],
        entity_id=[ids[:5] for ids in first.entity_id],
    )
    old = made(4, first=25, spec_hash=SPEC_HASH ^ 1)
    old = msgspec.structs.replace(old, decided_us=old.decided_us - DAY_US)
    journal.sealer.seal([first, again, old])
    journal.sealer.seal([made(3, first=29, release="fraud-2")])
    for one in (first, old, made(3, first=29)):
        seal(journal, labels_of(one, np.ones(len(one))), spec)
    found = dataset(journal.chain, as_of_us=LATER_US)
    assert (found.decisions, len(found.table)) == (32, 23)
    assert (found.foreign, found.repeated, found.withheld) == (4, 5, 0)
    features = found.table.select(spec.feature_names).to_numpy()[:5]
    np.testing.assert_array_equal(features, first.features[:5])  # the first counted
    only = dataset(journal.chain, as_of_us=LATER_US, releases=["fraud-2"])
    assert set(only.table["release"]) == {"fraud-2"}
    assert (len(only.table), only.foreign) == (3, 29)


def test_without_consent_there_are_no_rows(open_journal: Open) -> None:
    """A declared field that nobody sent means no consent."""
    journal = open_journal(consent="channel")
    journal.sealer.seal([decided(10)])
    with pytest.raises(InputError, match="holds no decision to learn from"):
        dataset(journal.chain, as_of_us=LATER_US)


def test_rows_train_a_model_that_convert_accepts(
    open_journal: Open, spec: FeatureSpec, tmp_path: Path
) -> None:
    """`convert` proves and evaluates the model on these rows."""
    from converters.training import train_xgboost

    journal = open_journal()
    records = decided(400)
    chance = np.random.default_rng(3)
    fraud = (chance.random(400) < 0.1 + 0.8 * records.score).astype(int)
    journal.sealer.seal([records])
    seal(journal, labels_of(records, fraud), spec)
    rows = tmp_path / "rows.parquet"
    options = [
        "--folder",
        str(journal.folder),
        "--keys",
        str(tmp_path / "journal.keys"),
    ]
    done = CliRunner().invoke(
        app, ["journal", "dataset", str(rows), *options, "--as-of", "2026-11-01"]
    )
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert (
        f"400 of 400 decisions, {fraud.sum()} frauds, features c36f8242c6fa0068" in text
    )
    assert rows.stat().st_mode & 0o777 == 0o600
    table = pl.read_parquet(rows)
    features = table.select(spec.feature_names).to_numpy()
    model = train_xgboost(np.ascontiguousarray(features), table["label"], seed=0)
    source = tmp_path / "model.json"
    model.get_booster().save_model(source)
    out = tmp_path / "converted"
    sample = ["--sample", str(rows), "--label", "label", "--segment", "release"]
    done = CliRunner().invoke(
        app, ["convert", str(source), "--product", "fraud", "--out", str(out), *sample]
    )
    assert done.exit_code == 0, done.output
    assert (out / "model.onnx").exists()
    assert (out / "explain.npz").exists()
    assert "fraud-1" in (out / "card.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rows.csv"], "rows.csv: is not called .parquet"),
        (["rows.parquet", "--folder", "nowhere"], "nowhere: holds no journal"),
    ],
)
def test_command_reports_wrong_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["journal", "dataset", *arguments])
    assert done.exit_code != 0
    assert words in str(done.exception) + done.output
    assert not list(tmp_path.glob("*.parquet"))
