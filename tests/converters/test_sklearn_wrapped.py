"""Models inside of models, and columns chosen in every way, convert as they answer."""

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import AdaBoostClassifier, GradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from converters.parity.proof import prove
from converters.parity.runner import onnx_runner
from converters.sources.worker import model_of
from tollgate.errors import ConversionError

NAMES = ("ä b", "f 1", "d=", "e", "g")


@pytest.fixture(scope="module")
def rows():
    """Return float32 [800, 5], one column of thousands and one constant, and labels."""
    random = np.random.default_rng(0)
    features = random.normal(size=(800, 5)).astype(np.float32)
    features[:, 1] = np.abs(features[:, 1]) * 1000
    features[:, 2] = 1
    margin = features[:, 0] + features[:, 3] ** 2 + random.normal(size=800) / 2
    return features, np.digitize(margin, [1, 2])


def require_parity(model, features, *, classes=2):
    """Prove a model, and compare it with itself on its training rows."""
    proven = prove(model_of(model), samples=features[:200], thresholds=(0.35, 0.5, 0.8))
    proven.check()
    given = pd.DataFrame(features, columns=getattr(model, "feature_names_in_", None))
    given = given if hasattr(model, "feature_names_in_") else features
    found = onnx_runner(proven.model)(features)
    assert found.shape == (len(features), classes)
    np.testing.assert_allclose(found, model.predict_proba(given), atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_boosted_stumps_keep_their_own_thresholds(rows, classes):
    """Stumps by one column are alike in all but the threshold that they test."""
    features, label = rows
    label = np.minimum(label, classes - 1)
    model = AdaBoostClassifier(n_estimators=20, random_state=0).fit(features, label)
    require_parity(model, features, classes=classes)


@pytest.mark.parametrize("ensemble", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "last",
    [LogisticRegression(max_iter=3000), GradientBoostingClassifier(n_estimators=8)],
    ids=["linear", "boosting"],
)
def test_a_calibrated_pipeline_calibrates_its_margin(rows, last, *, ensemble, classes):
    """A calibration reads decision_function, behind other steps as well."""
    features, label = rows
    inner = make_pipeline(SimpleImputer(), StandardScaler(), last)
    model = CalibratedClassifierCV(inner, cv=2, ensemble=ensemble)
    model.fit(features, np.minimum(label, classes - 1))
    require_parity(model, features, classes=classes)


def test_a_calibrated_linear_model_answers_huge_numbers_alone_as_in_a_batch(rows):
    """The largest float32 in every column overflows a sum in float32."""
    features, label = rows
    linear = LogisticRegression(max_iter=3000)
    model = CalibratedClassifierCV(linear, cv=2, ensemble=False)
    proven = prove(
        model_of(model.fit(features, np.minimum(label, 1))),
        samples=None,
        thresholds=(0.5,),
    )
    assert proven.report.batch_delta < 1e-6
    proven.check()


@pytest.mark.parametrize("classes", [2, 3])
def test_discriminant_analysis_of_two_classes_is_a_sigmoid(rows, classes):
    """And of three a softmax."""
    features, label = rows
    features = features[:, [0, 1, 3, 4]]
    model = LinearDiscriminantAnalysis().fit(features, np.minimum(label, classes - 1))
    require_parity(model, features, classes=classes)


@pytest.mark.parametrize("clip", [False, True])
def test_a_scaler_by_the_largest_moves_no_row_across_a_split(rows, clip):
    """It divides, and clips where it is configured to."""
    features, label = rows
    tree = DecisionTreeClassifier(random_state=0)
    model = make_pipeline(MaxAbsScaler(clip=clip), tree).fit(
        features[:400], label[:400]
    )
    require_parity(model, features, classes=3)


COLUMNS = {
    "a name": ["g"],
    "positions from the end": [-1, -2],
    "a slice of positions": slice(-3, None),
    "a slice of names": slice("ä b", "d="),
    "a mask": [True, False, True, False, True],
    "a function": lambda frame: list(frame.columns[:2]),
}


@pytest.mark.parametrize("chosen", COLUMNS.values(), ids=COLUMNS)
def test_columns_are_found_however_they_were_chosen(rows, chosen):
    """By name, position, slice, mask or function; the rest passes through."""
    features, label = rows
    frame = pd.DataFrame(features, columns=NAMES)
    parts = [("scaled", StandardScaler(), chosen)]
    model = make_pipeline(
        ColumnTransformer(parts, remainder="passthrough"),
        DecisionTreeClassifier(max_depth=5, random_state=0),
    )
    require_parity(model.fit(frame, label), features, classes=3)


def test_columns_are_found_by_a_transformer_inside_another(rows):
    """Each counts the columns that it is given itself."""
    features, label = rows
    inner = ColumnTransformer([("z", StandardScaler(), ["g"])], remainder="passthrough")
    model = make_pipeline(
        ColumnTransformer([("a", inner, ["e", "g"])], remainder="passthrough"),
        DecisionTreeClassifier(max_depth=5, random_state=0),
    )
    frame = pd.DataFrame(features, columns=NAMES)
    require_parity(model.fit(frame, label), features, classes=3)


@pytest.mark.parametrize("ensemble", [True, False])
def test_columns_are_found_by_a_transformer_inside_a_calibration(rows, ensemble):
    """A calibration keeps the pipeline that it copied as well, which is not fitted."""
    features, label = rows
    parts = ColumnTransformer([("z", StandardScaler(), ["g"])], remainder="passthrough")
    inner = make_pipeline(parts, LogisticRegression(max_iter=3000))
    model = CalibratedClassifierCV(inner, cv=2, ensemble=ensemble)
    frame = pd.DataFrame(features, columns=NAMES)
    require_parity(model.fit(frame, np.minimum(label, 1)), features)


def test_a_pipeline_that_begins_with_nothing_is_refused_for_that(rows):
    """It is trained: only how many features there are, nobody knows."""
    model = Pipeline([("nothing", "passthrough"), ("last", DecisionTreeClassifier())])
    with pytest.raises(ConversionError, match="first step is 'passthrough'"):
        model_of(model.fit(*rows))
