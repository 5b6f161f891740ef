"""
Turn trained XGBoost classifiers into ONNX that gives the same probabilities.

The trees come from onnxmltools; `converters.graph` puts the rest around them. Read
here are what onnxmltools does not read: a `missing` other than NaN, and category
codes that are no whole numbers.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from xgboost import Booster, XGBClassifier

from converters.graph import (
    OPSET,
    Margin,
    Repairs,
    tree_attributes,
    tree_graph,
)
from tollgate.errors import ConversionError
from tollgate.repository.targets import ML_DOMAIN
from tollgate.schema import FEATURES

OBJECTIVE = "binary:logistic"
# softmax differs from softprob in what predict() returns, not in what was learnt.
OBJECTIVES = (OBJECTIVE, "multi:softprob", "multi:softmax")


def onnx_from_xgboost(
    model: XGBClassifier | Booster, *, missing: float | None = None
) -> bytes:
    """
    Convert a classifier; the same model gives the same bytes.

    Args:
        model: The trained classifier, or its trees alone.
        missing: The number that stands for a missing value; None asks the classifier,
            and is NaN for trees alone, which do not know it.

    Returns:
        A serialized graph: input `features` float32 [N, F], one output
        `probabilities` float32 [N, K], K classes, P(class 0) first.

    Raises:
        ConversionError: The model is of a kind that would not convert faithfully.
    """
    booster = served_booster(model)
    outputs = margins(booster)
    return tree_graph(
        _converted_trees(booster),
        name="xgboost",
        columns=booster.num_features(),
        margin=Margin(base=base_margin(booster, outputs=outputs)),
        repairs=Repairs(
            missing=missing_value(model) if missing is None else missing,
            categories=category_columns(booster),
        ),
    )


def served_booster(model: XGBClassifier | Booster) -> Booster:
    """
    Return the trees that `predict_proba` uses, without column names and types.

    Names would have to read f0, f1, ... for onnxmltools, and declared integer
    columns would get rounded thresholds. Trees after the best iteration of an
    early stop are cut off.

    Raises:
        ConversionError: The model is of a kind that would not convert faithfully.
    """
    if isinstance(model, XGBClassifier):
        if not model.__sklearn_is_fitted__():
            raise ConversionError("the XGBClassifier is not trained; call fit first")
        whole = model.get_booster()
        _refuse_unfaithful(whole)
        if model.n_classes_ < 2:
            raise ConversionError(
                f"{model.n_classes_} classes and 1 outputs; "
                "a decision needs one output with 2 classes or more"
            )
    elif isinstance(model, Booster):
        whole = model
        _refuse_unfaithful(whole)
    else:
        raise ConversionError(
            f"cannot convert a {type(model).__name__}; needed is an XGBClassifier"
        )
    best = whole.attr("best_iteration")
    rounds = whole.num_boosted_rounds() if best is None else int(best) + 1
    booster = whole[:rounds]
    booster.feature_names = None
    booster.feature_types = None
    categories = category_columns(booster)
    if categories:
        # Not stripped: xgboost itself would then refuse to dump the trees.
        columns = range(booster.num_features())
        booster.feature_types = ["c" if one in categories else "q" for one in columns]
    return booster


def missing_value(model: XGBClassifier | Booster) -> float:
    """Return the number that stands for a missing value."""
    value = getattr(model, "missing", None)
    return math.nan if value is None else float(value)


def category_columns(booster: Booster) -> tuple[int, ...]:
    """List the columns that some tree splits by category code."""
    found = {
        tree["split_indices"][node]
        for tree in _gbtree(booster)["trees"]
        for node in tree.get("categories_nodes", ())
    }
    return tuple(sorted(found))


def _gbtree(booster: Booster) -> dict[str, Any]:
    """Read the trees and the class of each as xgboost saves them."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    found: dict[str, Any] = learner["gradient_booster"]["model"]
    return found


def _refuse_unfaithful(booster: Booster) -> None:
    """Raise ConversionError with the reason when trees must not be converted."""
    config = json.loads(booster.save_config())["learner"]
    kind = config["gradient_booster"]["name"]
    if kind != "gbtree":
        raise ConversionError(f"booster is {kind!r}; only 'gbtree' is converted")
    objective = config["objective"]["name"]
    if objective not in OBJECTIVES:
        raise ConversionError(
            f"objective is {objective!r}; converted are {', '.join(OBJECTIVES)}"
        )
    targets = int(config["learner_model_param"]["num_target"])
    if targets != 1:
        raise ConversionError(
            f"{targets} labels per row; a decision needs one label of 2 classes or more"
        )
    if booster.num_boosted_rounds() == 0:
        raise ConversionError("the model has no trees")


def margins(booster: Booster) -> int:
    """Return 1 for two classes, otherwise the number of classes."""
    config = json.loads(booster.save_config())["learner"]["learner_model_param"]
    return max(1, int(config["num_class"]))


def _converted_trees(booster: Booster) -> dict[str, Any]:
    """
    Let onnxmltools write the trees; return them as regressor attributes.

    Which class a tree is for is xgboost's word: onnxmltools counts trees modulo
    classes, which is wrong when a round has several trees per class.
    """
    plain = XGBClassifier()
    plain.load_model(bytearray(booster.save_raw("json")))
    converted = convert_xgboost(
        plain,
        name="xgboost",
        initial_types=[(FEATURES, FloatTensorType([None, booster.num_features()]))],
        target_opset=OPSET,
    )
    (node,) = (n for n in converted.graph.node if n.domain == ML_DOMAIN)
    trees = tree_attributes(node)
    of_tree = _gbtree(booster)["tree_info"]
    trees["target_ids"] = [of_tree[tree] for tree in trees["target_treeids"]]
    return trees


def base_margin(booster: Booster, *, outputs: int) -> tuple[float, ...]:
    """Return the margins every row starts from, in xgboost's own float32 steps."""
    learner = json.loads(booster.save_config())["learner"]["learner_model_param"]
    # "[5E-1]" or "[1E-1,2E-1]" since xgboost 3, "5E-1" before
    text = str(learner["base_score"]).strip("[]")
    scores = [np.float32(float(part)) for part in text.split(",")]
    if outputs > 1:
        return tuple(float(one) for one in scores * (outputs // len(scores)))
    one = np.float32(1)
    return (float(-np.log(one / scores[0] - one)),)
