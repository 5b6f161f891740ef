"""Contributions of XGBoost classifiers are those that xgboost itself computes."""

import numpy as np
import pytest
from xgboost import Booster, DMatrix, XGBClassifier

from converters.explain.explanation import explain
from converters.parity.probe_rows import split_rows
from converters.sources.opening import open_source
from converters.sources.xgboost import XGBoostModel
from converters.trees.xgboost_trees import trees_from_xgboost
from tollgate.explanation import Explainer

# xgboost sums in float32; ours are float64.
TOLERANCE = 1e-5


def described(model, **options):
    """Return what explains a model, after its own check."""
    source = XGBoostModel(model, **options)
    found = explain(source, names=source.facts.feature_names, samples=None)
    assert not found.reason
    return found


def compare(model, rows, *, iterations=(0, 0), **options):
    """Compare contributions, expected margin and their sum with xgboost's own."""
    booster = model if isinstance(model, Booster) else model.get_booster()
    missing = options.get("missing", np.nan)
    kinds = booster.feature_types
    given = DMatrix(rows, missing=missing, feature_types=kinds, enable_categorical=True)
    explanation = described(model, **options)
    explainer = Explainer(explanation)
    own = booster.predict(given, pred_contribs=True, iteration_range=iterations)
    own = own.reshape(len(rows), explanation.outputs, rows.shape[1] + 1)
    found = explainer.contributions(rows)
    np.testing.assert_allclose(found, own[:, :, :-1], atol=TOLERANCE, rtol=TOLERANCE)
    expected = np.broadcast_to(explainer.expected, own[:, :, -1].shape)
    np.testing.assert_allclose(expected, own[:, :, -1], atol=TOLERANCE)
    margin = booster.predict(given, output_margin=True, iteration_range=iterations)
    whole = explainer.expected + found.sum(axis=2)
    np.testing.assert_allclose(whole, explainer.margin(rows), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(whole, margin.reshape(whole.shape), atol=TOLERANCE)
    return explanation


def trained(rows, *, classes=2, **options):
    """Train a small classifier on rows with gaps."""
    features, label = rows
    features = features.copy()
    features[np.random.default_rng(1).random(features.shape) < 0.1] = np.nan
    if classes == 3:
        label = label + (np.nan_to_num(features[:, 5]) > 0)
    settings = {"n_estimators": 12, "max_depth": 5, "n_jobs": 1} | options
    return XGBClassifier(**settings).fit(features, label), features[:300]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"base_score": 0.05},
        {"num_parallel_tree": 3, "subsample": 0.5, "n_estimators": 4},
        {"min_child_weight": 0, "max_depth": 9, "n_estimators": 3},
    ],
    ids=["default", "base_score", "forest", "deep"],
)
def test_contributions_are_xgboosts_own(rows, classes, options):
    """Two and three classes; rows with missing values among them."""
    if classes == 3:
        options = {name: options[name] for name in options if name != "base_score"}
    model, given = trained(rows, classes=classes, **options)
    explanation = compare(model, given)
    assert explanation.link == ("logistic" if classes == 2 else "softmax")


def test_rows_on_the_boundary_of_every_split_are_xgboosts_own(rows):
    """Just below, on and just above each threshold."""
    model, given = trained(rows, n_estimators=4)
    compare(model, split_rows(given, trees_from_xgboost(model.get_booster())))


def test_trees_after_an_early_stop_do_not_count(rows):
    """Nor in what is expected."""
    features, label = rows
    model = XGBClassifier(
        n_estimators=200, learning_rate=0.8, early_stopping_rounds=3, n_jobs=1
    ).fit(features[:1000], label[:1000], eval_set=[(features[1000:], label[1000:])])
    rounds = model.best_iteration + 1
    assert rounds < model.get_booster().num_boosted_rounds()
    explanation = compare(model, features[:200], iterations=(0, rounds))
    assert len(explanation.trees.output) == rounds


@pytest.mark.parametrize("onehot", [1, 100], ids=["sets", "one by one"])
def test_categories_are_xgboosts_own(rows, onehot):
    """Seen and unseen codes, codes with a fraction, and none."""
    features, label = rows[0].copy(), rows[1]
    features[:, 3] = np.random.default_rng(0).integers(0, 12, len(features))
    label = label ^ np.isin(features[:, 3], [2, 5, 7])
    kinds = ["c" if column == 3 else "q" for column in range(15)]
    model = XGBClassifier(
        n_estimators=8,
        max_depth=4,
        n_jobs=1,
        feature_types=kinds,
        enable_categorical=True,
        max_cat_to_onehot=onehot,
    ).fit(features, label)
    given = features[:40].copy()
    given[20:, 3] = np.resize([np.nan, 12, 63, 1.5, 11], 20)
    explanation = compare(model, given)
    assert explanation.trees.by_code.any()


def test_a_number_for_missing_is_missing(rows):
    """The trees do not store it, and NaN is missing as well."""
    features, label = rows[0].copy(), rows[1]
    features[np.random.default_rng(0).random(features.shape) < 0.2] = -999
    model = XGBClassifier(n_estimators=8, n_jobs=1, missing=-999).fit(features, label)
    explanation = compare(model, features[:300], missing=-999.0)
    assert explanation.trees.missing == -999.0
    explainer = Explainer(explanation)
    gaps = np.where(features == -999, np.float32(np.nan), features)[:50]
    assert np.array_equal(
        explainer.contributions(gaps), explainer.contributions(features[:50])
    )


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_a_file_explains_as_the_model_in_memory(rows, tmp_path, suffix):
    """Its reader is another process."""
    model, given = trained(rows)
    path = tmp_path / f"model.{suffix}"
    model.save_model(path)
    memory = Explainer(described(model)).contributions(given)
    with open_source(path) as source:
        names = source.facts.feature_names
        found = explain(source, names=names, samples=given)
    assert found.features == tuple(f"f{number}" for number in range(15))
    assert np.array_equal(Explainer(found).contributions(given), memory)


def test_a_pruned_model_is_explained_as_it_is(rows):
    """Fewer trees and shallower ones: what is left adds up to what is left."""
    model, given = trained(rows)
    pruned = XGBoostModel(model).pruned(trees=5, depth=3)
    found = explain(pruned, names=pruned.facts.feature_names, samples=None)
    assert len(found.trees.output) == 5
    explainer = Explainer(found)
    np.testing.assert_allclose(
        explainer.probabilities(given), pruned.predict(given), atol=1e-6
    )
    whole = explainer.expected + explainer.contributions(given).sum(axis=2)
    np.testing.assert_allclose(whole, explainer.margin(given), rtol=1e-9, atol=1e-12)
