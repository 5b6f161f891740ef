"""
Recompute the output of an XGBoost file, and compare xgboost's output with it.

The code shares nothing with xgboost and nothing with the converter. So it detects a
library that ignores or misreads a field of the file, before that library serves as the
source of a proof.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xgboost
from xgboost import Booster

from converters.model import F32, F64
from converters.sources.xgboost_file import FileModel
from converters.sources.xgboost_tree_check import FileTree
from tollgate.errors import ConversionError

ROWS = 256
# Tolerance for float32 sums, relative to the sum of all leaves.
_SLACK = 1e-6
_MISSING_SHARE = 0.1


def file_margins(model: FileModel, rows: F32) -> F64:
    """Return the margins [N, K] of rows; NaN is a missing value."""
    base = model.base_score.astype(np.float64)
    if len(base) == 1:
        base = np.log(base / (1 - base))
    found = np.tile(base, (len(rows), 1))
    for tree, output, weight in zip(
        model.trees, model.outputs, model.weights, strict=True
    ):
        leaf = tree.value[_leaves(tree, rows)].astype(np.float64)
        found[:, output] += float(weight) * leaf
    return found


def _leaves(tree: FileTree, rows: F32) -> npt.NDArray[np.int64]:
    at = np.zeros(len(rows), np.int64)
    each = np.arange(len(rows))
    while (inner := tree.left[at] >= 0).any():
        node = at[inner]
        value = rows[each[inner], tree.feature[node]]
        left = value < tree.value[node]
        for split in np.unique(node):
            if int(split) in tree.codes:
                here = node == split
                left[here] = ~np.isin(value[here], tree.codes[int(split)])
        left = np.where(np.isnan(value), tree.missing_left[node], left)
        at[inner] = np.where(left, tree.left[node], tree.right[node])
    return at


def require_agreement(booster: Booster, model: FileModel) -> None:
    """
    Compare xgboost's margins with the file's own on rows around its thresholds.

    Args:
        booster: Booster as xgboost read it, without column names and types.
        model: Model as our reader read it.

    Raises:
        ConversionError: They differ: xgboost misreads the file.
    """
    rows = _rows(model)
    expected = file_margins(model, rows)
    found = np.asarray(
        booster.inplace_predict(rows, missing=np.nan, predict_type="margin"), np.float64
    ).reshape(len(rows), -1)
    size = 1.0 + sum(
        float(np.abs(tree.leaves).max()) * abs(float(weight))
        for tree, weight in zip(model.trees, model.weights, strict=True)
    )
    delta = np.abs(found - expected).max() if found.shape == expected.shape else np.inf
    if not delta <= _SLACK * size:
        raise ConversionError(
            f"xgboost {xgboost.__version__} answers otherwise than the numbers in the "
            f"file say (margins differ by {delta:.3g}): install the version that wrote "
            "it, or export it to ONNX there and adopt that"
        )


def _rows(model: FileModel) -> F32:
    """
    Draw each column from its thresholds, values just below them, its codes, and NaN.
    """
    random = np.random.default_rng(0)
    rows = random.normal(size=(ROWS, model.columns)).astype(np.float32)
    values: dict[int, list[npt.NDArray[np.float32]]] = {}
    for tree in model.trees:
        for node in np.flatnonzero(tree.left >= 0):
            column = int(tree.feature[node])
            codes = tree.codes.get(int(node))
            if codes is None:
                on = tree.value[node : node + 1]
                both = np.concatenate([on, np.nextafter(on, np.float32(-np.inf))])
            else:
                both = np.arange(codes.max() + 2).astype(np.float32)[-1000:]
            values.setdefault(column, []).append(both)
    for column, found in values.items():
        rows[:, column] = random.choice(np.concatenate(found), ROWS)
    rows[random.random(rows.shape) < _MISSING_SHARE] = np.nan
    return rows
