"""Contributions of linear models of scikit-learn are coefficients times distances."""

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
)
from threadpoolctl import threadpool_limits

from converters.explain.explanation import explain
from converters.sources.sklearn import SklearnModel
from tollgate.explanation import Explainer

COLUMNS = 5


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Models this small only wait for their threads."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def data():
    """Return features float32 [600, 5], one of codes, and labels of three classes."""
    random = np.random.default_rng(0)
    features = random.normal(size=(600, COLUMNS)).astype(np.float32)
    features[:, 3] = random.integers(0, 4, 600)
    label = (features[:, 0] + features[:, 1] * features[:, 3] / 2 > 0).astype(int)
    return features, label + (features[:, 2] > 0.5)


def gapped(features, share=0.15):
    """Leave values out."""
    found = features.copy()
    found[np.random.default_rng(1).random(found.shape) < share] = np.nan
    return found


def described(model, samples=None):
    """Return what explains a model, after its own check."""
    source = SklearnModel(model)
    return explain(source, names=source.facts.feature_names, samples=samples)


@pytest.mark.parametrize("classes", [2, 3])
def test_linear_contributions_are_coefficients_times_values(data, classes):
    """From zero without a sample, from the sample's mean with one."""
    features, label = data[0], np.minimum(data[1], classes - 1)
    model = LogisticRegression().fit(features, label)
    rows = features[:20].astype(np.float64)
    plain = described(model)
    assert not plain.linear.from_mean
    expected = rows[:, None, :] * model.coef_
    found = Explainer(plain).contributions(features[:20])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(Explainer(plain).expected, model.intercept_, rtol=1e-12)
    centred = described(model, features)
    assert centred.linear.from_mean
    mean = features.astype(np.float64).mean(axis=0)
    found = Explainer(centred).contributions(features[:20])
    np.testing.assert_allclose(found, (rows - mean)[:, None] * model.coef_, atol=1e-12)
    margin = model.decision_function(rows).reshape(20, -1)
    whole = Explainer(centred).expected + found.sum(axis=2)
    np.testing.assert_allclose(whole, margin, atol=1e-9)


def mixed(features):
    """Fill and scale some columns, encode another."""
    return ColumnTransformer(
        [
            ("number", make_pipeline(SimpleImputer(), StandardScaler()), [2, 0]),
            ("code", OneHotEncoder(handle_unknown="ignore", drop="first"), [3]),
            ("share", make_pipeline(MinMaxScaler(), SimpleImputer()), [4]),
        ],
        sparse_threshold=0,
    ).fit(features)


@pytest.mark.filterwarnings("ignore:Found unknown categories")
def test_encoded_columns_are_summed_back_to_their_feature(data):
    """Each category's part belongs to the feature that was encoded."""
    features, label = data[0].copy(), np.minimum(data[1], 1)
    for column in (0, 2, 4):
        features[:, column] = gapped(features)[:, column]
    steps = mixed(features)
    last = LogisticRegression().fit(steps.transform(features), label)
    pipeline = make_pipeline(steps, last).fit(features, label)
    last = pipeline[-1]
    rows = features[:30].copy()
    rows[0, 3] = 99  # a category it never saw
    made = steps.transform(rows.astype(np.float64)) * last.coef_
    expected = np.zeros((30, COLUMNS))
    for at, source in enumerate([2, 0, 3, 3, 3, 4]):
        expected[:, source] += made[:, at]
    found = Explainer(described(pipeline)).contributions(rows)[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not found[:, 1].any()


def test_scaled_categories_and_chosen_columns_keep_their_feature(data):
    """A scaler behind the encoder, and a choice of columns behind both."""
    features, label = data[0], np.minimum(data[1], 1)
    steps = make_pipeline(
        ColumnTransformer(
            [("code", OneHotEncoder(handle_unknown="ignore"), [3])],
            remainder="passthrough",
            sparse_threshold=0,
        ),
        StandardScaler(),
        SelectKBest(k=5),
        FunctionTransformer(),
    )
    pipeline = make_pipeline(steps, SGDClassifier(loss="log_loss", random_state=0))
    pipeline.fit(features, label)
    chosen = pipeline[0][2].get_support(indices=True)
    sources = np.array([3, 3, 3, 3, 0, 1, 2, 4])[chosen]
    rows = features[:30]
    made = pipeline[:-1].transform(rows.astype(np.float64)) * pipeline[-1].coef_
    expected = np.zeros((30, COLUMNS))
    np.add.at(expected.T, sources, made.T)
    found = Explainer(described(pipeline)).contributions(rows)[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_mean_of_a_standardised_column_is_its_training_mean(data):
    """So contributions without a sample are measured from there already."""
    features, label = data[0], np.minimum(data[1], 1)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(features, label)
    plain = Explainer(described(model)).contributions(features)
    centred = Explainer(described(model, features)).contributions(features)
    np.testing.assert_allclose(plain, centred, atol=1e-6)


def test_discriminant_analysis_is_linear(data):
    """Its coefficients are those of a logistic model."""
    features, label = data[0], np.minimum(data[1], 1)
    model = LinearDiscriminantAnalysis().fit(features, label)
    found = Explainer(described(model))
    np.testing.assert_allclose(
        found.probabilities(features[:50]),
        model.predict_proba(features[:50]),
        atol=1e-6,
    )
