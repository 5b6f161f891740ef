"""
Refuse a model.onnx that stores its weights in other files.

ONNX may name any path for them, also outside of the folder, and no checksum covers
those files. The check runs before onnxruntime opens anything.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tollgate.errors import RepositoryError

# Field numbers of onnx.proto on every path from a model to a tensor, and from there to
# `external_data`. All of them are read as repeated, so nothing can hide.
_WAYS = {
    "Model": {7: "Graph", 25: "Function"},
    "Function": {7: "Node"},
    "Graph": {1: "Node", 5: "Tensor", 15: "Sparse"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor",
        6: "Graph",
        10: "Tensor",
        11: "Graph",
        22: "Sparse",
        23: "Sparse",
    },
    "Sparse": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
    "Entry": {},
}
_KEY, _VALUE = 1, 2  # field numbers of an Entry
_MAX_BYTES = 2**31 - 1  # protobuf's own limit of one message


def require_whole(model: Path) -> None:
    """
    Check that a model is one file.

    Args:
        model: The model.onnx.

    Raises:
        RepositoryError: It cannot be read, is no ONNX file, or names other files.
    """
    try:
        if model.stat().st_size > _MAX_BYTES:
            raise RepositoryError(model, "is over 2 GiB, which no ONNX file can be")
        parsed = _message_class()()
        parsed.ParseFromString(model.read_bytes())
    except OSError as exc:
        raise RepositoryError(model, f"cannot be read: {exc.strerror}") from exc
    except DecodeError as exc:
        problem = "is not an ONNX model, or only a part of one"
        raise RepositoryError(model, problem) from exc
    if place := _first_external(parsed, kind="Model"):
        raise RepositoryError(
            model,
            f"keeps weights in another file ({place}), which no checksum covers; "
            "save it as one file",
        )


def _first_external(message: Any, *, kind: str) -> str:
    """Return the first file that a message refers to; empty if there is none."""
    for number, inner in _WAYS[kind].items():
        found = getattr(message, f"field_{number}")
        if inner == "Entry":
            named = {entry.field_1: entry.field_2 for entry in found}
            if named:
                return str(named.get(b"location", b"").decode("utf-8", "replace"))
            continue
        for one in found:
            if place := _first_external(one, kind=inner):
                return place
    return ""


@cache
def _message_class() -> Any:
    """Declare the required part of onnx.proto; the onnx package is not needed."""
    file = descriptor_pb2.FileDescriptorProto(name="ways.proto", package="ways")
    kinds = descriptor_pb2.FieldDescriptorProto
    for kind, ways in _WAYS.items():
        message = file.message_type.add(name=kind)
        for number, inner in ways.items():
            message.field.add(
                name=f"field_{number}",
                number=number,
                label=kinds.LABEL_REPEATED,
                type=kinds.TYPE_MESSAGE,
                type_name=f".ways.{inner}",
            )
        for number in (_KEY, _VALUE) if kind == "Entry" else ():
            message.field.add(
                name=f"field_{number}",
                number=number,
                label=kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_BYTES,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ways.Model"))
