"""Extract the explanation of an XGBoost classifier: its trees and their covers."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from xgboost import Booster

from converters.explain_trees import SourceTree, packed
from converters.model import Facts
from converters.onnx_from_xgboost import base_margin, margins
from converters.xgboost_trees import category_sets
from tollgate.explanation import Explanation


def explain_xgboost(booster: Booster, *, facts: Facts, missing: float) -> Explanation:
    """
    Describe the trees in use.

    Args:
        booster: Trees in use, without those after an early stop.
        facts: Facts about the model.
        missing: Number that stands for a missing value; NaN if only NaN does.

    Raises:
        ConversionError: They have too many nodes to be stored.
    """
    document = json.loads(booster.save_raw("json"))
    model = document["learner"]["gradient_booster"]["model"]
    outputs = margins(booster)
    trees = [
        _tree(tree, output=output if outputs > 1 else 0)
        for tree, output in zip(model["trees"], model["tree_info"], strict=True)
    ]
    return Explanation(
        features=facts.feature_names,
        classes=facts.classes,
        link="logistic" if outputs == 1 else "softmax",
        base=np.asarray(base_margin(booster, outputs=outputs)),
        trees=packed(trees, missing=None if math.isnan(missing) else missing),
    )


def _tree(tree: dict[str, Any], *, output: int) -> SourceTree:
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    missing_left = np.asarray(tree["default_left"], dtype=bool)
    number = np.asarray(tree["split_conditions"], dtype=np.float32)
    codes = category_sets(tree)
    # xgboost sends the listed categories to the right.
    turned = np.zeros(len(left), dtype=bool)
    turned[list(codes)] = True
    return SourceTree(
        left=np.where(turned, right, left),
        right=np.where(turned, left, right),
        feature=np.asarray(tree["split_indices"]),
        # xgboost writes x < t, which for float32 is x <= the number just below t.
        threshold=np.nextafter(number, np.float32(-np.inf)),
        missing_left=missing_left ^ turned,
        cover=np.asarray(tree["sum_hessian"]),
        value=number,  # a leaf stores its value there
        codes=codes,
        output=output,
    )
