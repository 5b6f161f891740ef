"""Probe rows reach every place where a tree model can change its mind."""

import numpy as np
import pytest
from xgboost import DMatrix, XGBClassifier

from converters.onnx.from_xgboost import served_booster
from converters.parity.probe_rows import (
    SPECIAL_BASES,
    SPECIAL_VALUES,
    probes,
    special_rows,
    split_rows,
)
from converters.trees.xgboost_trees import trees_from_xgboost


@pytest.fixture(scope="module")
def samples():
    """Twenty rows, far fewer than a model has splits."""
    return np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def booster():
    """Return 15 trees of depth 7, trained with gaps."""
    random = np.random.default_rng(0)
    features = random.normal(size=(3000, 5)).astype(np.float32)
    features[random.random(features.shape) < 0.1] = np.nan
    model = XGBClassifier(n_jobs=1, n_estimators=15, max_depth=7, tree_method="exact")
    return served_booster(model.fit(features, random.integers(0, 2, 3000)))


def test_every_leaf_of_every_tree_is_reached(booster, samples):
    """xgboost itself says which leaf each probe ends in."""
    rows = split_rows(samples, trees_from_xgboost(booster))
    reached = booster.predict(DMatrix(rows), pred_leaf=True)
    for number, tree in enumerate(trees_from_xgboost(booster)):
        leaves = {node for node, left in enumerate(tree.left) if left < 0}
        assert set(reached[:, number].astype(int)) == leaves


def test_every_split_gets_rows_one_ulp_around_its_threshold(booster, samples):
    """Three rows per split that differ in one column: below, on and above."""
    trees = trees_from_xgboost(booster)
    rows = split_rows(samples, trees)
    splits = {
        (int(tree.feature[node]), tree.threshold[node].item())
        for tree in trees
        for node, left in enumerate(tree.left)
        if left >= 0
    }
    found = set()
    for below, on, above in rows.reshape(-1, 3, rows.shape[1]):
        (column,) = np.flatnonzero(below != on)
        assert np.array_equal(np.flatnonzero(above != on), [column])
        assert np.nextafter(below[column], np.float32(np.inf)) == on[column]
        assert np.nextafter(on[column], np.float32(np.inf)) == above[column]
        found.add((int(column), on[column].item()))
    assert found == splits


def test_trees_are_those_of_the_booster(booster, samples):
    """Walking the trees by hand gives the margin of xgboost."""
    margin = np.zeros(len(samples), dtype=np.float64)
    for tree in trees_from_xgboost(booster):
        for row, values in enumerate(samples):
            node = 0
            while tree.left[node] >= 0:
                smaller = values[tree.feature[node]] < tree.threshold[node]
                node = tree.left[node] if smaller else tree.right[node]
            margin[row] += tree.value[node, 0]
    shift = booster.predict(DMatrix(samples), output_margin=True) - margin
    assert np.ptp(shift) < 1e-5


def test_special_values_stand_in_every_column_alone_and_together(samples):
    """NaN, infinities, signed zeros, huge and tiny: in each column."""
    rows = special_rows(samples)
    columns = samples.shape[1]
    assert len(rows) == len(SPECIAL_VALUES) * (1 + SPECIAL_BASES * columns)
    values = np.asarray(SPECIAL_VALUES, dtype=np.float32).view(np.uint32)
    for column in range(columns):
        assert set(values) <= set(rows[:, column].view(np.uint32))
    whole = rows[: len(values)].view(np.uint32)
    assert (whole == values[:, None]).all()


def test_probes_name_what_each_row_is_for(booster, samples):
    """Samples first, unchanged, then splits, then special values."""
    found = probes(samples, trees_from_xgboost(booster))
    assert np.array_equal(found.rows[: len(samples)], samples)
    kinds, counts = np.unique(found.kind, return_counts=True)
    sizes = dict(zip(kinds.tolist(), counts.tolist(), strict=True))
    assert sizes == {
        "sample": len(samples),
        "split": len(split_rows(samples, trees_from_xgboost(booster))),
        "special": len(special_rows(samples)),
    }
    assert found.rows.dtype == np.float32


def test_a_model_without_splits_is_still_probed(samples):
    """Single leaves have no thresholds; samples and special values remain."""
    random = np.random.default_rng(0)
    features = random.normal(size=(100, 5)).astype(np.float32)
    model = XGBClassifier(n_jobs=1, n_estimators=3, gamma=1e9)
    trees = trees_from_xgboost(
        served_booster(model.fit(features, random.integers(0, 2, 100)))
    )
    assert len(split_rows(samples, trees)) == 0
    assert "split" not in probes(samples, trees).kind
