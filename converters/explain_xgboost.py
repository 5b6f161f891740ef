"""Extract the explanation of an XGBoost classifier: its trees and their covers."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from xgboost import Booster

from converters.explain_trees import stored_trees
from converters.model import Facts
from converters.onnx_from_xgboost import base_margin, margins
from converters.xgboost_trees import trees_from_xgboost
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
