"""
Convert trained XGBoost models to ONNX that gives the same answers.

`converters.trees.onnx_trees` writes the trees. `converters.onnx.graph` adds the rest
around them: a `missing` value other than NaN, category codes that are not whole
numbers, and the step to probabilities.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from xgboost import Booster, XGBClassifier, XGBRanker, XGBRegressor

from converters.onnx.graph import Margin, Repairs, number_graph, tree_graph
from converters.sources.files.xgboost_file import NUMBERS, OBJECTIVES
from converters.trees.onnx_trees import tree_operator
from converters.trees.tree_ensemble import single_leaf
from converters.trees.xgboost_trees import (
    tree_part,
    trees_from_xgboost,
    weigh_leaves,
)
from tollgate.errors import ConversionError

Trained = XGBClassifier | XGBRegressor | XGBRanker | Booster

OBJECTIVE = "binary:logistic"
# softmax differs from softprob in the result of predict(), not in the trees;
# reg:logistic from binary:logistic only in the default metric.


def onnx_from_xgboost(model: Trained, *, missing: float | None = None) -> bytes:
    """
    Convert a classifier; the same model gives the same bytes.

    Args:
        model: The trained classifier, or its trees alone.
        missing: Number that stands for a missing value. None takes the classifier's, or
            NaN for trees alone, which do not know it.

    Returns:
        A serialized graph: input `features` float32 [N, F], one output
        `probabilities` float32 [N, K], K classes, P(class 0) first; [N, 1] for a
        number.

    Raises:
        ConversionError: A model of this kind cannot be converted faithfully.
    """
    booster = served_booster(model)
    link = number_link(booster)
    repairs = Repairs(
        missing=missing_value(model) if missing is None else missing,
        categories=category_columns(booster),
    )
    if link is not None:
        start = float(base_score(booster)[0])
        # xgboost adds the leaves to the start value in the order of the trees.
        first = single_leaf(math.log(start) if link == "exp" else start)
        return number_graph(
            tree_operator([first, *trees_from_xgboost(booster)]),
            name="xgboost",
            columns=booster.num_features(),
            link=link,
            repairs=repairs,
        )
    outputs = margins(booster)
    return tree_graph(
        tree_operator(trees_from_xgboost(booster)),
        name="xgboost",
        columns=booster.num_features(),
        margin=Margin(base=base_margin(booster, outputs=outputs)),
        repairs=repairs,
    )


def number_link(booster: Booster) -> str | None:
    """Return the function from margin to number; None for classes."""
    config = json.loads(booster.save_config())["learner"]
    return NUMBERS.get(config["objective"]["name"], (None,))[0]


def served_booster(model: Trained) -> Booster:
    """
    Return the trees that `predict_proba` uses, without column names and types.

    Rows have no column names here, and codes of categories are numbers. Trees after the
    best iteration of an early stop are cut off; the leaves of a DART model are
    multiplied by the weights of their trees.

    Raises:
        ConversionError: A model of this kind cannot be converted faithfully.
    """
    booster = sliced_booster(model)
    document = json.loads(booster.save_raw("json"))
    part, weights = tree_part(document)
    if weights is None:
        return booster
    for tree, weight in zip(part["trees"], weights, strict=True):
        weigh_leaves(tree, weight)
    part.pop("weight_drop", None)
    document["learner"]["gradient_booster"] = {"name": "gbtree", "model": part}
    weighed = Booster()
    weighed.load_model(bytearray(json.dumps(document).encode()))
    weighed.feature_types = column_types(weighed)
    return weighed


def sliced_booster(model: Trained) -> Booster:
    """
    Return the trees that `predict_proba` uses, in the form in which they were saved.

    Raises:
        ConversionError: A model of this kind cannot be converted faithfully.
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
    elif isinstance(model, (Booster, XGBRegressor, XGBRanker)):
        # A regressor with a logistic objective predicts the probability of class 1.
        whole = model if isinstance(model, Booster) else model.get_booster()
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
    booster.feature_types = column_types(booster)
    return booster


def column_types(booster: Booster) -> list[str] | None:
    """Return "c" for columns that are split by category; None if there are none."""
    categories = category_columns(booster)
    if not categories:
        return None
    # Keep the column type: a split by category belongs to a column declared as one.
    columns = range(booster.num_features())
    return ["c" if one in categories else "q" for one in columns]


def missing_value(model: Trained) -> float:
    """Return the number that stands for a missing value."""
    value = getattr(model, "missing", None)
    return math.nan if value is None else float(value)


def category_columns(booster: Booster) -> tuple[int, ...]:
    """List the columns that at least one tree splits by category code."""
    found = {
        int(tree.feature[node])
        for tree in trees_from_xgboost(booster)
        for node in tree.codes
    }
    return tuple(sorted(found))


def _gbtree(booster: Booster) -> dict[str, Any]:
    """Return the trees and the class of each, as xgboost saves them."""
    return tree_part(json.loads(booster.save_raw("json")))[0]


def _refuse_unfaithful(booster: Booster) -> None:
    """Raise ConversionError with the reason when trees must not be converted."""
    config = json.loads(booster.save_config())["learner"]
    kind = config["gradient_booster"]["name"]
    if kind not in ("gbtree", "dart"):
        raise ConversionError(
            f"booster is {kind!r}; only 'gbtree' and 'dart' are converted"
        )
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
    if int(_gbtree(booster)["trees"][0]["tree_param"]["size_leaf_vector"]) > 1:
        raise ConversionError(
            "multi_strategy is 'multi_output_tree', whose leaves hold a number per "
            "class; train with 'one_output_per_tree'"
        )


def margins(booster: Booster) -> int:
    """Return 1 for two classes, otherwise the number of classes."""
    config = json.loads(booster.save_config())["learner"]["learner_model_param"]
    return max(1, int(config["num_class"]))


def base_margin(booster: Booster, *, outputs: int) -> tuple[float, ...]:
    """Return the start margins of every row, in xgboost's own float32 steps."""
    scores = base_score(booster)
    if outputs > 1:
        return tuple(float(one) for one in scores * (outputs // len(scores)))
    one = np.float32(1)
    return (float(-np.log(one / scores[0] - one)),)


def base_score(booster: Booster) -> list[np.float32]:
    """Return the base score as xgboost stores it: one number, or one for each class."""
    learner = json.loads(booster.save_config())["learner"]["learner_model_param"]
    # "[5E-1]" or "[1E-1,2E-1]" since xgboost 3, "5E-1" before
    text = str(learner["base_score"]).strip("[]")
    return [np.float32(float(part)) for part in text.split(",")]
