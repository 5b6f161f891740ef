"""Turn a graph that scores rows into one that scores lists of candidates."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tollgate.schema import CANDIDATE_FEATURES, FEATURES, PROBABILITIES, RELEVANCE

_LISTS, _CANDIDATES = "N", "C"


def ranking_graph(model: bytes) -> bytes:
    """
    Score each candidate of a list as a row.

    Args:
        model: Graph from `features` float32 [N, F] to `probabilities` float32 [N, 1].

    Returns:
        A serialized graph from `candidate_features` float32 [N, C, F] to `relevance`
        float32 [N, C], C free. A candidate's relevance depends on its own features
        alone, so those that fill a list change nothing for the others.
    """
    given = onnx.load_from_string(model)
    graph = given.graph
    columns = graph.input[0].type.tensor_type.shape.dim[1].dim_value
    constants = {
        "row_shape": np.array([-1, columns], np.int64),
        "first_two": np.array([2], np.int64),
        "begin": np.array([0], np.int64),
    }
    before = helper.make_node("Reshape", [CANDIDATE_FEATURES, "row_shape"], [FEATURES])
    after = [
        helper.make_node("Shape", [CANDIDATE_FEATURES], ["whole_shape"]),
        helper.make_node(
            "Slice", ["whole_shape", "begin", "first_two"], ["list_shape"]
        ),
        helper.make_node("Reshape", [PROBABILITIES, "list_shape"], [RELEVANCE]),
    ]
    graph.node.insert(0, before)
    graph.node.extend(after)
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    value, single = helper.make_tensor_value_info, TensorProto.FLOAT
    lists = [_LISTS, _CANDIDATES]
    del graph.input[:], graph.output[:]
    graph.input.append(value(CANDIDATE_FEATURES, single, [*lists, columns]))
    graph.output.append(value(RELEVANCE, single, lists))
    onnx.checker.check_model(given)
    return bytes(given.SerializeToString(deterministic=True))
