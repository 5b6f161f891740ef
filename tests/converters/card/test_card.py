"""A card says what record and figures say, and what is not known."""

import msgspec
import numpy as np
import pytest

from converters.card.quality import measure_quality
from tests.support.converters.model_cards import facts, judged, record, report
from tollgate.explanation import Explanation
from tollgate.repository.models.artifact_file import Figures, Gate, Trade


def test_figures_of_the_card_are_those_of_the_record(written):
    """Each is read back out of the page and compared with where it comes from."""
    artifact = record()
    _, _, page = written(artifact)
    found = facts(page)
    assert found["SHA-256 of model.onnx"] == [artifact.sha256]
    assert found["framework"] == ["xgboost 3.2.0"]
    assert found["trees"] == ["123"]
    assert found["size of model.onnx"] == ["1,234,567 bytes"]
    assert found["rows compared"] == ["12,345", "12,346"]
    assert found["rows that the source itself refuses"] == ["7", "7"]
    farthest = found["largest difference of a probability"]
    assert [float(one) for one in farthest] == [6.25e-8, 6.25e-8]
    assert found["agrees"] == ["yes", "yes"]
    for rows, us in artifact.us_per_row.items():
        per_row, per_batch = map(float, found[str(rows)])
        assert per_row == pytest.approx(us, abs=0.005)
        assert per_batch == pytest.approx(us * rows, abs=0.005)
    training = artifact.training
    assert "200. Of class" in " ".join(page.text)
    for name in ("amount", "risk"):
        missing, *quantiles = found[name]
        known = training.features[name]
        assert float(missing.removesuffix(" %")) == 100 * known.missing
        wanted = [known.quantiles[at] for at in (0, 2, 4, 6, 8)]
        assert [float(one) for one in quantiles] == pytest.approx(wanted, rel=1e-5)
    assert found["empty"] == ["100 %", *["n/a"] * 5]


def test_figures_of_the_card_are_those_of_the_quality(written):
    """Overall, at the thresholds, per segment and per bin."""
    quality = judged(country=["DE" if row % 3 else "FR" for row in range(1000)])
    _, _, page = written(record(), quality=quality)
    found, overall = facts(page), quality.overall
    assert float(found["AUC"][0]) == pytest.approx(overall.auc, abs=5e-5)
    low, high = found["AUC, 95 % interval (DeLong)"][0].split(" to ")
    assert (float(low), float(high)) == pytest.approx(overall.interval, abs=5e-5)
    for title, value in (
        ("average precision", overall.average_precision),
        ("Brier score", overall.brier),
        ("log loss", overall.log_loss),
    ):
        assert float(found[title][0]) == pytest.approx(value, abs=5e-5)
    for one in overall.at_thresholds:
        rows, *shares = found[f"{one.name} (score {one.threshold:g} or above)"]
        assert int(rows) == one.rows
        wanted = [100 * one.precision, 100 * one.recall]
        read = [float(share.removesuffix(" %")) for share in shares]
        assert read == pytest.approx(wanted, rel=1e-3)
    for group in quality.segments[0].groups:
        rows, positives, *_, auc, _, _, _ = found[group.name]
        assert (int(rows), int(positives)) == (group.rows, group.positives)
        assert float(auc) == pytest.approx(group.auc, abs=5e-5)
    for one in quality.bins:
        rows, positives, *_ = found[f"{one.low:g} to {one.high:g}"]
        assert (int(rows), int(positives)) == (one.rows, one.positives)


def test_what_was_not_handed_in_is_said(written):
    """Without rows, labels, speed or explanation there are sentences, not figures."""
    artifact = record(training=None, us_per_row={}, spec_hash=None, targets=())
    markdown, _, _ = written(artifact)
    for words in (
        "The rows it was trained on were not handed in.",
        "No labels were handed in",
        "It was not measured.",
        "converted for no product, so it cannot be published",
        "This folder has no explain.npz",
        "Which values its features had in training is not known.",
        "How good it is, and for whom, was not measured.",
    ):
        assert words in markdown
    assert "Made smaller" not in markdown
    assert "nan" not in markdown.lower().replace("tollgate", "")


def test_rows_of_unknown_origin_are_not_called_training_rows(written):
    """Only what is known to be the training rows is called so."""
    known = record()
    markdown, _, _ = written(known)
    assert "Its training rows: 200" in markdown
    training = msgspec.structs.replace(
        known.training, origin="sample", frauds=None, note="rows of x.csv"
    )
    markdown, _, _ = written(record(training=training))
    assert "Which rows it was trained on is not known." in markdown
    assert "200 rows of x.csv." in markdown
    assert "Its training rows" not in markdown
    assert "Of class" not in markdown


def test_limits_name_small_segments_and_empty_features(written):
    """What the figures do not cover is listed by name."""
    place = ["large" if row < 990 else "small" for row in range(1000)]
    quality = judged(place=place)
    (small,) = (one for one in quality.segments[0].groups if one.name == "small")
    markdown, _, page = written(record(), quality=quality)
    assert f"`place = small`: {small.reason}." in markdown
    assert "Without any value in those rows: `empty`." in markdown
    assert "Never missing in those rows: `amount`." in markdown
    assert facts(page)["small"][-4:] == ["too few", "n/a", "n/a", "n/a"]


def test_a_trade_stands_with_its_figures(written):
    """Before, after and their ratio; the limits say that answers have changed."""
    trade = Trade(
        kind="prune",
        detail="at most 40 trees",
        rows=2000,
        flips=3,
        max_delta=0.0125,
        flagged=50,
        before=Figures(0.91, 0.71, {1: 10.0, 32: 4.0}, 1000),
        after=Figures(0.9, 0.7, {1: 5.0, 32: 1.0}, 400),
    )
    markdown, _, page = written(record(trades=(trade,), allowed=Gate(flips=0.002)))
    (table,) = (one for one in page.tables if "before" in one[0])
    assert [row[1:] for row in table[1:]] == [
        ["0.9100", "0.9000", "n/a"],
        ["0.7100", "0.7000", "n/a"],
        ["1,000", "400", "0.40"],
        ["10.00", "5.00", "0.50"],
        ["4.00", "1.00", "0.25"],
    ]
    assert "On 2,000 rows, 50 of them at or above the lowest" in markdown
    assert "3 decisions changed (0.15 % of the rows)" in markdown
    assert "moved by 0.0125 at most" in markdown
    assert "Allowed were other decisions for 0.2 % of the rows" in markdown
    assert "Its source is the model after it was made smaller." in markdown
    assert "does not answer as the model that was handed in" in markdown


def test_a_quantised_model_is_not_called_proven(written):
    """The proof is of the graph before; tile, section and limits say so."""
    figures = Figures(0.9, 0.7, {1: 5.0}, 400)
    trade = Trade(
        kind="quantize",
        detail="int8, static",
        rows=100,
        flips=0,
        max_delta=0.01,
        before=figures,
        after=figures,
    )
    markdown, html, _ = written(record(trades=(trade,)))
    assert "* Before quantising, against its source: **agrees**" in markdown
    assert "the served model is not proven" in markdown
    assert "targets are of the model before it was quantised" in markdown
    assert "Its source is the model after" not in markdown
    assert "tile good" not in html


def test_a_failed_proof_is_shown_as_one(written):
    """One runtime that differs is enough for the first tile."""
    bad = report(runtime="onnxruntime 9", flips=2, max_delta=0.25)
    _, html, page = written(record(parity=(report(), bad)))
    assert facts(page)["agrees"] == ["yes", "NO"]
    assert '<div class="tile bad">' in html
    assert "2 flips, at most 0.25 apart, in 2 runtimes" in html


def test_several_classes_have_a_card_without_thresholds(written):
    """Mean AUC and log loss; nothing about a positive class."""
    chance = np.random.default_rng(2)
    label = chance.integers(0, 3, 600)
    weight = np.exp(chance.normal(size=(600, 3)) + np.eye(3)[label])
    quality = measure_quality(
        label,
        weight / weight.sum(axis=1, keepdims=True),
        classes=("a", "b", "c"),
        segments={"part": ["x" if row % 2 else "y" for row in range(600)]},
    )
    source = msgspec.structs.replace(record().source, classes=("a", "b", "c"))
    markdown, html, page = written(record(source=source), quality=quality)
    found = facts(page)["AUC, mean of each class against the rest"]
    assert float(found[0]) == pytest.approx(quality.overall.auc, abs=5e-5)
    assert "<svg" not in html
    assert "positive" not in markdown


@pytest.mark.parametrize(
    ("reason", "words"),
    [("a network is no sum over features", "not explained: a network is no sum")],
)
def test_why_nothing_is_explained_is_said(written, reason, words):
    """The reason in explain.npz stands in the card."""
    explanation = Explanation(
        features=("amount", "risk", "empty"),
        classes=(0, 1),
        base=np.zeros(2),
        reason=reason,
    )
    markdown, _, _ = written(record(), explanation=explanation)
    assert words in markdown
    assert "No exact explanation of a single score can be given." in markdown
