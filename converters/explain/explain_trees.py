"""Convert trees to the arrays that `explain.npz` stores."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from xgboost import Booster

from converters.model import Facts
from converters.onnx.from_lightgbm import plain_text, refuse_unfaithful
from converters.onnx.from_xgboost import base_margin, margins
from converters.trees.lightgbm_trees import header, trees_from_lightgbm
from converters.trees.tree_ensemble import IN, NOT_IN, Tree, largest_left
from converters.trees.xgboost_trees import trees_from_xgboost
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation, Trees

# Unpacked, a node takes 35 bytes and 8 per value; explaining its rows takes about 1 kB
# per node when paths test 15 features (measured).
MOST_NODES = 1_000_000
MOST_VALUES = 16_000_000


def stored_trees(
    trees: Sequence[Tree],
    *,
    missing: float | None = None,
    zero_is_missing: tuple[int, ...] = (),
    codes_truncate: bool = False,
    codes_exact: bool = False,
) -> Trees:
    """
    Join all trees, their nodes ordered by level.

    Args:
        trees: At least one, with covers; leaves hold contributions to the margins.
        missing: Number that stands for a missing value, in addition to NaN.
        zero_is_missing: Columns in which 0 stands for a missing value.
        codes_truncate: True if codes lose their fraction toward zero, otherwise
            downward.
        codes_exact: True if a code with a fraction matches no category.

    Raises:
        ConversionError: They have too many nodes to be stored.
    """
    nodes = sum(len(one.left) for one in trees)
    if nodes > MOST_NODES or sum(np.size(one.value) for one in trees) > MOST_VALUES:
        raise ConversionError(
            f"its trees have {nodes:,} nodes; contributions are stored for at most "
            f"{MOST_NODES:,}, of {MOST_VALUES:,} values"
        )
    parts: dict[str, list[Any]] = {name: [] for name in _ARRAYS}
    start = [0]
    for tree in trees:
        for name, array in _by_level(tree, first=start[-1]).items():
            parts[name].append(array)
        start.append(start[-1] + len(parts["left"][-1]))
    return Trees(
        start=np.asarray(start, dtype=np.int32),
        output=np.asarray([one.output for one in trees], dtype=np.int32),
        missing=missing,
        zero_is_missing=zero_is_missing,
        codes_truncate=codes_truncate,
        codes_exact=codes_exact,
        **{
            name: np.concatenate(parts[name]).astype(dtype)
            for name, dtype in _ARRAYS.items()
        },
    )


_ARRAYS: dict[str, Any] = {
    "left": np.int32,
    "feature": np.int32,
    "threshold": np.float32,
    "missing_left": np.bool_,
    "by_code": np.bool_,
    "code_node": np.int32,
    "code": np.int32,
    "cover": np.float64,
    "value": np.float64,
}


def _by_level(tree: Tree, *, first: int) -> dict[str, Any]:
    """Return the arrays of a tree; its root gets the number `first`."""
    assert tree.cover is not None
    by_code = np.isin(tree.comparison, (IN, NOT_IN))
    # In the file, the codes of a split always go to the left.
    swapped = tree.comparison == NOT_IN
    left = np.where(swapped, tree.right, tree.left)
    right = np.where(swapped, tree.left, tree.right)
    levels = [np.zeros(1, dtype=np.int64)]
    while True:
        splits = levels[-1][left[levels[-1]] >= 0]
        if not len(splits):
            break
        levels.append(np.stack([left[splits], right[splits]], axis=1).ravel())
    order = np.concatenate(levels)  # drop nodes that no path reaches
    split = left[order] >= 0
    child = np.full(len(order), -1, dtype=np.int64)
    child[split] = first + 1 + 2 * np.arange(int(split.sum()))
    code_pairs = [
        (first + at, code)
        for at in np.flatnonzero(by_code[order]).tolist()
        for code in sorted(set(tree.codes[int(order[at])]))
    ]
    codes = np.asarray(code_pairs, dtype=np.int64).reshape(-1, 2)
    number = split & ~by_code[order]
    return {
        "left": child,
        "feature": np.where(split, tree.feature[order], -1),
        "threshold": np.where(number, largest_left(tree)[order], np.float32(0)),
        "missing_left": (tree.missing_left ^ swapped)[order] & split,
        "by_code": by_code[order],
        "code_node": codes[:, 0],
        "code": codes[:, 1],
        "cover": tree.cover[order],
        "value": np.where(split[:, None], 0.0, tree.value[order]),
    }


# Extract the explanation of a LightGBM classifier: its trees and their covers.


def explain_lightgbm(text: str, *, facts: Facts) -> Explanation:
    """
    Describe the trees of a model's text.

    Covers are row counts, as LightGBM's own `pred_contrib` uses them. The leaves here
    include the factor of the sigmoid and the divisor of random forests.

    Raises:
        ConversionError: The text has no covers, or too many nodes.
    """
    factor = refuse_unfaithful(text)
    outputs = int(header(text, "num_class"))
    plain, zero_is_missing = plain_text(text)
    trees = trees_from_lightgbm(plain)
    if any(one.cover is None for one in trees):
        raise ConversionError("its text has no row counts (leaf_count) in the trees")
    if re.search(r"^average_output$", text, re.MULTILINE):
        factor /= len(trees) // int(header(text, "num_tree_per_iteration"))
    return Explanation(
        features=facts.feature_names,
        classes=facts.classes,
        link="logistic" if outputs == 1 else "softmax",
        base=np.zeros(outputs),
        trees=stored_trees(
            [msgspec.structs.replace(one, value=factor * one.value) for one in trees],
            zero_is_missing=zero_is_missing,
            codes_truncate=True,
        ),
    )


# Extract the explanation of an XGBoost classifier: its trees and their covers.


def explain_xgboost(booster: Booster, *, facts: Facts, missing: float) -> Explanation:
    """
    Describe the trees in use.

    Args:
        booster: Trees in use, without those after an early stop.
        missing: Number that stands for a missing value; NaN if only NaN does.

    Raises:
        ConversionError: They have too many nodes to be stored.
    """
    outputs = margins(booster)
    trees = trees_from_xgboost(booster)
    if outputs == 1:
        trees = [msgspec.structs.replace(one, output=0) for one in trees]
    return Explanation(
        features=facts.feature_names,
        classes=facts.classes,
        link="logistic" if outputs == 1 else "softmax",
        base=np.asarray(base_margin(booster, outputs=outputs)),
        trees=stored_trees(trees, missing=None if math.isnan(missing) else missing),
    )
