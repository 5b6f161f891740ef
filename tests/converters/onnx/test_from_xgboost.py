"""A converted classifier answers as its source, or is refused with the reason."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pandas as pd
import pytest
from xgboost import XGBClassifier, XGBRegressor, XGBRFClassifier

from converters.onnx.from_xgboost import onnx_from_xgboost, served_booster
from converters.parity.probe_rows import probes
from converters.parity.runner import onnx_runner
from converters.training import train_xgboost
from converters.trees.xgboost_trees import trees_from_xgboost
from tests.support.converters.parity import compare
from tollgate.errors import ConversionError


def training_rows(rows=2000, *, seed=0, gaps=0.0):
    """Make rows with ties, flags and labels that depend on them; float32 [N, 6]."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 6)).astype(np.float32)
    features[:, 1] = random.integers(0, 2, rows)
    features[:, 2] = random.poisson(5, rows)
    chance = 1 / (1 + np.exp(2 - features[:, 0] - features[:, 1]))
    label = (random.random(rows) < chance).astype(np.int8)
    features[random.random(features.shape) < gaps] = np.nan
    return features, label


def proof(model, samples):
    """Compare a model with its converted form on samples and every split."""
    return compare(
        model.predict_proba,
        onnx_runner(onnx_from_xgboost(model)),
        probes=probes(samples, trees_from_xgboost(served_booster(model))),
        thresholds=(0.1, 0.35, 0.5, 0.8),
    )


def fitted(*, gaps=0.0, **parameters):
    """Train a small classifier; return it with its rows."""
    features, label = training_rows(gaps=gaps)
    return XGBClassifier(n_jobs=1, n_estimators=20, **parameters).fit(
        features, label
    ), features


SETTINGS = {
    "library defaults": {},
    "exact splits": {"tree_method": "exact", "base_score": 0.5},
    "high base score": {"base_score": 0.97},
    "stumps": {"max_depth": 1},
    "deep trees": {"max_depth": 14, "min_child_weight": 0},
    "leaf-wise trees": {"grow_policy": "lossguide", "max_leaves": 40, "max_depth": 0},
    "forest per round": {"num_parallel_tree": 4, "subsample": 0.5, "random_state": 0},
    "weights and constraints": {
        "scale_pos_weight": 20,
        "monotone_constraints": (1, 0, 0, 0, -1, 0),
    },
    "single leaves": {"gamma": 1e9},
    "single leaves, all positive": {"gamma": 1e9, "base_score": 0.01},
    "tiny steps": {"learning_rate": 1e-6},
    "huge margins": {"learning_rate": 5.0, "max_delta_step": 0},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_every_kind_of_tree_agrees_with_its_source(name, gaps):
    """Whatever shapes the trees: no flip, and no more than float32 rounding."""
    model, features = fitted(gaps=gaps, **SETTINGS[name])
    report = proof(model, features)
    assert report.flips == 0
    assert report.max_delta < 1e-5
    assert report.batch_delta == 0


def test_small_probabilities_keep_their_digits():
    """P(1) near 1e-6 is right to 1e-5 of itself, not only to 1e-5."""
    random = np.random.default_rng(0)
    features = random.normal(size=(5000, 4)).astype(np.float32)
    label = features[:, 0] > 2.2
    model = XGBClassifier(n_jobs=1, n_estimators=200, base_score=0.001).fit(
        features, label
    )
    expected = model.predict_proba(features)[:, 1]
    found = onnx_runner(onnx_from_xgboost(model))(features)[:, 1]
    assert expected.min() < 2e-6
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_both_columns_are_those_of_predict_proba():
    """P(0) is 1 - P(1) in float32, as in the source."""
    model, features = fitted()
    found = onnx_runner(onnx_from_xgboost(model))(features)
    assert found.dtype == np.float32
    assert found.shape == (len(features), 2)
    np.testing.assert_allclose(found, model.predict_proba(features), atol=2e-7)


def test_trees_after_the_best_iteration_do_not_count():
    """Early stopping: the converted model has best_iteration + 1 trees."""
    features, label = training_rows()
    model = XGBClassifier(n_jobs=1, n_estimators=200, early_stopping_rounds=5)
    model.fit(features, label, eval_set=[training_rows(seed=1)], verbose=False)
    trained = model.get_booster().num_boosted_rounds()
    assert model.best_iteration + 1 < trained
    assert len(trees_from_xgboost(served_booster(model))) == model.best_iteration + 1
    assert proof(model, features).passed


def test_column_names_and_types_do_not_matter():
    """A model trained on a frame with integer columns agrees on fractions too."""
    features, label = training_rows()
    frame = pd.DataFrame(features, columns=[f"column {i} [x]" for i in range(6)])
    frame = frame.astype({"column 2 [x]": "int64"}).rename(
        columns=lambda name: name.replace("[x]", "x")
    )
    model = XGBClassifier(n_jobs=1, n_estimators=20).fit(frame, label)
    plain = XGBClassifier(n_jobs=1, n_estimators=20).fit(features, label)
    found = onnx_runner(onnx_from_xgboost(model))(features + np.float32(0.4))
    expected = plain.predict_proba(features + np.float32(0.4))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert model.get_booster().feature_names is not None


def test_a_random_forest_agrees():
    """XGBRFClassifier: many trees in one round."""
    features, label = training_rows()
    assert proof(
        XGBRFClassifier(n_jobs=1, n_estimators=10).fit(features, label), features
    ).passed


def test_a_saved_and_loaded_model_converts_to_the_same_bytes(tmp_path):
    """What is converted is the model, not the object it sits in."""
    model, _ = fitted()
    model.save_model(tmp_path / "model.json")
    loaded = XGBClassifier()
    loaded.load_model(tmp_path / "model.json")
    assert onnx_from_xgboost(loaded) == onnx_from_xgboost(model)


def test_the_same_model_gives_the_same_bytes_in_another_process(tmp_path):
    """No names by chance, no order by hash seed."""
    model, _ = fitted()
    path = tmp_path / "model.json"
    model.save_model(path)
    program = (
        "import sys; from xgboost import XGBClassifier\n"
        "from converters.onnx.from_xgboost import onnx_from_xgboost\n"
        "model = XGBClassifier(); model.load_model(sys.argv[1])\n"
        "sys.stdout.buffer.write(onnx_from_xgboost(model))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert other.stdout == onnx_from_xgboost(model)


def test_the_graph_is_what_the_model_step_expects():
    """Names, types and a free first dimension; an IR that onnxruntime 1.19.2 reads."""
    model, _ = fitted()
    converted = onnx.load_from_string(onnx_from_xgboost(model))
    (given,), (answer,) = converted.graph.input, converted.graph.output
    assert (given.name, answer.name) == ("features", "probabilities")
    for value, width in ((given, 6), (answer, 2)):
        tensor = value.type.tensor_type
        assert tensor.elem_type == onnx.TensorProto.FLOAT
        first, second = tensor.shape.dim
        assert first.dim_param == "N"
        assert second.dim_value == width
    assert converted.ir_version <= 10
    assert {one.domain: one.version for one in converted.opset_import} == {
        "": 15,
        "ai.onnx.ml": 1,
    }
    assert "ZipMap" not in {node.op_type for node in converted.graph.node}


def test_a_hundred_trees_of_depth_six_are_below_a_mebibyte():
    """A model of the size that the demo trains can be committed to the repository."""
    random = np.random.default_rng(0)
    features = random.normal(size=(5000, 15)).astype(np.float32)
    label = random.integers(0, 2, 5000)
    converted = onnx_from_xgboost(train_xgboost(features, label, seed=0))
    assert len(converted) < 1 << 20


def refused(model):
    """Return the words with which a model is refused."""
    with pytest.raises(ConversionError) as caught:
        onnx_from_xgboost(model)
    return str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            {"booster": "gblinear"},
            "booster is 'gblinear'; only 'gbtree' and 'dart' are converted",
        ),
        ({"objective": "binary:hinge"}, "objective is 'binary:hinge'; converted are"),
        ({"objective": "binary:logitraw"}, "objective is 'binary:logitraw'; conv"),
    ],
)
def test_settings_that_would_not_convert_faithfully_are_refused(parameters, words):
    """The message names the setting, its value and what would do."""
    model, _ = fitted(**parameters)
    assert refused(model).startswith(words)


@pytest.mark.parametrize("objective", ["multi:softprob", "multi:softmax"])
@pytest.mark.parametrize("forest", [1, 3])
def test_three_classes_agree_in_every_column(objective, forest):
    """Also with several trees per class and round, and after an early stop."""
    features, label = training_rows(gaps=0.2)
    classes = (label + 2 * (features[:, 2] > 5)) % 3
    model = XGBClassifier(
        n_jobs=1,
        n_estimators=12,
        objective=objective,
        num_class=3,
        num_parallel_tree=forest,
        subsample=0.7,
        early_stopping_rounds=2,
        random_state=0,
    )
    half = len(label) // 2
    model.fit(
        features[:half],
        classes[:half],
        eval_set=[(features[half:], classes[half:])],
        verbose=False,
    )
    report = proof(model, features)
    report.check()
    assert report.max_delta < 1e-6
    trees = trees_from_xgboost(served_booster(model))
    assert len(trees) == 3 * forest * (model.best_iteration + 1)


def test_one_class_and_several_labels_are_refused():
    """One class is no decision; two labels per row are another question."""
    features, label = training_rows()
    one = XGBClassifier(n_jobs=1, n_estimators=2).fit(features, np.zeros(len(label)))
    assert refused(one).startswith("1 classes and 1 outputs; ")
    both = XGBClassifier(n_jobs=1, n_estimators=2).fit(
        features, np.stack([label, label], 1)
    )
    assert refused(both).startswith("2 labels per row; ")


@pytest.mark.parametrize("missing", [-999, 0.0, -1.5])
def test_another_missing_value_than_nan_goes_its_way(missing):
    """`missing=-999` rows agree, and NaN still counts as missing."""
    features, label = training_rows(gaps=0.3)
    coded = np.nan_to_num(features, nan=missing)
    model = XGBClassifier(n_jobs=1, n_estimators=20, missing=missing)
    model.fit(coded, label)
    report = proof(model, coded)
    report.check()
    infer = onnx_runner(onnx_from_xgboost(model))
    np.testing.assert_array_equal(infer(coded), infer(features))
    np.testing.assert_allclose(infer(coded), model.predict_proba(coded), atol=1e-6)


def test_trees_alone_get_the_missing_value_from_the_caller():
    """A saved Booster does not know `missing`; the caller says it."""
    features, label = training_rows(gaps=0.3)
    coded = np.nan_to_num(features, nan=-999)
    model = XGBClassifier(n_jobs=1, n_estimators=9, missing=-999).fit(coded, label)
    alone = onnx_from_xgboost(model.get_booster(), missing=-999)
    assert alone == onnx_from_xgboost(model)
    assert alone != onnx_from_xgboost(model.get_booster())


@pytest.mark.parametrize("max_cat_to_onehot", [1, 100])
def test_category_splits_agree_on_seen_and_unseen_codes(max_cat_to_onehot):
    """Sets and single categories; codes unseen, negative, with a fraction, NaN."""
    features, _ = training_rows(gaps=0.05)
    features[:, 2] = np.random.default_rng(1).integers(0, 40, len(features))
    label = np.isin(features[:, 2] % 7, (1, 3, 4)) ^ (features[:, 0] > 0.5)
    model = XGBClassifier(
        n_jobs=1,
        n_estimators=15,
        enable_categorical=True,
        feature_types=["q", "q", "c", "q", "q", "q"],
        tree_method="hist",
        max_cat_to_onehot=max_cat_to_onehot,
    ).fit(features, label)
    report = proof(model, features)
    report.check()
    assert report.kinds["category"] > 40
    assert report.max_delta < 1e-6


def test_a_set_of_hundreds_of_categories_does_not_multiply_its_tree():
    """Merchant codes: each category is one test, what is behind them stands once."""
    features, _ = training_rows(rows=4000)
    features[:, 2] = np.random.default_rng(1).integers(0, 600, len(features))
    label = (features[:, 2] % 7 < 3) ^ (features[:, 0] > 0.5)
    model = XGBClassifier(
        n_jobs=1,
        n_estimators=4,
        enable_categorical=True,
        feature_types=["q", "q", "c", "q", "q", "q"],
        tree_method="hist",
    ).fit(features, label)
    found = trees_from_xgboost(served_booster(model))
    assert max(len(codes) for tree in found for codes in tree.codes.values()) > 150
    (trees,) = (
        node
        for node in onnx.load_from_string(onnx_from_xgboost(model)).graph.node
        if node.name == "trees"
    )
    (leaves,) = (one.ints for one in trees.attribute if one.name == "target_nodeids")
    assert len(leaves) == sum(int((tree.left < 0).sum()) for tree in found)
    proof(model, features).check()


def test_trees_that_answer_for_all_classes_at_once_are_refused():
    """A leaf of theirs holds a number per class."""
    features, label = training_rows()
    classes = (label + 2 * (features[:, 2] > 5)) % 3
    model = XGBClassifier(
        n_jobs=1, n_estimators=2, multi_strategy="multi_output_tree"
    ).fit(features, classes)
    assert refused(model).startswith("multi_strategy is 'multi_output_tree', whose")


@pytest.mark.parametrize("objective", ["reg:logistic", "binary:logistic"])
def test_a_regressor_of_probabilities_answers_them_for_class_1(objective):
    """Its `predict` is the second column, here and in its saved trees."""
    features, label = training_rows(gaps=0.1)
    regressor = XGBRegressor(n_jobs=1, n_estimators=20, objective=objective)
    regressor.fit(features, label)
    expected = regressor.predict(features)
    for model in (regressor, regressor.get_booster()):
        found = onnx_runner(onnx_from_xgboost(model))(features)
        np.testing.assert_allclose(found[:, 1], expected, atol=1e-6)
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_what_is_no_trained_classifier_is_refused():
    """A regressor of ranks and an untrained classifier are refused by name."""
    features, label = training_rows()
    regressor = XGBRegressor(n_jobs=1, n_estimators=2, objective="survival:cox")
    regressor.fit(features, label + 1.0)
    assert refused(regressor).startswith("objective is 'survival:cox'; converted")
    assert (
        refused(XGBClassifier()) == "the XGBClassifier is not trained; call fit first"
    )
    empty = XGBClassifier(n_jobs=1, n_estimators=0).fit(features, label)
    assert refused(empty) == "the model has no trees"
