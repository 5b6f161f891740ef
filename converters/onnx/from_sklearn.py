"""
Convert trained scikit-learn classifiers and pipelines to ONNX.

skl2onnx converts. `sklearn_operators` replaces the steps that skl2onnx rounds
differently, and `sklearn_tree_repair` restores what skl2onnx leaves out of trees.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import onnx
from onnx import TensorProto
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline

from converters.onnx.graph import (
    IR_VERSION,
    ML_OPSET,
    ML_OPSET_OF_DOUBLES,
    OPSET,
    drop_unused,
    set_shape,
)
from converters.onnx.sklearn_operators import CONVERTERS, SHAPES
from converters.onnx.sklearn_tree_repair import repair
from converters.onnx.two_classes import write_first_class
from converters.trees.sklearn_trees import (
    cap_thresholds,
    children,
    forget_rows,
    round_histograms,
)
from tollgate.errors import ConversionError
from tollgate.repository.models.targets import ML_DOMAIN
from tollgate.schema import FEATURES, PROBABILITIES


def onnx_from_sklearn(estimator: Any, *, wide: bool = False) -> bytes:
    """
    Convert a fitted classifier, or a pipeline that ends in one.

    Args:
        estimator: The classifier.
        wide: True if its features are float64, as it computes with them; else float32.

    Returns:
        A serialized graph: input `features` [N, F], one output
        `probabilities` float32 [N, K], K classes, P(class 0) first.

    Raises:
        ConversionError: It is no fitted classifier with probabilities, or has a step
            that is not supported.
    """
    refuse_unfaithful(estimator)
    numbered = by_position(estimator)
    exact = by_position(estimator) if wide else None
    round_histograms(numbered)
    forget_rows(numbered)
    if wide:
        cap_thresholds(numbered)
    converted = _converted(numbered, wide=wide)
    repair(converted, numbered, exact=exact)
    write_first_class(converted)
    return _finished(converted, classes=len(estimator.classes_))


def _converted(estimator: Any, *, wide: bool) -> onnx.ModelProto:
    columns = int(estimator.n_features_in_)
    tensor_type = DoubleTensorType if wide else FloatTensorType
    try:
        with warnings.catch_warnings():
            # skl2onnx passes numpy flags to protobuf, which numpy will refuse one day.
            warnings.simplefilter("ignore", DeprecationWarning)
            found: onnx.ModelProto = convert_sklearn(
                estimator,
                name="scikit-learn",
                initial_types=[(FEATURES, tensor_type([None, columns]))],
                options={
                    id(estimator): {"zipmap": False},
                    **_margin_options(estimator),
                },
                target_opset={
                    "": OPSET,
                    ML_DOMAIN: ML_OPSET_OF_DOUBLES if wide else ML_OPSET,
                },
                custom_conversion_functions=CONVERTERS,
                custom_shape_calculators=SHAPES,
            )
            return found
    except ConversionError:
        raise
    except Exception as error:
        # skl2onnx raises any error that a step causes; its first line names the
        # problem.
        lines = str(error).strip().splitlines() or [repr(error)]
        raise ConversionError(
            f"skl2onnx cannot convert {_names(estimator)}: {lines[0]}"
        ) from error


def _margin_options(estimator: Any) -> dict[int, dict[str, bool]]:
    """
    Request the margin of the last step of a calibrated pipeline.

    skl2onnx requests the margin of a calibrated classifier, but not if that classifier
    is a pipeline: the calibration then reads probabilities.
    """
    found = {}
    pending = [estimator]
    while pending:
        one = pending.pop()
        pending += children(one)
        if isinstance(one, CalibratedClassifierCV):
            for part in one.calibrated_classifiers_:
                last = part.estimator
                while isinstance(last, Pipeline):
                    last = last.steps[-1][1]
                if last is not part.estimator and hasattr(last, "decision_function"):
                    found[id(last)] = {"raw_scores": True}
    return found


def refuse_unfaithful(estimator: Any) -> None:
    """Raise ConversionError with the reason when a model must not be converted."""
    name = type(estimator).__name__
    if not hasattr(estimator, "predict_proba"):
        raise ConversionError(
            f"a {name} gives no probabilities; needed is a classifier with "
            "predict_proba"
        )
    if isinstance(estimator, Pipeline) and estimator.steps[0][1] in (
        None,
        "passthrough",
    ):
        raise ConversionError(
            "its first step is 'passthrough', which does not know how many features "
            "there are; leave that step out"
        )
    if not hasattr(estimator, "classes_") or not hasattr(estimator, "n_features_in_"):
        raise ConversionError(f"the {name} is not trained; call fit first")
    if isinstance(estimator.classes_, list):
        raise ConversionError(
            f"{len(estimator.classes_)} labels per row; a decision needs one label"
        )
    if len(estimator.classes_) < 2:
        raise ConversionError(f"{len(estimator.classes_)} class; a decision needs two")


def by_position(estimator: Any) -> Any:
    """Return a copy whose column transformers find columns by position, not by name."""
    copied = copy.deepcopy(estimator)
    pending = [copied]
    while pending:
        one = pending.pop()
        pending += children(one)
        # A calibration also stores the estimator that it fitted copies of.
        if isinstance(one, ColumnTransformer) and hasattr(one, "transformers_"):
            chosen = one._transformer_to_input_indices
            one.transformers_ = [
                (name, step, list(map(int, chosen.get(name, []))))
                for name, step, _ in one.transformers_
            ]
    return copied


def _names(estimator: Any) -> str:
    if isinstance(estimator, Pipeline):
        return " → ".join(type(step).__name__ for _, step in estimator.steps)
    return type(estimator).__name__


def _finished(model: onnx.ModelProto, *, classes: int) -> bytes:
    """
    Drop the label, free the batch dimension, and set the names that the server reads.
    """
    graph = model.graph
    outputs = [one for one in graph.output if one.name == PROBABILITIES]
    if len(outputs) != 1:
        raise ConversionError(
            f"the graph's outputs are {[one.name for one in graph.output]}; "
            f"{PROBABILITIES} is not among them"
        )
    del graph.output[:]
    graph.output.extend(outputs)
    drop_unused(graph)
    tensor = graph.output[0].type.tensor_type
    tensor.elem_type = TensorProto.FLOAT
    set_shape(tensor, columns=classes)
    set_shape(graph.input[0].type.tensor_type, columns=None)
    model.ir_version = min(model.ir_version, IR_VERSION)
    model.producer_name, model.producer_version = "tollgate", ""
    model.doc_string = graph.doc_string = ""
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ConversionError(f"the graph is not valid: {error}") from error
    return bytes(model.SerializeToString(deterministic=True))
