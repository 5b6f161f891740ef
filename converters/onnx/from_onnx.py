"""
Adopt an ONNX classifier that another tool exported.

Check it, and give its tensors the names that the server reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from converters.onnx.graph import OPSET, drop_unused, set_shape
from converters.onnx.two_classes import write_first_class
from tollgate.errors import ConversionError, InputError
from tollgate.repository.models.targets import OURS
from tollgate.schema import FEATURES, PROBABILITIES

LARGEST_EXTERNAL_BYTES = 1 << 30
_CONSTANTS_APART_IR = 4
_OLDEST_IR = 3


def read_onnx(path: Path) -> onnx.ModelProto:
    """
    Read a model with its external data, in a file format that our onnxruntime reads.

    Raises:
        InputError: It is no model, or stores data outside its folder or too much of it.
    """
    try:
        model = onnx.load_from_string(path.read_bytes())
    except DecodeError as error:
        raise InputError(path, "is no ONNX model, or is cut off") from error
    if not model.graph.node:
        raise InputError(path, "is an ONNX model without nodes, or is cut off")
    if not _OLDEST_IR <= model.ir_version <= onnx.IR_VERSION:
        raise InputError(
            path,
            f"is {model.ir_version}; the installed onnx {onnx.__version__} reads "
            f"{_OLDEST_IR} to {onnx.IR_VERSION}: export it again for one of those",
            where="ir_version",
        )
    folder = path.resolve().parent
    wanted = 0
    for tensor in _tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entry = {one.key: one.value for one in tensor.external_data}
        location = entry.get("location", "")
        target = (folder / location).resolve()
        if not location or not target.is_relative_to(folder):
            raise InputError(
                path, f"keeps {tensor.name!r} in {location!r}, outside its folder"
            )
        if not target.is_file():
            raise InputError(path, f"keeps {tensor.name!r} in {location!r}: missing")
        wanted += _external_bytes(path, entry, available=target.stat().st_size)
    if wanted > LARGEST_EXTERNAL_BYTES:
        raise InputError(
            path,
            f"has {wanted:,} bytes of external data; at most "
            f"{LARGEST_EXTERNAL_BYTES:,} are read",
        )
    if wanted:
        onnx.load_external_data_for_model(model, str(folder))
    # Newer file formats add types and devices that a classifier over float32 rows does
    # not need; a model that uses them fails its proof.
    model.ir_version = min(model.ir_version, OURS.ir)
    return model


def _external_bytes(path: Path, entry: dict[str, str], *, available: int) -> int:
    try:
        offset, length = int(entry.get("offset", 0)), int(entry.get("length", -1))
    except ValueError as error:
        raise InputError(path, f"external data is {entry}") from error
    length = available - offset if length < 0 else length
    if offset < 0 or length > LARGEST_EXTERNAL_BYTES or offset + length > available:
        raise InputError(
            path,
            f"external data {entry.get('location')!r}: {length:,} bytes from "
            f"{offset:,} on, of {available:,}; at most {LARGEST_EXTERNAL_BYTES:,}",
        )
    return length


def _tensors(graph: onnx.GraphProto) -> Iterator[Any]:
    """Yield every constant of a graph, including those inside nodes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for one in node.attribute:
            yield from (one.t, *one.tensors)
            for inner in (*one.graphs, one.g):
                yield from _tensors(inner)


def adopted(model: onnx.ModelProto, *, columns: int | None = None) -> bytes:
    """
    Normalise a classifier: one input, one output, no label, no ZipMap.

    Args:
        model: Model as `read_onnx` returns it.
        columns: Number of features, where the file does not say.

    Raises:
        ConversionError: It is not a classifier over float32 rows, or too new.
    """
    _refuse_too_new(model)
    graph = model.graph
    constants = {one.name for one in graph.initializer}
    inputs = [one for one in graph.input if one.name not in constants]
    if len(inputs) != 1:
        raise ConversionError(
            f"has {len(inputs)} inputs, {[one.name for one in inputs][:4]}; needed is "
            "one float32 tensor of all features"
        )
    tensor = inputs[0].type.tensor_type
    if tensor.elem_type != TensorProto.FLOAT:
        kind = TensorProto.DataType.Name(tensor.elem_type)
        raise ConversionError(f"input {inputs[0].name!r} is {kind}; must be FLOAT")
    dims = tensor.shape.dim
    found = dims[1].dim_value if len(dims) == 2 else 0
    if not (found or columns):
        raise ConversionError(
            f"does not say how many features {inputs[0].name!r} has; give a sample"
        )
    answer = _probability_output(graph)
    _drop_constant_inputs(model, used=inputs[0].name)
    tensor = graph.input[0].type.tensor_type
    _rename(graph, {graph.input[0].name: FEATURES, answer: PROBABILITIES})
    set_shape(tensor, columns=found or columns)
    del graph.output[:]
    graph.output.append(
        helper.make_tensor_value_info(PROBABILITIES, TensorProto.FLOAT, ["N", 2])
    )
    del graph.output[0].type.tensor_type.shape.dim[1:]
    graph.output[0].type.tensor_type.shape.dim.add()
    del graph.value_info[:]
    write_first_class(model)
    drop_unused(graph)
    if not any(one.domain == "" for one in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", OPSET))
    return bytes(model.SerializeToString(deterministic=True))


def with_first_class(model: bytes) -> bytes:
    """Turn the probability of class 1 alone, [N, 1], into both columns, [N, 2]."""
    found = onnx.load_from_string(model)
    graph = found.graph
    second = f"{PROBABILITIES}_second"
    taken = {one.name for one in graph.initializer}
    taken |= {name for node in graph.node for name in (*node.input, *node.output)}
    while second in taken:
        second += "_"
    _rename(graph, {PROBABILITIES: second})
    one, first = f"{second}_whole", f"{second}_first"
    graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), one))
    graph.node.extend(
        [
            helper.make_node("Sub", [one, second], [first]),
            helper.make_node("Concat", [first, second], [PROBABILITIES], axis=1),
        ]
    )
    return bytes(found.SerializeToString(deterministic=True))


def with_classes(model: bytes, *, classes: int) -> bytes:
    """Write the number of classes into the output's shape, and check the graph."""
    found = onnx.load_from_string(model)
    set_shape(found.graph.output[0].type.tensor_type, columns=classes)
    try:
        onnx.checker.check_model(found)
    except onnx.checker.ValidationError as error:
        message = str(error).splitlines()[0]
        raise ConversionError(f"the graph is not valid: {message}") from error
    return bytes(found.SerializeToString(deterministic=True))


def _refuse_too_new(model: onnx.ModelProto) -> None:
    for one in model.opset_import:
        domain = "" if one.domain == "ai.onnx" else one.domain
        if domain not in OURS.newest:
            raise ConversionError(
                f"uses operators of {one.domain!r}, which the server does not have"
            )
        if one.version > OURS.newest[domain]:
            raise ConversionError(
                f"has opset {one.version} of {domain or 'ai.onnx'}; onnxruntime "
                f"{OURS.onnxruntime} reads {OURS.newest[domain]}: export it again for "
                "that"
            )


def _probability_output(graph: onnx.GraphProto) -> str:
    """Return the output with a probability per class, before a ZipMap if any."""
    zipped = {
        node.output[0]: node.input[0] for node in graph.node if node.op_type == "ZipMap"
    }
    found = [
        zipped.get(one.name, one.name)
        for one in graph.output
        if one.name in zipped
        or (
            one.type.tensor_type.elem_type == TensorProto.FLOAT
            and len(one.type.tensor_type.shape.dim) in (0, 2)
        )
    ]
    if len(found) != 1:
        raise ConversionError(
            f"has outputs {[one.name for one in graph.output]}; needed is exactly one "
            "FLOAT output with a probability per class"
        )
    return str(found[0])


def _drop_constant_inputs(model: onnx.ModelProto, *, used: str) -> None:
    """Keep only the feature input: old exporters list constants as inputs too."""
    (only,) = (one for one in model.graph.input if one.name == used)
    features = onnx.ValueInfoProto()
    features.CopyFrom(only)
    del model.graph.input[:]
    model.graph.input.append(features)
    # Older formats require constants to be inputs.
    model.ir_version = max(model.ir_version, _CONSTANTS_APART_IR)


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    spare = {
        name: f"{name}_before"
        for name in names.values()
        if name in taken and name not in names
    }
    renamed = {**spare, **names}
    for node in graph.node:
        for side in (node.input, node.output):
            for at, name in enumerate(side):
                side[at] = renamed.get(name, name)
    for one in (*graph.input, *graph.initializer):
        one.name = renamed.get(one.name, one.name)
