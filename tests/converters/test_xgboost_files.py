"""A file says what its numbers say, whatever the installed xgboost makes of it."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import xgboost
from xgboost import XGBClassifier

from converters.parity.proof import prove
from converters.parity.runner import onnx_runner
from converters.sources.opening import open_source
from tests.support.converters.file_arithmetic import (
    xgboost_document,
    xgboost_probabilities,
)
from tollgate.errors import ConversionError

# Made by XGBoost 3.4.1, which needs Python 3.12; the predictions are its own.
MODELS = Path(__file__).parent / "models"
FOREIGN = json.loads((MODELS / "xgboost_3_4_dart_predictions.json").read_text())
ROWS = np.asarray(FOREIGN["rows"], dtype=np.float32)


def both_classes(predictions):
    """Return the probabilities of all classes, where only that of class 1 is given."""
    found = np.asarray(predictions)
    return np.hstack([1 - found, found]) if found.shape[1] == 1 else found


@pytest.mark.parametrize("name", FOREIGN["predictions"])
def test_a_dart_model_of_a_newer_xgboost_answers_with_its_weights(name):
    """3.4 writes `gbtree` with `weight_drop`, which 3.2 ignores: 0.2 and more off."""
    expected = both_classes(FOREIGN["predictions"][name])
    document = xgboost_document((MODELS / name).read_bytes())
    assert document["learner"]["gradient_booster"]["name"] == "gbtree"
    assert "weight_drop" in document["learner"]["gradient_booster"]["model"]
    np.testing.assert_allclose(
        xgboost_probabilities(document, ROWS), expected, atol=1e-6
    )
    with open_source(MODELS / name) as source:
        np.testing.assert_allclose(source.predict(ROWS), expected, atol=1e-6)
        proven = prove(source, samples=ROWS, thresholds=(0.1, 0.5, 0.9))
        explanation = source.explanation()
    proven.check()
    np.testing.assert_allclose(onnx_runner(proven.model)(ROWS), expected, atol=1e-6)
    assert explanation.trees is not None


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob"])
def test_a_dart_model_of_the_installed_xgboost_converts(tmp_path, objective):
    """Its weights are in the graph; early stops count as in a gbtree."""
    features = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    label = (features[:, 0] > 0).astype(int) + 2 * (features[:, 1] > 1) * (
        objective != "binary:logistic"
    )
    label = np.unique(label, return_inverse=True)[1]
    model = XGBClassifier(
        booster="dart", rate_drop=0.5, one_drop=1, n_estimators=8, max_depth=3,
        objective=objective, n_jobs=1,
    ).fit(features, label)  # fmt: skip
    path = tmp_path / "model.json"
    model.save_model(path)
    expected = xgboost_probabilities(xgboost_document(path.read_bytes()), features)
    with open_source(path) as source:
        proven = prove(source, samples=features, thresholds=(0.5,))
    proven.check()
    np.testing.assert_allclose(onnx_runner(proven.model)(features), expected, atol=1e-6)


@pytest.fixture(scope="module")
def document():
    """A small model of the installed xgboost, as a document."""
    features = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    model = XGBClassifier(n_estimators=3, max_depth=2, n_jobs=1)
    model.fit(features, (features[:, 0] > 0).astype(int))
    return bytes(model.get_booster().save_raw("json"))


def set_field(found, path, value):
    """Write a value to a path of a document."""
    *above, last = path.split(".")
    for name in above:
        found = found[int(name)] if name.isdigit() else found[name]
    if isinstance(found, list):
        found[int(last)] = value
    else:
        found[last] = value


TREE = "learner.gradient_booster.model.trees.0"
PLACE = "learner.gradient_booster.model.trees[0]"
REFUSED = [
    ("version", [99, 0, 0], "was written by XGBoost 99.0.0; read are files up to"),
    ("version", "3.2", "version: is '3.2'; needed are three whole numbers"),
    (
        "learner.gradient_booster.model.boost",
        2,
        ("learner.gradient_booster.model.boost: is a field that this version does not"),
    ),
    (
        f"{TREE}.leaf_scale",
        [2.0],
        (f"{PLACE}.leaf_scale: is a field that this version does not know"),
    ),
    (
        "learner.gradient_booster.model.weight_drop",
        [1.0],
        ("learner.gradient_booster.model.weight_drop: has 1 entries; needed are 3"),
    ),
    ("learner.gradient_booster.weight_drop", [1.0], "belongs to the booster 'dart'"),
    (f"{TREE}.split_conditions.0", "0.5", "split_conditions[0]: is '0.5', no number"),
    (f"{TREE}.split_indices.0", 4, "split_indices[0]: is 4; there are 4 columns"),
    (f"{TREE}.left_children.0", 2, "leads to a node by two ways"),
    (f"{TREE}.parents.1", 2**30, f"{PLACE}.parents: are not those of the children"),
    (f"{TREE}.id", 2, f"{PLACE}.id: is 2; trees stand in the order of their ids"),
    ("learner.learner_model_param.base_score", "[5E-1,2E-1]", "base_score: is"),
    ("learner.learner_model_param.num_class", "3", "num_class: is 3, the objective"),
    ("learner.attributes.best_iteration", "7", "is 7; there are 3 rounds"),
    (
        "learner.attributes.scikit_learn",
        '{"missing": -999.0}',
        "with -999 as",
    ),
    ("learner.feature_names", ["a", "b"], "feature_names: has 2 for 4 columns"),
]


@pytest.mark.parametrize(("place", "value", "words"), REFUSED)
def test_a_field_that_is_not_read_is_refused_by_its_path(
    document, tmp_path, place, value, words
):
    """Also numbers that contradict each other: nothing is guessed or ignored."""
    found = json.loads(document)
    set_field(found, place, value)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(found))
    with pytest.raises(ConversionError) as caught, open_source(path):
        pass
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_that_stands_twice_is_refused(document, tmp_path):
    """Readers differ in which of the two they take."""
    path = tmp_path / "model.json"
    twice = b'"version":[1,0,0],"version":'
    path.write_bytes(document.replace(b'"version":', twice, 1))
    with (
        pytest.raises(ConversionError, match="'version' stands twice"),
        open_source(path),
    ):
        pass


def test_a_library_that_misreads_a_file_is_not_its_source(document, monkeypatch):
    """The numbers in the file are the judge of what the library answers."""
    from converters.sources import xgboost as source

    def ignoring(found):
        part = found["learner"]["gradient_booster"]
        return json.dumps(
            found | {"learner": found["learner"] | {"gradient_booster": part["gbtree"]}}
        ).encode()

    data = (MODELS / "xgboost_3_4_dart.json").read_bytes()
    source.checked_booster(data)
    monkeypatch.setattr(source, "encode", ignoring)
    said = f"xgboost {xgboost.__version__} answers otherwise than the numbers"
    with pytest.raises(ConversionError, match=said):
        source.checked_booster(data)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"type": 8}, "enc[0].type: is 8, no type of whole numbers"),
        ({"type": 9, "values": [10, 20, 300]}, "enc[0].values[2]: is 300, out of"),
        ({"type": 15, "values": [10, 20, 20]}, "enc[0]: has a category twice"),
    ],
)
def test_numbers_as_categories_fit_their_type(tmp_path, changed, words):
    """A data frame's category column of int64 is type 15; the file is changed after."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 3, 200)
    known = pandas.CategoricalDtype([10, 20, 30])
    frame = pandas.DataFrame({"c": pandas.Categorical.from_codes(codes, dtype=known)})
    path = tmp_path / "model.json"
    model = XGBClassifier(n_estimators=2, enable_categorical=True)
    model.fit(frame, (codes == 1).astype(int)).save_model(path)
    found = json.loads(path.read_text())
    entry = found["learner"]["gradient_booster"]["model"]["cats"]["enc"][0]
    assert entry == {"type": 15, "values": [10, 20, 30]}
    with open_source(path) as source:
        assert source is not None
    entry.update(changed)
    path.write_text(json.dumps(found))
    with pytest.raises(ConversionError) as refused, open_source(path):
        pass
    assert words in str(refused.value)
