"""The baseline is a plain scikit-learn pipeline, converts, and is explained."""

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from converters.baseline import KINDS, baseline, cross_validated_auc, train_baseline
from converters.explain.explanation import explain
from converters.parity.proof import prove
from converters.sources.sklearn import SklearnModel
from tollgate.errors import InputError
from tollgate.explanation import Explainer
from tollgate.features.spec.spec_definition import Feature, FeatureSpec, Field

WORDS = ("own", "rent", "free")
NAMES = ("income", "home", "debt", "job")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Models this small only wait for their threads."""
    with threadpool_limits(1):
        yield


def number(name):
    """Return a number of the request as a feature."""
    return Feature(name, name, None, None, entity=-1, window=-1, default=0.0)


def word(name):
    """Return a category of the request as a feature."""
    return Feature(name, None, None, None, -1, -1, default=0.0, category=name)


SPEC = FeatureSpec(
    product="loans",
    entities=(),
    features=(number("income"), word("home"), number("debt"), word("job")),
    aliases={},
    lateness_us=0,
    spec_hash=1,
    state_hash=1,
    fields=(
        Field("income", "number", 0, 0, 10**9, ()),
        Field("home", "category", 0, 0, 0, WORDS),
        Field("debt", "number", 0, 0, 10**9, ()),
        Field("job", "category", 0, 0, 0, ("none", "some")),
    ),
)


@pytest.fixture(scope="module")
def rows():
    """Return features float32 [1500, 4] with gaps and unknown words, and labels."""
    random = np.random.default_rng(0)
    income = random.lognormal(10, 0.6, 1500)
    debt = random.lognormal(8, 1, 1500)
    home, job = random.integers(-2, 3, 1500), random.integers(-1, 2, 1500)
    margin = debt / income * 4 + (home == 1) - 0.5 * job - 1.5
    label = random.random(1500) < 1 / (1 + np.exp(-margin))
    features = np.stack([income, home, debt, job], axis=1).astype(np.float32)
    features[random.random(1500) < 0.1, 0] = np.nan
    return features, label


def plain(kind):
    """Write down the same pipeline as a person would, without the spec."""
    numbers = [SimpleImputer(strategy="median")]
    numbers += [StandardScaler()] if kind == "logistic" else []
    words = OneHotEncoder(
        categories=[[0, 1, 2], [0, 1]], handle_unknown="ignore", sparse_output=False
    )
    model = (
        LogisticRegression(max_iter=1000)
        if kind == "logistic"
        else HistGradientBoostingClassifier(early_stopping=False, random_state=3)
    )
    if kind == "boosting":
        model.set_params(max_iter=150, learning_rate=0.06, max_depth=4)
    columns = make_column_transformer(
        (make_pipeline(*numbers), [0, 2]), (words, [1, 3])
    )
    return make_pipeline(columns, model)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_a_plain_script_trains_and_its_auc_the_scripts(rows, kind):
    """Same probabilities, same five folds, same AUC."""
    features, label = rows
    wanted = plain(kind).fit(features, label).predict_proba(features)
    model = train_baseline(features, label, spec=SPEC, seed=3, kind=kind)
    np.testing.assert_array_equal(model.predict_proba(features), wanted)
    folds = StratifiedKFold(5, shuffle=True, random_state=3).split(features, label)
    aucs = []
    for train, test in folds:
        script = plain(kind).fit(features[train], label[train])
        answer = script.predict_proba(features[test])[:, 1]
        aucs.append(roc_auc_score(label[test], answer))
    found = cross_validated_auc(
        features, label, model=baseline(SPEC, seed=3, kind=kind), seed=3
    )
    assert found.folds == tuple(aucs)
    assert found.mean == pytest.approx(np.mean(aucs), abs=1e-15)
    assert found.spread == pytest.approx(np.std(aucs, ddof=1), abs=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_it_converts_without_a_flip_and_its_contributions_add_up(rows, kind):
    """Gaps, unknown words and what no word is, such as 0.5, among the rows."""
    features, label = rows
    model = train_baseline(features, label, spec=SPEC, seed=3, kind=kind)
    source = SklearnModel(model)
    proven = prove(source, samples=features, thresholds=(0.3, 0.6))
    assert proven.passed
    assert proven.reports[0].flips == 0
    found = explain(source, names=NAMES, samples=features, reference=proven.reference)
    explainer = Explainer(found)
    odd = features[:40].copy()
    odd[:, 1] = np.tile([0.5, -0.5, 3, 1e6, np.nan, 1, 2, 0], 5)
    for given in (features, odd):
        margin = explainer.expected + explainer.contributions(given).sum(axis=2)
        answer = model.predict_proba(given)[:, 1]
        np.testing.assert_allclose(1 / (1 + np.exp(-margin[:, 0])), answer, atol=1e-6)


def test_boosting_keeps_to_its_constraints(rows):
    """More debt never lowers the probability, more income never raises it."""
    features, label = rows
    signs = {"debt": 1, "income": -1}
    free = train_baseline(features, label, spec=SPEC, seed=3)
    bound = train_baseline(features, label, spec=SPEC, seed=3, monotone=signs)

    def worst(model, column, sign):
        steps = []
        for row in features[:20]:
            swept = np.repeat(row[None], 200, axis=0)
            swept[:, column] = np.geomspace(100, 200_000, 200)
            steps.append(np.diff(model.predict_proba(swept)[:, 1]) * sign)
        return np.min(steps)

    for name, sign in signs.items():
        column = NAMES.index(name)
        assert worst(free, column, sign) < -0.001
        assert worst(bound, column, sign) >= 0


@pytest.mark.parametrize(
    ("kind", "monotone", "words"),
    [
        ("boosting", {"age": 1}, "'age' is no feature of loans"),
        ("boosting", {"home": 1}, "'home' is a category: its words have no order"),
        ("boosting", {"debt": 2}, "'debt' is 2; must be 1 (rises) or -1 (falls)"),
        ("logistic", {"debt": 1}, "LogisticRegression takes no constraints"),
        ("forest", {}, "'forest' is none of boosting, deep-boosting, logistic"),
    ],
)
def test_what_cannot_be_honoured_is_refused(kind, monotone, words):
    """In one sentence that names it."""
    with pytest.raises(InputError, match="baseline") as caught:
        baseline(SPEC, seed=0, kind=kind, monotone=monotone)
    assert words in str(caught.value)


def test_rows_that_cannot_be_trained_on_are_refused(rows):
    """Another width, an infinite number, too few of a class for the folds."""
    features, label = rows
    with pytest.raises(InputError, match="have 3 columns; loans has 4 features"):
        train_baseline(features[:, :3], label, spec=SPEC, seed=0)
    wrong = features.copy()
    wrong[0, 2] = np.inf
    with pytest.raises(InputError, match="debt is infinite"):
        train_baseline(wrong, label, spec=SPEC, seed=0)
    few = np.arange(len(label)) < 4
    with pytest.raises(InputError, match="a class has 4 rows, too few for 5 folds"):
        cross_validated_auc(features, few, model=baseline(SPEC, seed=0), seed=0)
