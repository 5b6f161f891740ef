"""Contributions of what stands behind encoders and calibrations, by enumeration."""

import math
from itertools import combinations

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder
from threadpoolctl import threadpool_limits

from converters.explain.explanation import explain
from converters.sources.sklearn import SklearnModel
from tollgate.explanation import Explainer, decode_explanation, encode_explanation

FEATURES = 3  # a number, a code of four, a code of three
SOURCE = [0, 1, 1, 1, 1, 2, 2, 2]  # feature of each column after the encoders


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Models this small only wait for their threads."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def data():
    """Return features float32 [800, 3] and labels; codes from -2 on."""
    random = np.random.default_rng(5)
    number = random.normal(size=800)
    first, second = random.integers(-2, 4, 800), random.integers(-1, 3, 800)
    label = (number + (first == 2) - 2 * (second == 1) * number > 0.3).astype(int)
    features = np.stack([number, first, second], axis=1).astype(np.float32)
    features[random.random(800) < 0.1, 0] = np.nan
    return features, label


def encoders(*, least=0, fill=None, sparse=False):
    """Return the steps in front; `least` is the last feature's first category."""
    words = OneHotEncoder(
        categories=[range(4)], handle_unknown="ignore", sparse_output=False
    )
    others = [SimpleImputer(strategy="constant", fill_value=fill)] if fill else []
    last = OneHotEncoder(
        categories=[range(least, 3)],
        handle_unknown="ignore",
        sparse_output=sparse,
    )
    return make_column_transformer(
        (make_pipeline(SimpleImputer(), MinMaxScaler()), [0]),
        (words, [1]),
        (make_pipeline(*others, last), [2]),
        sparse_threshold=sparse,
    )


def described(model, features):
    """Return what explains a model, as it is read from its file."""
    source = SklearnModel(model)
    found = explain(source, names=("number", "first", "second"), samples=features)
    return decode_explanation(encode_explanation(found), source="test")


def walked(tree, row, *, known):
    """Walk a tree of encoded columns; a column is known with its feature."""

    def walk(at):
        left, right, column, goes_left, cover, value = tree(at, row)
        if left < 0:
            return value
        if SOURCE[column] in known:
            return walk(left if goes_left else right)
        shares = [tree(one, row)[4] / cover for one in (left, right)]
        return shares[0] * walk(left) + shares[1] * walk(right)

    return walk(0)


def histogram(nodes):
    """Read a node of histogram boosting."""

    def read(at, row):
        node = nodes[at]
        column = int(node["feature_idx"])
        left = -1 if node["is_leaf"] else int(node["left"])
        goes_left = row[column] <= node["num_threshold"]
        count, value = float(node["count"]), node["value"]
        return left, int(node["right"]), column, goes_left, count, value

    return read


def binary(tree, *, value):
    """Read a node of the other trees."""

    def read(at, row):
        column = tree.feature[at]
        goes_left = row[column] <= tree.threshold[at]
        cover = tree.weighted_n_node_samples[at]
        left, right = tree.children_left[at], tree.children_right[at]
        return left, right, column, goes_left, cover, value[at]

    return read


def read_trees(model):
    """List the readers of a model's trees, for the margin of class 1."""
    if isinstance(model, HistGradientBoostingClassifier):
        return [histogram(one.nodes) for (one,) in model._predictors]
    if isinstance(model, GradientBoostingClassifier):
        rate = model.learning_rate
        trees = [one.tree_ for one in model.estimators_.ravel()]
        return [binary(one, value=rate * one.value[:, 0, 0]) for one in trees]
    count = len(model.estimators_)
    trees = [one.tree_ for one in model.estimators_]
    shares = [one.value[:, 0] / one.value[:, 0].sum(axis=1)[:, None] for one in trees]
    return [
        binary(one, value=share[:, 1] / count)
        for one, share in zip(trees, shares, strict=True)
    ]


def enumerated(model, row):
    """Return the Shapley values of the features, from all subsets; [F]."""
    trees = read_trees(model)
    worth = {
        subset: sum(walked(tree, row, known=subset) for tree in trees)
        for size in range(FEATURES + 1)
        for subset in combinations(range(FEATURES), size)
    }
    found = np.zeros(FEATURES)
    for feature in range(FEATURES):
        for subset, value in worth.items():
            if feature not in subset:
                size = len(subset)
                orders = math.factorial(size) * math.factorial(FEATURES - size - 1)
                joined = worth[tuple(sorted((*subset, feature)))]
                found[feature] += orders / math.factorial(FEATURES) * (joined - value)
    return found


MODELS = [
    HistGradientBoostingClassifier(max_iter=5, max_depth=4, random_state=0),
    GradientBoostingClassifier(n_estimators=5, max_depth=3, random_state=0),
    RandomForestClassifier(4, max_depth=5, random_state=0),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda one: type(one).__name__)
def test_trees_behind_one_hot_are_what_the_enumeration_gives(data, model):
    """A feature is known with all of its columns; gaps and unknown codes among."""
    features, label = data
    sparse = not isinstance(model, HistGradientBoostingClassifier)
    whole = make_pipeline(encoders(sparse=sparse), model).fit(features, label)
    rows = features[:12].copy()
    rows[:3, 1], rows[3:6, 2] = [0.5, 7, np.nan], [-3, 1.5, 2]
    found = described(whole, features)
    explainer = Explainer(found)
    given = whole[0].transform(rows)
    given = given.toarray() if sparse else given
    moved = explainer.of_class(rows, 1)
    for row, one in zip(given, moved, strict=True):
        np.testing.assert_allclose(one, enumerated(model, row), atol=1e-10)
    np.testing.assert_allclose(
        explainer.probabilities(rows), whole.predict_proba(rows), atol=1e-12
    )


def test_a_code_that_a_missing_value_is_filled_with_counts_as_that_code(data):
    """An imputer before the encoder: NaN goes where its value goes."""
    features, label = data
    model = HistGradientBoostingClassifier(max_iter=5, max_depth=4, random_state=0)
    whole = make_pipeline(encoders(fill=1.0), model).fit(features, label)
    missing, filled = features[:20].copy(), features[:20].copy()
    missing[:, 2], filled[:, 2] = np.nan, 1
    explainer = Explainer(described(whole, features))
    np.testing.assert_array_equal(
        explainer.contributions(missing), explainer.contributions(filled)
    )
    np.testing.assert_allclose(
        explainer.probabilities(missing), whole.predict_proba(missing), atol=1e-12
    )


def test_a_category_that_is_no_code_is_refused_by_its_value(data):
    """Only whole numbers from 0 are stored as codes."""
    features, label = data
    model = HistGradientBoostingClassifier(max_iter=2)
    whole = make_pipeline(encoders(least=-1), model).fit(features, label)
    assert described(whole, features).reason == (
        "category -1 is encoded in front of its trees; splits are stored by codes, "
        "whole numbers from 0"
    )


@pytest.mark.parametrize(
    "model",
    [
        HistGradientBoostingClassifier(max_iter=5, max_depth=4, random_state=0),
        LogisticRegression(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_sigmoid_scales_the_contributions_of_what_it_is_of(data, model):
    """P = 1 / (1 + exp(a m + b)): each part of m times -a, and the start minus b."""
    features, label = data
    whole = make_pipeline(
        encoders(), CalibratedClassifierCV(model, ensemble=False, cv=3)
    ).fit(features, label)
    (part,) = whole[-1].calibrated_classifiers_
    inner = Explainer(described(make_pipeline(whole[0], part.estimator), features))
    found = Explainer(described(whole, features))
    (sigmoid,) = part.calibrators
    rows = features[:50]
    np.testing.assert_allclose(
        found.contributions(rows), -sigmoid.a_ * inner.contributions(rows), atol=1e-12
    )
    np.testing.assert_allclose(
        found.expected, -sigmoid.a_ * inner.expected - sigmoid.b_, atol=1e-12
    )
    np.testing.assert_allclose(
        found.probabilities(rows), whole.predict_proba(rows), atol=1e-7
    )


@pytest.mark.parametrize(
    ("options", "estimator", "words"),
    [
        ({"cv": 3}, LogisticRegression(), "is the mean of 3 models and no sum of"),
        (
            {"ensemble": False, "method": "isotonic"},
            LogisticRegression(),
            "with method='isotonic' is no sum",
        ),
        (
            {"ensemble": False},
            RandomForestClassifier(2, max_depth=2),
            "of a RandomForestClassifier, which has no margin",
        ),
    ],
)
def test_a_calibration_that_is_no_sum_says_why(data, options, estimator, words):
    """Several sigmoids, a staircase, a classifier without a margin."""
    features, label = data
    model = CalibratedClassifierCV(estimator, **options)
    whole = make_pipeline(encoders(), model).fit(features, label)
    assert words in described(whole, features).reason
