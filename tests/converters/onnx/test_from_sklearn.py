"""Converted scikit-learn models answer as their source, or are refused."""

import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier

from converters.onnx.from_sklearn import onnx_from_sklearn
from converters.parity.runner import onnx_runner
from converters.sources.sklearn import SklearnModel
from tests.support.converters.parity import compare
from tollgate.errors import ConversionError

THRESHOLDS = (0.1, 0.35, 0.5, 0.8)


def training_rows(*, gaps=0.0, classes=2):
    """Make numbers of unequal size and codes, and labels that depend on them."""
    random = np.random.default_rng(0)
    features = random.normal(size=(600, 5)).astype(np.float32)
    features[:, 3] = random.integers(0, 4, 600)
    features[:, 4] *= 100
    label = (features[:, 0] + features[:, 1] ** 2 > 1).astype(int)
    if classes == 3:
        label += features[:, 2] > 0.7
    features[random.random(features.shape) < gaps] = np.nan
    return features, label


def proof(estimator, samples):
    """Compare a model with its converted form, around its splits as well."""
    model = SklearnModel(estimator)
    return compare(
        model.predict,
        onnx_runner(model.convert()),
        probes=model.probes(samples[:200]),
        thresholds=THRESHOLDS,
    )


def forest(kind, **parameters):
    """Make a small forest that is the same each time."""
    return kind(n_estimators=8, max_depth=6, random_state=0, **parameters)


MODELS = {
    "logistic regression": LogisticRegression(max_iter=2000),
    "stochastic gradient": make_pipeline(
        StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)
    ),
    "decision tree": DecisionTreeClassifier(max_depth=6, random_state=0),
    "random forest": forest(RandomForestClassifier),
    "extra trees": forest(ExtraTreesClassifier),
    "gradient boosting": GradientBoostingClassifier(n_estimators=8, random_state=0),
    "histogram boosting": HistGradientBoostingClassifier(max_iter=8, random_state=0),
    "network": make_pipeline(
        StandardScaler(), MLPClassifier((6,), max_iter=300, random_state=0)
    ),
    "calibrated, sigmoid": CalibratedClassifierCV(
        LogisticRegression(max_iter=2000), cv=2
    ),
}


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_agrees_with_its_source(name, classes):
    """No flip, and no more than float32 rounding."""
    features, label = training_rows(classes=classes)
    report = proof(MODELS[name].fit(features, label), features)
    report.check()
    assert report.max_delta < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", ["log_loss", "modified_huber"])
def test_margins_far_below_zero_leave_a_probability(loss, dtype):
    """In float64 one class of three decides at -200; at -800 all are alike."""
    features, label = training_rows(classes=3)
    model = SGDClassifier(loss=loss, random_state=0).fit(features.astype(dtype), label)
    assert model.coef_.dtype == dtype
    model.coef_ = np.zeros_like(model.coef_)
    model.coef_[:, 0] = [-200, -400, -600]
    model.intercept_ = np.array([0.0, 0.3, -0.1], dtype)
    rows = np.zeros((6, features.shape[1]), np.float32)
    rows[:, 0] = [1, 2, 4, 5, 0.001, -0.002]
    found = onnx_runner(onnx_from_sklearn(model))(rows)
    np.testing.assert_allclose(found, model.predict_proba(rows), atol=1e-7)
    if loss == "log_loss" and dtype == np.float64:
        np.testing.assert_allclose(found[:2], [[1, 0, 0], [1, 0, 0]], atol=1e-7)
        np.testing.assert_allclose(found[3], 1 / 3, atol=1e-7)


TREES = ("decision tree", "random forest", "extra trees", "histogram boosting")


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", TREES)
def test_a_missing_value_goes_the_way_it_learnt(name, classes):
    """NaN routing, in single trees, forests and histogram boosting."""
    features, label = training_rows(gaps=0.3, classes=classes)
    model = MODELS[name].fit(features, label)
    proof(model, features).check()
    found = onnx_runner(onnx_from_sklearn(model))(features)
    np.testing.assert_allclose(found, model.predict_proba(features), atol=1e-6)


def test_a_forest_says_the_share_of_its_trees():
    """7 of 20 trees are 0.35 in float32, 20 of 20 are 1, and nothing flips."""
    features, label = training_rows()
    model = RandomForestClassifier(n_estimators=20, random_state=0).fit(features, label)
    score = model.predict_proba(features)[:, 1]
    found = onnx_runner(onnx_from_sklearn(model))(features)
    np.testing.assert_array_equal(found[:, 1], score.astype(np.float32))
    assert found.max() == 1
    proof(model, features).check()


@pytest.mark.parametrize("scaler", [StandardScaler, RobustScaler, MinMaxScaler])
def test_a_scaler_before_a_tree_moves_no_row_across_a_split(scaler):
    """Rows one float32 apart, on both sides of each split found, answer the same."""
    features, label = training_rows()
    model = make_pipeline(scaler(), HistGradientBoostingClassifier(max_iter=20))
    report = proof(model.fit(features, label), features)
    report.check()
    assert report.kinds["boundary"] > 500
    assert report.max_delta < 1e-6


def columns(**encoder):
    """Scale the numbers and encode the codes."""
    return ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["a", "b", "c", "e"]),
            ("codes", OneHotEncoder(**encoder), ["d"]),
        ]
    )


@pytest.mark.parametrize(
    "encoder",
    [{"handle_unknown": "ignore"}, {"drop": "first"}, {"drop": "if_binary"}, {}],
)
def test_a_pipeline_with_named_columns_takes_one_tensor(encoder):
    """Scaler, one-hot and logistic regression, trained on a frame with names."""
    features, label = training_rows()
    frame = pd.DataFrame(features, columns=list("abcde"))
    model = make_pipeline(columns(**encoder), LogisticRegression()).fit(frame, label)
    proof(model, features).check()
    infer = onnx_runner(onnx_from_sklearn(model))
    np.testing.assert_allclose(infer(features), model.predict_proba(frame), atol=1e-6)
    assert SklearnModel(model).facts.names == tuple("abcde")


def test_an_unknown_category_is_zero_or_no_answer_as_the_encoder_says():
    """`ignore` scores it; the default refuses it, and the graph answers NaN."""
    features, label = training_rows()
    frame = pd.DataFrame(features, columns=list("abcde"))
    odd = features[:4].copy()
    odd[:, 3] = 9, 2.5, -1, 1
    for unknown in ("ignore", "error"):
        encoder = columns(handle_unknown=unknown)
        model = make_pipeline(encoder, LogisticRegression()).fit(frame, label)
        expected = SklearnModel(model).predict(odd)
        found = onnx_runner(onnx_from_sklearn(model))(odd)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert np.isnan(found).any() == (unknown == "error")
        assert not np.isnan(found[3]).any()


def test_an_imputer_fills_gaps_in_front_of_a_linear_model():
    """NaN in, a probability out."""
    features, label = training_rows(gaps=0.2)
    model = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression())
    proof(model.fit(features, label), features).check()


def test_rows_that_the_source_refuses_are_counted_not_compared():
    """A linear model refuses NaN and infinity; those probes are `unanswered`."""
    features, label = training_rows()
    report = proof(LogisticRegression().fit(features, label), features)
    special = 11 * (1 + 4 * 5)
    assert report.unanswered + report.kinds["special"] == special
    assert report.unanswered == 3 * (1 + 4 * 5)


def test_the_graph_is_what_the_model_step_expects():
    """Two tensors, a free first dimension, no label, no ZipMap, a readable IR."""
    features, label = training_rows()
    model = LogisticRegression().fit(features, np.where(label, "bad", "good"))
    converted = onnx.load_from_string(onnx_from_sklearn(model))
    (given,), (answer,) = converted.graph.input, converted.graph.output
    assert (given.name, answer.name) == ("features", "probabilities")
    for value, width in ((given, 5), (answer, 2)):
        first, second = value.type.tensor_type.shape.dim
        assert (first.dim_param, second.dim_value) == ("N", width)
    assert converted.ir_version <= 10
    kinds = {node.op_type for node in converted.graph.node}
    assert not kinds & {"ZipMap", "ArgMax"}
    assert SklearnModel(model).facts.classes == ("bad", "good")


def refused(estimator):
    """Return the words with which a model is refused."""
    with pytest.raises(ConversionError) as caught:
        onnx_from_sklearn(estimator)
    return str(caught.value)


def test_what_would_not_convert_faithfully_is_refused():
    """No probabilities, not trained, text, category splits: each in words."""
    features, label = training_rows()
    assert refused(Ridge().fit(features, label)).startswith("a Ridge gives no prob")
    assert refused(LogisticRegression()) == (
        "the LogisticRegression is not trained; call fit first"
    )
    boosting = HistGradientBoostingClassifier(max_iter=3, categorical_features=[3])
    assert refused(boosting.fit(features, label)).startswith(
        "HistGradientBoostingClassifier: categorical_features are not converted"
    )
    frame = pd.DataFrame(features, columns=list("abcde"))
    frame["d"] = np.where(frame["d"] > 1, "web", "shop")
    text = make_pipeline(columns(), LogisticRegression()).fit(frame, label)
    assert refused(text).startswith(
        "OneHotEncoder: its column 0 has categories that are no numbers"
    )
    rare = make_pipeline(
        OneHotEncoder(min_frequency=50, drop="first"), LogisticRegression()
    )
    assert refused(rare.fit(features[:, 3:4], label)).startswith(
        "OneHotEncoder: min_frequency and max_categories are not converted together"
    )


@pytest.mark.parametrize("positives", [3, 6, 9])
@pytest.mark.parametrize(
    "model",
    [HistGradientBoostingClassifier(max_iter=3), GradientBoostingClassifier()],
    ids=lambda one: type(one).__name__,
)
def test_trees_without_a_split_answer_the_share_of_the_classes(model, positives):
    """Few rows, or rows that do not differ: one leaf of 0 a tree."""
    features = np.zeros((12, 2), dtype=np.float32)
    label = np.arange(12) < positives
    source = model.fit(features, label).predict_proba(features)
    found = onnx_runner(onnx_from_sklearn(model))(features)
    np.testing.assert_allclose(found, source, atol=1e-6)
    np.testing.assert_allclose(found[:, 1], positives / 12, atol=1e-6)
