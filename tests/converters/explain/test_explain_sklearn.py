"""Contributions of scikit-learn models are Shapley values, enumerated one by one."""

import joblib
import numpy as np
import pandas
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_limits

from converters.explain.explain_trees import MOST_NODES, stored_trees
from converters.explain.explanation import explain
from converters.sources.opening import open_source
from converters.sources.sklearn import SklearnModel
from converters.trees.tree_ensemble import AT_MOST, Tree, comparisons
from tests.support.converters.shapley_values import COLUMNS, model_worth, shapley
from tollgate.errors import ConversionError
from tollgate.explanation import Explainer


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


def compare(model, rows, *, inner=None, inner_rows=None):
    """Compare with the enumeration on the model's last step, and with its answers."""
    found = described(model)
    assert not found.reason
    explainer = Explainer(found)
    contributions = explainer.contributions(rows)
    whole = explainer.expected + contributions.sum(axis=2)
    np.testing.assert_allclose(whole, explainer.margin(rows), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        explainer.probabilities(rows), SklearnModel(model).predict(rows), atol=1e-7
    )
    given = rows if inner_rows is None else inner_rows
    for row, one in zip(given, contributions, strict=True):
        worth = model_worth(model if inner is None else inner, row)
        np.testing.assert_allclose(one, shapley(worth).T, atol=1e-10)
        np.testing.assert_allclose(
            explainer.expected - found.base, worth(()), atol=1e-10
        )
    return found


TREES = [
    DecisionTreeClassifier(max_depth=5, random_state=0),
    RandomForestClassifier(3, max_depth=4, random_state=0),
    ExtraTreesClassifier(3, max_depth=4, random_state=0),
    HistGradientBoostingClassifier(max_iter=3, max_depth=4, random_state=0),
]


def gradient(**options):
    """Return three boosted trees, not trained."""
    return GradientBoostingClassifier(
        n_estimators=3, max_depth=3, random_state=0, **options
    )


def kind(value):
    """Name a test by its model."""
    return type(value).__name__


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("model", TREES, ids=kind)
def test_trees_are_what_the_enumeration_gives(data, model, classes):
    """Two and three classes; rows with missing values among them."""
    features, label = gapped(data[0]), np.minimum(data[1], classes - 1)
    found = compare(model.fit(features, label), features[:6])
    assert found.outputs == (1 if found.link == "logistic" else classes)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("init", [None, "zero"])
def test_gradient_boosting_is_what_the_enumeration_gives(data, classes, init):
    """From the classes' shares on, and from zero."""
    features, label = data[0], np.minimum(data[1], classes - 1)
    model = gradient(init=init).fit(features, label)
    compare(model, features[:6])


def test_exponential_loss_explains_the_margin_of_its_probability(data):
    """Its probabilities are those of twice the sum."""
    features, label = data[0], np.minimum(data[1], 1)
    model = gradient(loss="exponential").fit(features, label)
    explainer = Explainer(described(model))
    row = features[0]
    twice = 2 * shapley(model_worth(model, row)).T
    np.testing.assert_allclose(explainer.contributions(row[None])[0], twice, atol=1e-10)
    np.testing.assert_allclose(
        explainer.probabilities(features), model.predict_proba(features), atol=1e-12
    )


def test_weights_of_rows_are_covers(data):
    """A tree trained with weights expects what the weights say."""
    features, label = data[0], np.minimum(data[1], 1)
    weight = np.where(label, 5.0, 1.0)
    model = DecisionTreeClassifier(max_depth=4, random_state=0)
    found = compare(model.fit(features, label, sample_weight=weight), features[:4])
    assert found.trees.cover[0] == weight.sum()


def test_rows_on_every_threshold_go_where_they_go_in_the_source(data):
    """Just below, on and just above, in float32."""
    features, label = data[0], np.minimum(data[1], 1)
    for model in TREES:
        source = SklearnModel(model.fit(features, label))
        rows = source.probes(features[:20]).rows
        answer = source.predict(rows)
        found = Explainer(described(model)).probabilities(rows)
        there = ~np.isnan(answer).any(axis=1)
        np.testing.assert_allclose(found[there], answer[there], atol=1e-12)


@pytest.mark.parametrize("model", [TREES[1], gradient(), TREES[3]], ids=kind)
def test_trees_behind_scalers_are_explained_in_the_features(data, model):
    """What fills and scales each column by itself leaves a split a split."""
    features, label = gapped(data[0]), np.minimum(data[1], 1)
    steps = [
        SimpleImputer(strategy="median"),
        StandardScaler(),
        RobustScaler(),
        MinMaxScaler(),
        MaxAbsScaler(),
    ]
    last = type(model)(**model.get_params())
    pipeline = make_pipeline(*steps, last).fit(features, label)
    rows = features[:5]
    compare(pipeline, rows, inner=last, inner_rows=pipeline[:-1].transform(rows))


@pytest.mark.parametrize("model", [TREES[1], TREES[3]], ids=kind)
def test_a_missing_value_passes_a_scaler(data, model):
    """The tree behind it decides where it goes."""
    features, label = gapped(data[0]), np.minimum(data[1], 1)
    last = type(model)(**model.get_params())
    pipeline = make_pipeline(StandardScaler(), last).fit(features, label)
    rows = features[:5]
    compare(pipeline, rows, inner=last, inner_rows=pipeline[:-1].transform(rows))


def test_scaled_thresholds_are_met_to_the_last_float32(data):
    """The model's own jumps are the explained model's jumps."""
    features, label = data[0], np.minimum(data[1], 1)
    pipeline = make_pipeline(
        StandardScaler(), RandomForestClassifier(5, max_depth=5, random_state=0)
    ).fit(features * 1e3 + 7, label)
    source = SklearnModel(pipeline)
    rows = source.probes(features * 1e3 + 7)
    jumps = rows.rows[rows.kind == "boundary"]
    assert len(jumps) > 100
    found = Explainer(described(pipeline)).probabilities(jumps)
    np.testing.assert_allclose(found, source.predict(jumps), atol=1e-12)


def test_named_columns_in_another_order_are_explained_under_their_names(data):
    """A column transformer picks, drops and reorders."""
    features, label = gapped(data[0]), np.minimum(data[1], 1)
    names = [f"n{number}" for number in range(COLUMNS)]
    frame = pandas.DataFrame(features, columns=names)
    picked = ColumnTransformer(
        [
            ("scaled", StandardScaler(), ["n4", "n0"]),
            ("unscaled", "passthrough", ["n1"]),
        ]
    )
    last = RandomForestClassifier(4, max_depth=4, random_state=0)
    model = make_pipeline(picked, last).fit(frame, label)
    found = described(model)
    assert found.features == tuple(names)
    assert set(found.trees.feature) == {-1, 0, 1, 4}
    rows = features[:50]
    np.testing.assert_allclose(
        Explainer(found).probabilities(rows),
        model.predict_proba(frame[:50]),
        atol=1e-12,
    )
    assert not Explainer(found).contributions(rows)[:, :, 2:4].any()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (MLPClassifier((3,), max_iter=400, tol=0.1), "MLPClassifier is no sum over"),
        (
            CalibratedClassifierCV(LogisticRegression(), method="isotonic"),
            "CalibratedClassifierCV with method='isotonic' is no sum over",
        ),
        (AdaBoostClassifier(n_estimators=3), "AdaBoostClassifier is no sum over"),
        (
            make_pipeline(PCA(2), LogisticRegression()),
            "its PCA does not keep the features apart",
        ),
        (
            make_pipeline(
                OneHotEncoder(sparse_output=False, handle_unknown="ignore"),
                RandomForestClassifier(2, max_depth=2),
            ),
            "category -3.11451 is encoded in front of its trees; splits are stored by",
        ),
        (
            make_pipeline(MinMaxScaler(clip=True), LogisticRegression()),
            "its MinMaxScaler clips",
        ),
        (
            make_pipeline(SimpleImputer(add_indicator=True), LogisticRegression()),
            "its SimpleImputer marks missing values",
        ),
        (
            make_pipeline(FunctionTransformer(np.abs), LogisticRegression()),
            "its FunctionTransformer may do anything",
        ),
        (
            GradientBoostingClassifier(n_estimators=2, init=LogisticRegression()),
            "its trees start from the predictions of another model",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_where_there_is_none_the_reason_is_said(data, model, reason):
    """In one line, and nothing is raised."""
    features, label = data[0], np.minimum(data[1], 1)
    found = described(model.fit(features, label))
    assert found.trees is found.linear is None
    assert found.reason.startswith(reason)
    assert "\n" not in found.reason


def test_what_does_not_add_up_to_the_answers_is_not_kept(data):
    """A source whose trees say something else than it answers."""
    features, label = data[0], np.minimum(data[1], 1)
    model = RandomForestClassifier(3, max_depth=3, random_state=0).fit(features, label)

    class Lying(SklearnModel):
        """Answers 0.001 more than its trees add up to."""

        def predict(self, rows):
            return super().predict(rows) + np.array([-0.001, 0.001])

    names = tuple("abcde")
    found = explain(Lying(model), names=names, samples=features)
    assert found.reason == "what it adds up to is 0.001 off its probabilities"
    assert found.features == names


def test_trees_without_end_are_not_kept():
    """A forest of many millions of nodes would be no file to read in a worker."""
    nodes = MOST_NODES + 1
    left = np.full(nodes, -1)
    tree = Tree(
        left=left,
        right=np.full(nodes, -1),
        comparison=comparisons(left, AT_MOST),
        feature=np.zeros(nodes, dtype=np.int64),
        threshold=np.zeros(nodes),
        missing_left=np.zeros(nodes, dtype=bool),
        cover=np.zeros(nodes),
        value=np.zeros((nodes, 1)),
    )
    with pytest.raises(ConversionError, match="have 1,000,001 nodes"):
        stored_trees([tree])


def test_a_pickle_explains_as_the_model_in_memory(data, tmp_path):
    """Its reader is another process; a reason comes from there as well."""
    features, label = data[0], np.minimum(data[1], 1)
    forest = RandomForestClassifier(3, max_depth=4, random_state=0)
    network = MLPClassifier((3,), max_iter=400, tol=0.1)
    for model in (forest.fit(features, label), network.fit(features, label)):
        path = tmp_path / f"{kind(model)}.joblib"
        joblib.dump(model, path)
        with open_source(path, trust_pickle=True) as source:
            found = explain(source, names=source.facts.feature_names, samples=features)
        memory = described(model, features)
        assert found.reason == memory.reason
        if not found.reason:
            assert np.array_equal(
                Explainer(found).contributions(features),
                Explainer(memory).contributions(features),
            )
