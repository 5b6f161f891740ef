"""A model is never judged on rows that it was trained on."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from converters.card.card import CARD_MARKDOWN_FILE
from converters.conversion import convert_model
from converters.folder import write_converted
from converters.parity.runner import onnx_runner
from converters.purpose import purpose_of
from converters.sample import Sample
from converters.sources.worker import model_of
from converters.training import train_xgboost
from tests.support.checkout import CHECKOUT
from tests.support.converters.training_rows import training_rows
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import load_spec
from tollgate.history import history_of
from tollgate.pipeline import later_rows

REPOSITORY = CHECKOUT / "model_repository"

DAY = pd.Timedelta(days=1)


@pytest.fixture(scope="module")
def trained():
    """Rows, labels, and a model of them that knows them by heart."""
    rows, label = training_rows()
    return rows, label, train_xgboost(rows, label, seed=0)


def card(trained, repository, folder, *, judged=None):
    """Convert the model with its training rows as the sample; its card as text."""
    rows, label, model = trained
    purpose = purpose_of(repository, "fraud")
    sample = Sample(
        rows=rows, names=purpose.names, label=tuple(label.tolist()), origin="training"
    )
    converted = convert_model(
        model_of(model),
        origin="the model",
        purpose=purpose,
        sample=sample,
        judged=judged,
    )
    write_converted(converted, folder)
    return (folder / CARD_MARKDOWN_FILE).read_text()


def test_a_card_gives_no_figure_of_training_rows(trained, repository, tmp_path):
    """The model ranks them nearly perfectly, and no new rows; the headline says so."""
    rows, label, model = trained
    assert roc_auc_score(label, model.predict_proba(rows)[:, 1]) > 0.999
    text = card(trained, repository, tmp_path / "model")
    head = text.partition("## ")[0]
    assert "AUC: **not measured**, training rows alone, which say nothing about" in head
    assert "| AUC |" not in text
    assert "Judged on" not in text
    assert "The only labelled rows are those it was trained on." in text


def test_a_card_judges_on_other_rows_than_those_trained_on(
    trained, repository, tmp_path
):
    """scikit-learn's figures of those rows; a small segment gives none."""
    names = purpose_of(repository, "fraud").names
    new, label = training_rows(seed=5)
    region = ["north" if at % 2 else "south" for at in range(len(new))]
    region[:40] = ["islands"] * 40
    judged = Sample(
        rows=new,
        names=names,
        label=tuple(label.tolist()),
        segments={"region": tuple(region)},
        origin="held out",
        described="the rows of another year",
    )
    text = card(trained, repository, tmp_path / "model", judged=judged)
    score = trained[2].predict_proba(new)[:, 1]
    auc = roc_auc_score(label, score)
    assert auc < 0.99
    head = text.partition("## ")[0]
    assert f"AUC: **{auc:.4f}**" in head
    assert f"{len(new):,} labelled rows, {label.sum()} of them positive" in head
    assert "not trained on" in head
    assert "Judged on 3,000 labelled rows: the rows of another year." in text
    precision = average_precision_score(label, score)
    assert f"| average precision | {precision:.4f} |" in text
    north = np.array(region) == "north"
    part = roc_auc_score(label[north], score[north])
    assert re.search(rf"\| `north` \| {north.sum():,} \| .*\| {part:.4f} \|", text)
    assert re.search(r"\| `islands` \| 40 \| .*\| too few \|", text)
    assert f"Its training rows: {len(trained[0]):,}" in text


def test_rows_of_unknown_origin_are_named_as_such(trained, repository, tmp_path):
    """Nobody knows whether they were trained on: the headline says what that means."""
    rows, label, model = trained
    purpose = purpose_of(repository, "fraud")
    converted = convert_model(
        model_of(model),
        origin="the model",
        purpose=purpose,
        sample=Sample(rows=rows, names=purpose.names, label=tuple(label.tolist())),
    )
    write_converted(converted, tmp_path / "model")
    text = (tmp_path / "model" / CARD_MARKDOWN_FILE).read_text()
    head = text.partition("## ")[0]
    assert "perhaps trained on, which would say nothing about new ones" in head


def test_an_auc_of_one_is_called_suspicious(trained, repository, tmp_path):
    """Held out or not: such rows give the outcome away."""
    _, _, model = trained
    new, _ = training_rows(seed=6)
    labels = (model.predict_proba(new)[:, 1] > 0.4).astype(int)
    judged = Sample(
        rows=new,
        names=purpose_of(repository, "fraud").names,
        label=tuple(labels.tolist()),
        origin="held out",
    )
    text = card(trained, repository, tmp_path / "model", judged=judged)
    assert "AUC: **1.0000**" in text
    assert "An AUC of 1.0000 is suspicious" in text


def test_later_purchases_have_segments_by_plain_pandas(simulated: pl.DataFrame):
    """Amount, whether the customer bought before, and known frauds of the terminal."""
    spec = load_spec(REPOSITORY / "fraud_features" / "1" / "features.yaml")
    history = history_of(simulated, spec=spec, source="simulated")
    features = build(spec, history).astype(np.float32)
    table = pd.DataFrame(simulated.to_dict(as_series=False))
    start = table.event_time.min().normalize()
    train = ((table.event_time >= start + 20 * DAY)
             & (table.event_time < start + 30 * DAY)).to_numpy()  # fmt: skip
    judged = (table.event_time >= start + 37 * DAY).to_numpy()
    found = later_rows(
        history, features, spec=spec, train=train, judged=judged, source="purchases"
    )
    assert not (train & judged).any()
    np.testing.assert_array_equal(found.rows, features[judged])
    assert found.label == tuple(table.label[judged])
    assert found.origin == "held out"
    assert "7 whole days after the last one that it was trained on" in found.note
    first = f"{table.event_time[judged].min():%Y-%m-%d}"
    assert found.note.startswith(f"purchases of {first} to ")
    amount = np.array(found.segments["amount"], float)
    np.testing.assert_allclose(amount, table.amount[judged])
    for entity in ("customer", "terminal"):
        before = table.groupby(f"{entity}_id").cumcount()[judged] > 0
        wanted = np.where(before, "earlier purchases", "first purchase")
        assert found.segments[entity] == tuple(wanted)
    risk = features[judged, spec.feature_names.index("terminal_risk_30d")]
    title = "known frauds of the terminal (terminal_risk_30d)"
    assert found.segments[title] == tuple(np.where(risk > 0, "some", "none"))


@pytest.mark.slow
def test_the_shipped_cards_headline_is_of_a_later_week(tmp_path: Path):
    """Trained on the week from 25 July 2018, judged on the one from 8 August."""
    from tollgate.history import read_history
    from tollgate.simulate import simulate, write

    write(simulate(), tmp_path / "history.parquet")
    spec = load_spec(REPOSITORY / "fraud_features" / "1" / "features.yaml")
    history = read_history(tmp_path / "history.parquet", spec=spec)
    near = pd.to_datetime(history.event_time_us, unit="us")
    history = history.take(
        np.flatnonzero((near >= "2018-06-10") & (near < "2018-08-15"))
    )
    table = pd.DataFrame(
        {
            "day": pd.to_datetime(history.event_time_us, unit="us").floor("D"),
            "card": history.entity_id["customer_id"],
            "fraud": history.label == 1,
        }
    )
    # A fraud of day d is known from day d + 8 on, and its card is blocked then.
    frauds = table[table.fraud & (table.day >= "2018-07-25")]
    known = frauds.groupby("card").day.min() + 8 * DAY
    later = table.day >= "2018-08-08"
    later &= ~(table.card.map(known) <= table.day)
    features = build(spec, history).astype(np.float32)[later]
    version = REPOSITORY / "fraud_model" / "1"
    score = onnx_runner((version / "model.onnx").read_bytes()).batched(
        features, size=65_536
    )[:, 1]
    fraud = table.fraud[later].to_numpy()
    auc = roc_auc_score(fraud, score)
    head = (version / CARD_MARKDOWN_FILE).read_text().partition("## ")[0]
    assert f"AUC: **{auc:.4f}**" in head
    rows = f"{len(fraud):,} labelled rows, {fraud.sum()} of them positive, not trained"
    assert rows in head
    assert 0.8 < auc < 0.95
