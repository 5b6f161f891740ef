"""A pruned model is what its own framework says of fewer or shallower trees."""

import json

import joblib
import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from converters.compression.prune import cut_below
from converters.compression.prune_sweep import depth_of
from converters.parity.runner import onnx_runner
from converters.sources.onnx import OnnxModel
from converters.sources.opening import open_source
from converters.sources.worker import model_of
from converters.trees.tree_ensemble import LESS, Tree, comparisons
from tests.support.converters.parity import compare
from tollgate.errors import ConversionError

COLUMNS = 5
RATE = 0.17


@pytest.fixture(scope="module")
def data():
    """Rows, a label of two classes, and one of three."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(1500, COLUMNS)).astype(np.float32)
    rows[:, 4] = random.integers(0, 6, len(rows))
    margin = rows[:, 0] + rows[:, 1] * rows[:, 2] + random.normal(size=len(rows))
    label = (margin + (rows[:, 4] == 3) > 1).astype(int)
    return rows, label, label + (rows[:, 3] > 0.5)


def boosted(data, *, classes=2, **parameters):
    """Train XGBoost on one thread."""
    settings = {"n_estimators": 12, "max_depth": 4, "learning_rate": RATE, "n_jobs": 1}
    model = xgboost.XGBClassifier(**settings | parameters)
    return model.fit(data[0], data[1] if classes == 2 else data[2])


def parity(model, rows):
    """Compare a pruned source with its conversion, at every split that is left."""
    return compare(
        model.predict,
        onnx_runner(model.convert()),
        probes=model.probes(rows[:100]),
        thresholds=(0.5,),
    )


# The tree itself ---------------------------------------------------------------------


def test_a_cut_renumbers_what_stays():
    """Worked by hand: 0 splits into 1 and 2, 2 into 3 and 4, 3 into 5 and 6."""
    left = np.array([1, -1, 3, 5, -1, -1, -1])
    tree = Tree(
        left=left,
        right=np.array([2, -1, 4, 6, -1, -1, -1]),
        comparison=comparisons(left, LESS),
        feature=np.zeros(7, dtype=np.int64),
        threshold=np.zeros(7),
        missing_left=np.zeros(7, dtype=bool),
        value=np.zeros((7, 1)),
    )
    cut = cut_below(tree, depth=2)
    assert cut.nodes == [0, 1, 2, 3, 4]
    assert cut.left == [1, -1, 3, -1, -1]
    assert cut.right == [2, -1, 4, -1, -1]
    assert cut.ended == [3]
    assert cut_below(tree, depth=3).ended == []


# XGBoost -----------------------------------------------------------------------------


def test_fewer_xgboost_trees_are_its_own_iteration_range(data):
    """`--prune 7` answers as predict_proba does with the first 7 rounds."""
    model = boosted(data)
    smaller = model_of(model).pruned(trees=7, depth=None)
    wanted = model.predict_proba(data[0], iteration_range=(0, 7))
    np.testing.assert_allclose(smaller.predict(data[0]), wanted, atol=1e-7)
    assert smaller.facts.trees == 7
    assert parity(smaller, data[0]).passed


def test_three_classes_keep_whole_rounds(data):
    """20 trees of 3 classes are 6 rounds; 2 trees are none and refused."""
    model = boosted(data, classes=3)
    smaller = model_of(model).pruned(trees=20, depth=None)
    wanted = model.predict_proba(data[0], iteration_range=(0, 6))
    np.testing.assert_allclose(smaller.predict(data[0]), wanted, atol=1e-6)
    assert smaller.facts.trees == 18
    assert parity(smaller, data[0]).passed
    with pytest.raises(ConversionError, match="this model adds 3 a round"):
        model_of(model).pruned(trees=2, depth=None)


def test_trees_after_an_early_stop_are_not_brought_back(data):
    """Pruning counts from the best round; more trees than it has keeps them all."""
    rows, label, _ = data
    model = xgboost.XGBClassifier(
        n_estimators=60, learning_rate=0.9, early_stopping_rounds=2, n_jobs=1
    )
    model.fit(rows[:500], label[:500], eval_set=[(rows[500:], label[500:])], verbose=0)
    best = model.best_iteration + 1
    assert best < model.get_booster().num_boosted_rounds()
    assert model_of(model).pruned(trees=60, depth=None).facts.trees == best
    smaller = model_of(model).pruned(trees=best - 1, depth=None)
    wanted = model.predict_proba(rows, iteration_range=(0, best - 1))
    np.testing.assert_allclose(smaller.predict(rows), wanted, atol=1e-7)


def hand_margin(model, rows, *, depth):
    """Walk xgboost's JSON; a split at the depth answers rate * base weight."""
    learner = json.loads(model.get_booster().save_raw("json"))["learner"]
    score = float(learner["learner_model_param"]["base_score"].strip("[]"))
    margin = np.full(len(rows), np.log(score / (1 - score)))
    for tree in learner["gradient_booster"]["model"]["trees"]:
        for number, row in enumerate(rows):
            node = level = 0
            while tree["left_children"][node] >= 0 and level < depth:
                below = row[tree["split_indices"][node]] < np.float32(
                    tree["split_conditions"][node]
                )
                node = tree["left_children" if below else "right_children"][node]
                level += 1
            leaf = tree["left_children"][node] < 0
            margin[number] += (
                tree["split_conditions"][node]
                if leaf
                else tree["base_weights"][node] * RATE
            )
    return margin


@pytest.mark.parametrize("method", ["exact", "hist"])
@pytest.mark.parametrize("depth", [1, 3])
def test_shallower_xgboost_trees_answer_base_weights(data, method, depth):
    """Evaluated by hand with the rate trained with, which model files do not keep."""
    model = boosted(data, tree_method=method, reg_lambda=2.5)
    smaller = model_of(model).pruned(trees=None, depth=depth)
    margin = hand_margin(model, data[0][:200], depth=depth)
    wanted = 1 / (1 + np.exp(-margin))
    np.testing.assert_allclose(smaller.predict(data[0][:200])[:, 1], wanted, atol=2e-6)
    assert depth_of(smaller.convert()) == depth
    assert parity(smaller, data[0]).passed


def test_a_penalty_hides_the_rate_and_is_refused(data):
    """With reg_alpha no rate fits the base weights: no level is cut off on a guess."""
    model = model_of(boosted(data, reg_alpha=0.5))
    with pytest.raises(ConversionError, match="learning rate does not show"):
        model.pruned(trees=None, depth=2)
    assert model.pruned(trees=5, depth=None).facts.trees == 5


def test_fewer_parallel_trees_take_their_own_mean(data):
    """A forest of 10 cut to 4: base margin plus the mean of 4 unshrunk trees."""
    model = xgboost.XGBRFClassifier(n_estimators=10, max_depth=3, n_jobs=1)
    model.fit(data[0], data[1])
    whole = json.loads(model.get_booster().save_raw("json"))["learner"]
    trees = whole["gradient_booster"]["model"]["trees"][:4]
    score = float(whole["learner_model_param"]["base_score"].strip("[]"))
    leaves = model.get_booster().predict(xgboost.DMatrix(data[0]), pred_leaf=True)
    sums = sum(
        np.asarray(tree["split_conditions"])[leaves[:, at].astype(int)]
        for at, tree in enumerate(trees)
    )
    margin = np.log(score / (1 - score)) + sums * 10 / 4  # each holds a tenth
    smaller = model_of(model).pruned(trees=4, depth=None)
    wanted = 1 / (1 + np.exp(-margin))
    np.testing.assert_allclose(smaller.predict(data[0])[:, 1], wanted, atol=1e-6)
    assert parity(smaller, data[0]).passed


def test_category_splits_that_stay_keep_their_categories(data):
    """At the full depth of the splits nothing changes; cut off, parity holds."""
    import pandas

    table = pandas.DataFrame(data[0])
    table[4] = pandas.Categorical(table[4].astype(int))
    model = xgboost.XGBClassifier(
        n_estimators=8, max_depth=4, n_jobs=1, enable_categorical=True
    )
    model.set_params(max_cat_to_onehot=1).fit(table, data[1])
    assert b"categories_nodes" in model.get_booster().save_raw("json")
    whole = model_of(model)
    same = whole.pruned(trees=8, depth=4)
    np.testing.assert_array_equal(same.predict(data[0]), whole.predict(data[0]))
    for depth in (1, 2, 3):
        assert parity(whole.pruned(trees=6, depth=depth), data[0]).passed


def test_a_file_is_pruned_in_the_process_that_read_it(data, tmp_path):
    """The pruned and the whole model answer side by side from one child."""
    model = boosted(data)
    path = tmp_path / "model.json"
    model.save_model(path)
    with open_source(path) as whole:
        smaller = whole.pruned(trees=5, depth=None)
        wanted = model.predict_proba(data[0], iteration_range=(0, 5))
        np.testing.assert_allclose(smaller.predict(data[0]), wanted, atol=1e-6)
        assert (whole.facts.trees, smaller.facts.trees) == (12, 5)
        np.testing.assert_allclose(
            whole.predict(data[0]), model.predict_proba(data[0]), atol=1e-6
        )


# LightGBM ----------------------------------------------------------------------------


@pytest.mark.parametrize("boosting", ["gbdt", "rf"])
def test_fewer_lightgbm_trees_are_its_own_num_iteration(data, boosting):
    """Of three classes, in whole rounds; a forest divides by the rounds that stay."""
    model = lightgbm.LGBMClassifier(
        n_estimators=10, boosting_type=boosting, subsample=0.7, subsample_freq=1
    )
    model.set_params(verbose=-1, n_jobs=1).fit(data[0], data[2])
    smaller = model_of(model).pruned(trees=14, depth=None)
    wanted = model.predict_proba(data[0], num_iteration=4)
    np.testing.assert_allclose(smaller.predict(data[0]), wanted, atol=1e-12)
    assert smaller.facts.trees == 12
    assert parity(smaller, data[0]).passed


def test_shallower_lightgbm_trees_answer_internal_values(data):
    """Walked by hand through its own dump, categories included."""
    model = lightgbm.LGBMClassifier(n_estimators=6, verbose=-1, n_jobs=1)
    model.fit(data[0], data[1], categorical_feature=[4])
    margin = np.zeros(200)
    for tree in model.booster_.dump_model()["tree_info"]:
        for number, row in enumerate(data[0][:200].astype(float)):
            node = tree["tree_structure"]
            for _ in range(2):
                if "split_feature" not in node:
                    break
                value = row[node["split_feature"]]
                if node["decision_type"] == "==":
                    left = str(int(value)) in node["threshold"].split("||")
                else:
                    left = value <= node["threshold"]
                node = node["left_child" if left else "right_child"]
            margin[number] += node.get("internal_value", node.get("leaf_value"))
    smaller = model_of(model).pruned(trees=None, depth=2)
    wanted = 1 / (1 + np.exp(-margin))
    # The text holds six digits of an internal value.
    np.testing.assert_allclose(smaller.predict(data[0][:200])[:, 1], wanted, atol=1e-5)
    assert depth_of(smaller.convert()) == 2
    assert parity(smaller, data[0]).passed


# scikit-learn ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
@pytest.mark.parametrize("classes", [2, 3])
def test_fewer_trees_of_a_forest_take_their_own_mean(data, kind, classes):
    """Pruned to 4 it is the mean of its first 4 trees."""
    label = data[classes - 1]
    model = kind(10, max_depth=5, random_state=0).fit(data[0], label)
    smaller = model_of(model).pruned(trees=4, depth=None)
    each = [one.predict_proba(data[0]) for one in model.estimators_[:4]]
    np.testing.assert_allclose(smaller.predict(data[0]), np.mean(each, axis=0))
    assert smaller.facts.trees == 4
    assert len(model.estimators_) == 10
    assert parity(smaller, data[0]).passed


def test_a_shallower_tree_answers_the_shares_of_its_rows(data):
    """Depth 2 of a deep tree: the class shares of the rows that reach each node."""
    rows, label, _ = data
    model = DecisionTreeClassifier(max_depth=6, random_state=0).fit(rows, label)
    path = model.decision_path(rows).toarray().astype(bool)
    depth = model_of(model).pruned(trees=None, depth=2)
    found = depth.predict(rows)[:, 1]
    node = np.zeros(len(rows), dtype=int)
    for _ in range(2):
        child = [model.tree_.children_left[node], model.tree_.children_right[node]]
        went = np.where(path[np.arange(len(rows)), child[0]], *child)
        node = np.where(child[0] < 0, node, went)
    for one in np.unique(node):
        np.testing.assert_allclose(found[node == one], label[node == one].mean())
    assert parity(depth, rows).passed


def test_fewer_rounds_of_boosting_are_its_own_stages(data):
    """Both boosters of scikit-learn report their predictions after each round."""
    rows, _, label = data
    for model in (
        GradientBoostingClassifier(n_estimators=8, max_depth=3, random_state=0),
        HistGradientBoostingClassifier(max_iter=8, random_state=0),
    ):
        model.fit(rows, label)
        smaller = model_of(model).pruned(trees=16, depth=None)
        wanted = list(model.staged_predict_proba(rows))[4]
        np.testing.assert_allclose(smaller.predict(rows), wanted, atol=1e-12)
        assert smaller.facts.trees == 15
        assert parity(smaller, rows).passed


def test_shallower_histogram_trees_take_the_step_they_would_have_had(data):
    """One stump out of one deep tree equals the stump that training would have made."""
    rows, label, _ = data
    deep = HistGradientBoostingClassifier(max_iter=1, max_depth=4, random_state=0)
    stump = HistGradientBoostingClassifier(max_iter=1, max_depth=1, random_state=0)
    deep.fit(rows, label)
    stump.fit(rows, label)
    smaller = model_of(deep).pruned(trees=None, depth=1)
    np.testing.assert_allclose(smaller.predict(rows), stump.predict_proba(rows))
    assert parity(smaller, rows).passed


def test_shallower_boosted_trees_take_the_mean_of_their_leaves(data):
    """Gradient boosting keeps no step for splits: leaves below, by training rows."""
    rows, label, _ = data
    model = GradientBoostingClassifier(n_estimators=1, max_depth=3, random_state=0)
    model.fit(rows, label)
    tree = model.estimators_[0, 0].tree_
    value, side = tree.value[:, 0, 0], rows[:, tree.feature[0]] <= tree.threshold[0]
    leaf = tree.apply(rows)
    prior = np.log(label.mean() / (1 - label.mean()))
    step = np.where(side, value[leaf[side]].mean(), value[leaf[~side]].mean())
    wanted = 1 / (1 + np.exp(-(prior + model.learning_rate * step)))
    smaller = model_of(model).pruned(trees=None, depth=1)
    np.testing.assert_allclose(smaller.predict(rows)[:, 1], wanted)
    assert parity(smaller, rows).passed


def test_the_last_step_of_a_pipeline_is_pruned(data):
    """What stands in front of the trees stays."""
    rows, label, _ = data
    model = make_pipeline(StandardScaler(), RandomForestClassifier(6, max_depth=4))
    model.fit(rows, label)
    smaller = model_of(model).pruned(trees=2, depth=None)
    scaled = model[0].transform(rows)
    wanted = np.mean([one.predict_proba(scaled) for one in model[1][:2]], axis=0)
    np.testing.assert_allclose(smaller.predict(rows), wanted)
    assert parity(smaller, rows).passed


def test_what_has_no_trees_of_its_own_is_refused(data, tmp_path):
    """A linear model, a calibrated one, and a graph: one sentence each."""
    rows, label, _ = data
    linear = LogisticRegression().fit(rows, label)
    forest = CalibratedClassifierCV(RandomForestClassifier(3), cv=2).fit(rows, label)
    for model in (linear, forest):
        with pytest.raises(ConversionError, match="cannot be pruned"):
            model_of(model).pruned(trees=1, depth=None)
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(linear).convert())
    with pytest.raises(ConversionError, match="prune the model it was exported from"):
        OnnxModel(path).pruned(trees=1, depth=None)


def test_a_trained_pickle_is_pruned_like_any(data, tmp_path):
    """Through the child process that reads it."""
    path = tmp_path / "forest.joblib"
    model = RandomForestClassifier(6, max_depth=4, random_state=0).fit(*data[:2])
    joblib.dump(model, path)
    with open_source(path, trust_pickle=True) as source:
        found = source.pruned(trees=3, depth=None).predict(data[0])
    each = [one.predict_proba(data[0]) for one in model.estimators_[:3]]
    np.testing.assert_allclose(found, np.mean(each, axis=0))
