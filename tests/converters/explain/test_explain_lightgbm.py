"""Contributions of LightGBM classifiers are those that lightgbm itself computes."""

import re

import lightgbm
import numpy as np
import pytest

from converters.explain.explain_trees import explain_lightgbm
from converters.explain.explanation import explain
from converters.onnx.from_lightgbm import served_text
from converters.parity.probe_rows import split_rows
from converters.sources.lightgbm import LightGbmModel
from converters.sources.opening import open_source
from tollgate.errors import ConversionError
from tollgate.explanation import Explainer

QUIET = {"verbose": -1, "num_threads": 1, "deterministic": True}


def described(model):
    """Return what explains a model, after its own check."""
    source = LightGbmModel(model)
    found = explain(source, names=source.facts.feature_names, samples=None)
    assert not found.reason
    return found


def compare(booster, rows, *, factor=1.0):
    """Compare contributions and expected margin with lightgbm's own."""
    explanation = described(booster)
    explainer = Explainer(explanation)
    own = np.asarray(booster.predict(rows, pred_contrib=True, num_threads=1)) * factor
    own = own.reshape(len(rows), explanation.outputs, rows.shape[1] + 1)
    found = explainer.contributions(rows)
    np.testing.assert_allclose(found, own[:, :, :-1], rtol=1e-9, atol=1e-9)
    expected = np.broadcast_to(explainer.expected, own[:, :, -1].shape)
    np.testing.assert_allclose(expected, own[:, :, -1], rtol=1e-9, atol=1e-9)
    whole = explainer.expected + found.sum(axis=2)
    np.testing.assert_allclose(whole, explainer.margin(rows), rtol=1e-9, atol=1e-12)
    return explanation


def trained(rows, *, classes=2, gaps=0.1, **options):
    """Train a small model on rows with gaps."""
    features, label = rows[0].copy(), rows[1].astype(int)
    features[np.random.default_rng(1).random(features.shape) < gaps] = np.nan
    if classes == 3:
        label = label + (np.nan_to_num(features[:, 5]) > 0)
        options = {"objective": "multiclass", "num_class": 3} | options
    settings = {"objective": "binary", "num_leaves": 20} | QUIET | options
    data = lightgbm.Dataset(features, label, params=settings)
    return lightgbm.train(settings, data, 10), features[:300]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"zero_as_missing": True},
        {"use_missing": False},
        {"boosting": "dart"},
        {"min_data_in_leaf": 1, "num_leaves": 200},
    ],
    ids=str,
)
def test_contributions_are_lightgbms_own(rows, classes, options):
    """Every way of missing, with zeros and missing values in the rows."""
    booster, given = trained(rows, classes=classes, **options)
    given = given.copy()
    given[:50, 2:6] = [0, -0.0, 1e-36, np.nan]
    explanation = compare(booster, given)
    assert explanation.link == ("logistic" if classes == 2 else "softmax")


def test_rows_on_the_boundary_of_every_split_are_lightgbms_own(rows):
    """Its thresholds are float64; each float32 row goes where it goes there."""
    booster, given = trained(rows)
    compare(booster, split_rows(given, LightGbmModel(booster)._trees))


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({"sigmoid": 2.5}, 2.5),
        ({"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}, 0.1),
    ],
    ids=["sigmoid", "average"],
)
def test_contributions_are_to_the_margin_of_the_probability(rows, options, factor):
    """lightgbm's own leave out the sigmoid's factor, and the mean of 10 trees."""
    booster, given = trained(rows, **options)
    compare(booster, given, factor=factor)


def test_categories_are_lightgbms_own(rows):
    """Seen and unseen codes, with a fraction, negative, and none."""
    features, label = rows[0].copy(), rows[1].astype(int)
    features[:, 3] = np.random.default_rng(0).integers(0, 40, len(features))
    label = label ^ (features[:, 3] % 3 == 0)
    settings = {"objective": "binary", "num_leaves": 12} | QUIET
    data = lightgbm.Dataset(features, label, categorical_feature=[3], params=settings)
    booster = lightgbm.train(settings, data, 8)
    given = features[:60].copy()
    given[20:, 3] = np.resize([np.nan, 40, 63, 64, 1.5, -0.5, -1, 1e6], 40)
    explanation = compare(booster, given)
    assert explanation.trees.by_code.any()


def test_an_early_stop_counts_as_in_predict(rows):
    """The best iteration's trees, and what is expected of them."""
    features, label = rows
    settings = {"objective": "binary", "learning_rate": 0.3} | QUIET
    data = lightgbm.Dataset(features[:1000], label[:1000], params=settings)
    booster = lightgbm.train(
        settings,
        data,
        200,
        valid_sets=[data.create_valid(features[1000:], label[1000:])],
        callbacks=[lightgbm.early_stopping(3, verbose=False)],
        keep_training_booster=True,  # otherwise the others are thrown away here
    )
    assert booster.best_iteration < booster.num_trees()
    explanation = compare(booster, features[:100])
    assert len(explanation.trees.output) == booster.best_iteration


def test_a_file_explains_as_the_model_in_memory(rows, tmp_path):
    """Its reader is another process."""
    booster, given = trained(rows)
    path = tmp_path / "model.txt"
    booster.save_model(path)
    with open_source(path) as source:
        found = explain(source, names=source.facts.feature_names, samples=given)
    memory = Explainer(described(booster)).contributions(given)
    assert np.array_equal(Explainer(found).contributions(given), memory)


def test_a_text_without_covers_gives_a_reason(rows):
    """It could answer, and not say why."""
    booster, _ = trained(rows)
    text = re.sub(r"(?m)^leaf_count=.*\n", "", served_text(booster))
    with pytest.raises(ConversionError, match="has no row counts"):
        explain_lightgbm(text, facts=LightGbmModel(booster).facts)


def test_a_pruned_model_is_explained_as_it_is(rows):
    """Fewer trees and shallower ones: what is left adds up to what is left."""
    booster, given = trained(rows)
    pruned = LightGbmModel(booster).pruned(trees=5, depth=3)
    found = explain(pruned, names=pruned.facts.feature_names, samples=None)
    assert len(found.trees.output) == 5
    np.testing.assert_allclose(
        Explainer(found).probabilities(given), pruned.predict(given), atol=1e-12
    )
