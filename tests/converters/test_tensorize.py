"""Trees as plain operators answer as the framework that trained them."""

import lightgbm
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier

import converters.tensorize as module
from converters.onnx.from_sklearn import onnx_from_sklearn
from converters.parity.runner import onnx_runner
from converters.sources.lightgbm import LightGbmModel
from converters.sources.sklearn import SklearnModel
from converters.sources.xgboost import XGBoostModel
from converters.tensorize import GEMM_DEPTH, forest_of, sum_parts, tensorize
from converters.trees.onnx_trees import trees_from_onnx
from tests.support.converters.parity import compare
from tollgate.errors import ConversionError

THRESHOLDS = (0.1, 0.35, 0.5, 0.8)
WAYS = ("gemm", "traversal")


def training_rows(rows=900, *, gaps=0.1, classes=2, seed=0):
    """Make money, flags, counts and codes, and labels that depend on them."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 6)).astype(np.float32)
    features[:, 0] = random.lognormal(3, 1, rows).round(2)
    features[:, 1] = random.integers(0, 12, rows)
    features[:, 2] = features[:, 2].round(1)
    mark = features[:, 0] / 20 + np.isin(features[:, 1], (1, 4, 7)) + features[:, 3]
    label = np.digitize(mark, np.quantile(mark, np.arange(1, classes) / classes))
    features[random.random(features.shape) < gaps] = np.nan
    return features, label


def xgboost(*, classes=2, missing=np.nan, **settings):
    """Train a small XGBoost model; the rows it was trained on."""
    features, label = training_rows(classes=classes)
    features = np.nan_to_num(features, nan=missing)
    model = XGBClassifier(
        n_estimators=12, max_depth=5, n_jobs=1, missing=missing, **settings
    )
    return XGBoostModel(model.fit(features, label)), features


def sklearn(estimator, *, classes=2, gaps=0.1):
    """Train a small scikit-learn model; the rows it was trained on."""
    features, label = training_rows(classes=classes, gaps=gaps)
    return SklearnModel(estimator.fit(features, label)), features


def lightgbm_(*, classes=2, categories=(), **settings):
    """Train a small LightGBM model; the rows it was trained on."""
    features, label = training_rows(classes=classes)
    chosen = {"objective": "binary", "num_leaves": 12, "num_threads": 1, "seed": 0}
    data = lightgbm.Dataset(
        features, label, categorical_feature=list(categories), free_raw_data=False
    )
    quiet = {"verbosity": -1, "deterministic": True, "min_data_per_group": 5}
    return LightGbmModel(lightgbm.train({**chosen, **quiet, **settings}, data, 10)), (
        features
    )


MODELS = {
    "xgboost": xgboost,
    "xgboost, three classes": lambda: xgboost(classes=3),
    "xgboost, -999 is missing": lambda: xgboost(missing=-999.0),
    "xgboost, several trees a round": lambda: xgboost(num_parallel_tree=3),
    "forest": lambda: sklearn(RandomForestClassifier(10, max_depth=5, random_state=0)),
    "forest, three classes": lambda: sklearn(
        RandomForestClassifier(10, max_depth=5, random_state=0), classes=3
    ),
    "gradient boosting": lambda: sklearn(
        GradientBoostingClassifier(n_estimators=8, random_state=0), gaps=0
    ),
    "histograms behind a scaler": lambda: sklearn(
        make_pipeline(
            StandardScaler(), HistGradientBoostingClassifier(max_iter=6, random_state=0)
        )
    ),
    "lightgbm": lightgbm_,
    "lightgbm, three classes": lambda: lightgbm_(
        classes=3, objective="multiclass", num_class=3
    ),
    "lightgbm, zero is missing": lambda: lightgbm_(zero_as_missing=True),
    "lightgbm, sets of categories": lambda: lightgbm_(
        categories=(1,), max_cat_to_onehot=1, cat_smooth=1.0
    ),
    "lightgbm, single leaves": lambda: lightgbm_(min_data_in_leaf=100_000),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_trees_agrees_with_its_source_both_ways(name):
    """Splits ± one float32, NaN, infinities, samples: no flip, and no company felt."""
    source, rows = MODELS[name]()
    probes = source.probes(rows[:300])
    for strategy in WAYS:
        plain = tensorize(source.convert(), strategy=strategy)
        graph = onnx.load_from_string(plain.model)
        assert {one.domain for one in graph.opset_import} == {""}
        assert {node.domain for node in graph.graph.node} == {""}
        report = compare(
            source.predict,
            onnx_runner(plain.model),
            probes=probes,
            thresholds=THRESHOLDS,
        )
        report.check()
        assert report.max_delta < 1e-6
        assert report.batch_delta == 0


def node_of(trees, **settings):
    """Write a regressor of hand-made nodes: (tree, node, mode, value, true, false)."""
    tree, number, mode, value, true, false, weight = zip(*trees, strict=True)
    return helper.make_node(
        "TreeEnsembleRegressor",
        ["features"],
        ["probabilities"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=tree,
        nodes_nodeids=number,
        nodes_featureids=[0] * len(trees),
        nodes_modes=mode,
        nodes_values=value,
        nodes_truenodeids=true,
        nodes_falsenodeids=false,
        target_treeids=tree,
        target_nodeids=number,
        target_ids=[0] * len(trees),
        target_weights=weight,
        **settings,
    )


def model_of(node):
    """Wrap a tree node into a model."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "hand",
        [value("features", TensorProto.FLOAT, ["N", 1])],
        [value("probabilities", TensorProto.FLOAT, ["N", 1])],
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model.SerializeToString()


EDGE = np.float32(0.1)
VALUES = np.asarray(
    [
        *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38),
        *(EDGE, np.nextafter(EDGE, np.float32(1)), np.nextafter(EDGE, np.float32(0))),
    ],
    dtype=np.float32,
)[:, None]
TESTS = {
    "BRANCH_LT": np.less,
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


@pytest.mark.parametrize("strategy", WAYS)
@pytest.mark.parametrize("tracks", [0, 1])
@pytest.mark.parametrize("edge", [EDGE, np.float32(0), np.float32(-np.inf)])
@pytest.mark.parametrize("mode", TESTS)
def test_a_row_goes_where_the_node_says(mode, edge, tracks, strategy):
    """Each test is numpy's own comparison, NaN as its node says, at the threshold."""
    node = node_of(
        [
            (0, 0, mode, float(edge), 1, 2, 0.0),
            (0, 1, "LEAF", 0.0, 0, 0, 0.25),
            (0, 2, "LEAF", 0.0, 0, 0, 0.75),
        ],
        nodes_missing_value_tracks_true=[tracks, 0, 0],
    )
    plain = tensorize(model_of(node), strategy=strategy).model
    held = TESTS[mode](VALUES, edge)
    expected = np.where(held | (np.isnan(VALUES) & bool(tracks)), 0.25, 0.75)
    for model in (plain, model_of(node)):
        assert (onnx_runner(model)(VALUES) == expected.astype(np.float32)).all()


@pytest.mark.parametrize("strategy", WAYS)
def test_different_tests_meet_in_one_ensemble(strategy):
    """Less, at most and equal side by side: the two trees' leaves add up."""
    node = node_of(
        [
            (0, 0, "BRANCH_EQ", 0.0, 1, 2, 0.0),
            (0, 1, "LEAF", 0.0, 0, 0, 0.5),
            (0, 2, "BRANCH_LT", float(EDGE), 3, 4, 0.0),
            (0, 3, "LEAF", 0.0, 0, 0, 0.125),
            (0, 4, "LEAF", 0.0, 0, 0, 0.0625),
            (1, 0, "BRANCH_LEQ", float(EDGE), 1, 2, 0.0),
            (1, 1, "LEAF", 0.0, 0, 0, 0.25),
            (1, 2, "LEAF", 0.0, 0, 0, 0.03125),
        ]
    )
    plain = tensorize(model_of(node), strategy=strategy).model
    below = np.where(VALUES < EDGE, 0.125, 0.0625)
    first = np.where(VALUES == 0, 0.5, below)
    second = np.where(VALUES <= EDGE, 0.25, 0.03125)
    expected = (first + second).astype(np.float32)
    assert (onnx_runner(plain)(VALUES) == expected).all()


def test_an_infinity_in_another_column_spoils_no_row():
    """Columns that a row's path does not test may hold anything."""
    source, rows = xgboost()
    spoiled = np.repeat(rows[:1], 3, axis=0)
    spoiled[1:, 5] = np.inf, np.nan
    expected = source.predict(spoiled)
    assert np.isfinite(expected).all()
    for strategy in WAYS:
        plain = tensorize(source.convert(), strategy=strategy).model
        assert np.abs(onnx_runner(plain)(spoiled) - expected).max() < 1e-6


def test_leaf_values_add_up_exactly():
    """Parts sum to the values, and each part's sums need no rounding in float32."""
    source, _ = sklearn(RandomForestClassifier(30, max_depth=8, random_state=0))
    graph = onnx.load_from_string(source.convert()).graph
    (node,) = (one for one in graph.node if one.op_type.startswith("TreeEnsemble"))
    forest = forest_of(trees_from_onnx(node), dtype=np.float32)
    parts = sum_parts(forest)
    left = np.abs(sum(parts) - forest.values).max()
    assert left <= np.abs(forest.values).max() * 2.0**-52
    random = np.random.default_rng(0)
    for part in parts:
        assert (part == part.astype(np.float32)).all()
        chosen = [
            random.choice(np.flatnonzero(forest.leaf & (forest.tree == tree)), 50)
            for tree in range(len(forest.roots))
        ]
        exact = part[np.stack(chosen), 0].sum(axis=0)
        single = part[np.stack(chosen), 0].astype(np.float32)
        for order in (single, single[::-1], random.permutation(single)):
            assert (np.add.accumulate(order)[-1] == exact).all()


def test_auto_takes_products_for_shallow_trees_and_steps_for_deep_ones():
    """The cut is the stated depth, whatever the number of trees."""
    features, label = training_rows()
    for depth, strategy in ((GEMM_DEPTH, "gemm"), (GEMM_DEPTH + 1, "traversal")):
        model = XGBClassifier(
            n_estimators=3, max_depth=depth, n_jobs=1, min_child_weight=0
        )
        plain = tensorize(XGBoostModel(model.fit(features, label)).convert())
        assert plain.depths == (depth,)
        assert plain.strategies == (strategy,)


def test_what_would_explode_is_refused_with_its_size(monkeypatch):
    """The refusal names bytes and nodes it would take, and the limits."""
    source, _ = sklearn(
        RandomForestClassifier(20, random_state=0, min_samples_leaf=1, max_depth=None)
    )
    monkeypatch.setattr(module, "LARGEST_BYTES", 100_000)
    with pytest.raises(ConversionError) as refused:
        tensorize(source.convert(), strategy="gemm")
    said = str(refused.value)
    assert "20 trees of depth" in said
    assert "at most are 100,000 and 2,000" in said
    monkeypatch.setattr(module, "LARGEST_NODES", 10)
    with pytest.raises(ConversionError, match=r"[\d,]+ nodes as traversal"):
        tensorize(source.convert(), strategy="traversal")


def test_a_chain_of_ten_thousand_steps_is_refused():
    """A walk that long would be a graph of 70,000 nodes: refused at the real limit."""
    depth = 10_000
    chain = [
        (0, 2 * at, "BRANCH_LT", float(-at), 2 * at + 2, 2 * at + 1, 0.0)
        for at in range(depth)
    ]
    leaves = [(0, 2 * at + 1, "LEAF", 0.0, 0, 0, 0.5) for at in range(depth)]
    last = (0, 2 * depth, "LEAF", 0.0, 0, 0, 0.5)
    model = model_of(node_of([*chain, *leaves, last]))
    with pytest.raises(ConversionError, match=r"depth 10,?000 .* 70,000 nodes"):
        tensorize(model)


def test_what_is_not_handled_is_refused_in_words():
    """No trees, another way to join them, an unknown strategy: one sentence each."""
    features, label = training_rows(gaps=0)
    linear = onnx_from_sklearn(LogisticRegression(max_iter=500).fit(features, label))
    with pytest.raises(ConversionError, match="no tree ensemble"):
        tensorize(linear)
    leaf = [(0, 0, "LEAF", 0.0, 0, 0, 0.5)]
    with pytest.raises(ConversionError, match="joined by MAX are not tensorised"):
        tensorize(model_of(node_of(leaf, aggregate_function="MAX")))
    with pytest.raises(ConversionError, match="PROBIT"):
        tensorize(model_of(node_of(leaf, post_transform="PROBIT")))
    with pytest.raises(ConversionError, match="there are auto, gemm, traversal"):
        tensorize(linear, strategy="fast")


def test_the_same_model_gives_the_same_bytes():
    """Conversion has no chance in it."""
    source, _ = xgboost()
    for strategy in WAYS:
        first = tensorize(source.convert(), strategy=strategy).model
        assert first == tensorize(source.convert(), strategy=strategy).model
