"""The part of onnx.proto that servers parse, against the onnx package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tollgate.errors import RepositoryError
from tollgate.repository.models.model_files import onnx_parts, parse_onnx

ONNX_NAMES = {
    "Model": "ModelProto",
    "OperatorSet": "OperatorSetIdProto",
    "TrainingInfo": "TrainingInfoProto",
    "Function": "FunctionProto",
    "Graph": "GraphProto",
    "Node": "NodeProto",
    "Attribute": "AttributeProto",
    "SparseTensor": "SparseTensorProto",
    "Tensor": "TensorProto",
    "Entry": "StringStringEntryProto",
}


def a_model() -> onnx.ModelProto:
    """Build a model with a function, a branch, a sparse constant and an initializer."""
    weights = numpy_helper.from_array(np.ones(2, np.float32), "weights")
    indices = numpy_helper.from_array(np.array([0, 3], np.int64), "indices")
    sparse = helper.make_sparse_tensor(weights, indices, [4])
    constant = helper.make_node("Constant", [], ["c"], sparse_value=sparse)
    branch = helper.make_graph([constant], "branch", [], [])
    fork = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    own = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        opsets,
    )
    graph = helper.make_graph([fork], "g", [], [], initializer=[weights])
    return helper.make_model(graph, opset_imports=opsets, functions=[own], ir_version=8)


def test_declared_fields_are_those_of_onnx(tmp_path: Path) -> None:
    """Each field has the number that the package gives to the same name."""
    path = tmp_path / "model.onnx"
    path.write_bytes(a_model().SerializeToString())
    messages = parse_onnx(path).DESCRIPTOR.file.message_types_by_name
    assert set(messages) == set(ONNX_NAMES)
    for name, message in messages.items():
        theirs = getattr(onnx, ONNX_NAMES[name]).DESCRIPTOR.fields_by_name
        for field in message.fields:
            assert field.number == theirs[field.name].number, field.full_name


def leads_to_tensor(message: Any, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether a message of onnx can hold a tensor, at any depth."""
    if message.name in seen:
        return False
    inner = [one.message_type for one in message.fields if one.message_type]
    return message.name == "TensorProto" or any(
        leads_to_tensor(one, seen | {message.name}) for one in inner
    )


def test_no_tensor_hides_in_a_field_that_is_not_declared(tmp_path: Path) -> None:
    """Every field of the package that can lead to a tensor is declared."""
    path = tmp_path / "model.onnx"
    path.write_bytes(a_model().SerializeToString())
    messages = parse_onnx(path).DESCRIPTOR.file.message_types_by_name
    for name, message in messages.items():
        if name == "Tensor":
            continue
        theirs = getattr(onnx, ONNX_NAMES[name]).DESCRIPTOR
        wanted = {
            one.name
            for one in theirs.fields
            if one.message_type and leads_to_tensor(one.message_type)
        }
        assert wanted <= set(message.fields_by_name), name


def test_parts_are_found_at_any_depth(tmp_path: Path) -> None:
    """Operators of branches and functions; values and indices of sparse constants."""
    path = tmp_path / "model.onnx"
    path.write_bytes(a_model().SerializeToString())
    model = parse_onnx(path)
    assert model.ir_version == 8
    nodes = sorted(node.op_type for node in onnx_parts(model, "Node"))
    assert nodes == ["Add", "Constant", "Constant", "If"]
    assert len(list(onnx_parts(model, "Tensor"))) == 1 + 2 * 2


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    """A part of a file, and a file that is absent."""
    path = tmp_path / "model.onnx"
    path.write_bytes(a_model().SerializeToString()[:-3])
    with pytest.raises(RepositoryError, match="not an ONNX model, or only a part"):
        parse_onnx(path)
    with pytest.raises(RepositoryError, match="cannot be read: No such file"):
        parse_onnx(tmp_path / "none.onnx")
