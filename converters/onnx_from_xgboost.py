"""
Turn a trained XGBClassifier into ONNX that gives the same probabilities.

The trees come from onnxmltools. Around them stands a graph of our own: summed
margin, then 1 / (1 + exp(-margin)) as xgboost computes it. onnxmltools would leave
that step to the classifier node's LOGISTIC, which is 2 % off for small probabilities
(onnxruntime issue 26281), is skipped for trees that are single leaves (27533), and
brings a second output, the label, of rank 1 that Triton cannot batch.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from xgboost import Booster, XGBClassifier

from tollgate.errors import ConversionError
from tollgate.schema import FEATURES, PROBABILITIES

# What onnxruntime 1.19.2 (Triton 24.10) and every later one reads; it would take
# opset 21, ai.onnx.ml 5 and IR 10, but these operators have not changed since.
OPSET = 15
ML_DOMAIN = "ai.onnx.ml"
ML_OPSET = 1
IR_VERSION = 8

OBJECTIVE = "binary:logistic"


def onnx_from_xgboost(model: XGBClassifier) -> bytes:
    """
    Convert a binary classifier; the same model gives the same bytes.

    Returns:
        A serialized graph: input `features` float32 [N, F], one output
        `probabilities` float32 [N, 2] with P(class 0), P(class 1).

    Raises:
        ConversionError: The model is of a kind that would not convert faithfully.
    """
    booster = served_booster(model)
    trees = _converted_trees(booster)
    margin = helper.make_node(
        "TreeEnsembleRegressor",
        [FEATURES],
        ["margin"],
        name="trees",
        domain=ML_DOMAIN,
        n_targets=1,
        base_values=[_base_margin(booster)],
        **trees,
    )
    columns = booster.num_features()
    graph = helper.make_graph(
        [margin, *_logistic_nodes()],
        "xgboost",
        [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["N", columns])],
        [helper.make_tensor_value_info(PROBABILITIES, TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])],
    )
    converted = helper.make_model(
        graph,
        producer_name="tollgate",
        ir_version=IR_VERSION,
        opset_imports=[
            helper.make_opsetid("", OPSET),
            helper.make_opsetid(ML_DOMAIN, ML_OPSET),
        ],
    )
    onnx.checker.check_model(converted)
    return bytes(converted.SerializeToString(deterministic=True))


def served_booster(model: XGBClassifier) -> Booster:
    """
    Return the trees that `predict_proba` uses, without column names and types.

    Names would have to read f0, f1, ... for onnxmltools, and declared integer
    columns would get rounded thresholds. Trees after the best iteration of an
    early stop are cut off.

    Raises:
        ConversionError: The model is of a kind that would not convert faithfully.
    """
    _refuse_unfaithful(model)
    whole = model.get_booster()
    best = getattr(model, "best_iteration", None)
    rounds = whole.num_boosted_rounds() if best is None else best + 1
    booster = whole[:rounds]
    booster.feature_names = None
    booster.feature_types = None
    return booster


def _refuse_unfaithful(model: object) -> None:
    """Raise ConversionError with the reason when a model must not be converted."""
    if not isinstance(model, XGBClassifier):
        raise ConversionError(
            f"cannot convert a {type(model).__name__}; needed is an XGBClassifier"
        )
    if not model.__sklearn_is_fitted__():
        raise ConversionError("the XGBClassifier is not trained; call fit first")
    booster = model.get_booster()
    config = json.loads(booster.save_config())["learner"]
    kind = config["gradient_booster"]["name"]
    if kind != "gbtree":
        raise ConversionError(f"booster is {kind!r}; only 'gbtree' is converted")
    objective = config["objective"]["name"]
    if objective != OBJECTIVE:
        raise ConversionError(
            f"objective is {objective!r}; only {OBJECTIVE!r} is converted"
        )
    outputs = int(config["learner_model_param"]["num_target"])
    if model.n_classes_ != 2 or outputs != 1:
        raise ConversionError(
            f"{model.n_classes_} classes and {outputs} outputs; "
            "a decision needs one output with 2 classes"
        )
    if model.missing is not None and not math.isnan(model.missing):
        raise ConversionError(
            f"missing is {model.missing}; train with missing=nan and put NaN there"
        )
    types = booster.feature_types or []
    if "c" in types:
        raise ConversionError(
            f"column {types.index('c')} is categorical; only numbers are converted"
        )
    if booster.num_boosted_rounds() == 0:
        raise ConversionError("the model has no trees")


def _converted_trees(booster: Booster) -> dict[str, Any]:
    """Let onnxmltools write the trees; return them as regressor attributes."""
    plain = XGBClassifier()
    plain.load_model(bytearray(booster.save_raw("json")))
    converted = convert_xgboost(
        plain,
        name="xgboost",
        initial_types=[(FEATURES, FloatTensorType([None, booster.num_features()]))],
        target_opset=OPSET,
    )
    (node,) = (n for n in converted.graph.node if n.domain == ML_DOMAIN)
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    trees = {name: found[name] for name in found if name.startswith("nodes_")}
    trees["target_treeids"] = found["class_treeids"]
    trees["target_nodeids"] = found["class_nodeids"]
    trees["target_weights"] = found["class_weights"]
    trees["target_ids"] = [0] * len(found["class_ids"])
    return trees


def _base_margin(booster: Booster) -> float:
    """Return the margin every row starts from, in xgboost's own float32 steps."""
    learner = json.loads(booster.save_config())["learner"]["learner_model_param"]
    text = str(learner["base_score"])
    # "[5E-1]" since xgboost 3.0, "5E-1" before
    base_score = np.float32(float(text.strip("[]")))
    one = np.float32(1)
    return float(-np.log(one / base_score - one))


def _logistic_nodes() -> list[onnx.NodeProto]:
    """Write P(1) = 1 / (1 + exp(-margin)) and P(0) = 1 - P(1)."""
    return [
        helper.make_node("Neg", ["margin"], ["negated"]),
        helper.make_node("Exp", ["negated"], ["odds_against"]),
        helper.make_node("Add", ["odds_against", "one"], ["whole"]),
        helper.make_node("Div", ["one", "whole"], ["second"]),
        helper.make_node("Sub", ["one", "second"], ["first"]),
        helper.make_node("Concat", ["first", "second"], [PROBABILITIES], axis=1),
    ]
