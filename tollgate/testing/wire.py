"""Decode requests and encode responses as Triton does."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from tollgate.schema import ANSWER_TYPES, MAX_BATCH_ROWS, REASON_SEPARATOR
from tollgate.testing.script import Answer

_LENGTH = struct.Struct("<I")
_NUMPY = {"FP64": "<f8", "INT64": "<i8"}
_TYPED = {
    "BYTES": "bytes_contents",
    "FP64": "fp64_contents",
    "INT64": "int64_contents",
}
_TEXTS = ("decision", "reason_codes", "error", "release")
_NUMBERS = {"score": "<f4", "degraded": "<u4"}

Column = list[bytes] | npt.NDArray[Any]


class Refused(Exception):
    """A request that Triton refuses before any step sees it."""


def columns_of(
    request: service_pb2.ModelInferRequest,
    *,
    inputs: Mapping[str, str],
    fields: Mapping[str, str],
) -> dict[str, Column]:
    """
    Read the tensors of a request, raw or typed.

    Args:
        request: As received.
        inputs: Required inputs: name -> type.
        fields: Optional inputs.

    Raises:
        Refused: An input is missing, unknown, twice, of another type or shape, or of
            more than 32 rows.
    """
    known = {**inputs, **fields}
    sent = {tensor.name: tensor for tensor in request.inputs}
    wrong = [name for name in sent if name not in known]
    missing = [name for name in inputs if name not in sent]
    if wrong or missing or len(sent) != len(request.inputs):
        raise Refused(
            f"expected {len(inputs)} inputs but got {len(request.inputs)}; "
            f"missing {missing}, unknown {wrong}"
        )
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise Refused("expected a raw tensor for each input")
    columns = {}
    for place, tensor in enumerate(request.inputs):
        _check(tensor, kind=known[tensor.name])
        content = raw[place] if raw else None
        columns[tensor.name] = _column(tensor, content)
    if len({len(column) for column in columns.values()}) > 1:
        raise Refused("inputs have different numbers of rows")
    return columns


def _check(tensor: Any, *, kind: str) -> None:
    if tensor.datatype != kind:
        raise Refused(
            f"input '{tensor.name}' is {tensor.datatype}, the model expects {kind}"
        )
    shape = list(tensor.shape)
    if len(shape) != 2 or shape[1] != 1 or shape[0] < 1:
        raise Refused(f"unexpected shape {shape} for input '{tensor.name}'")
    if shape[0] > MAX_BATCH_ROWS:
        raise Refused(f"batch-size must be <= {MAX_BATCH_ROWS}")


def _column(tensor: Any, raw: bytes | None) -> Column:
    rows, kind = int(tensor.shape[0]), tensor.datatype
    column: Column
    if raw is None:
        typed = getattr(tensor.contents, _TYPED[kind])
        column = list(typed) if kind == "BYTES" else np.array(typed, _NUMPY[kind])
    elif kind == "BYTES":
        column = _texts(raw, name=tensor.name)
    elif len(raw) != rows * 8:
        raise Refused(f"input '{tensor.name}': {len(raw)} bytes for {rows} rows")
    else:
        column = np.frombuffer(raw, _NUMPY[kind])
    if len(column) != rows:
        raise Refused(f"input '{tensor.name}': {len(column)} values for {rows} rows")
    return column


def _texts(raw: bytes, *, name: str) -> list[bytes]:
    texts, offset = [], 0
    while offset < len(raw):
        try:
            (length,) = _LENGTH.unpack_from(raw, offset)
        except struct.error as error:
            raise Refused(f"input '{name}': incomplete string length") from error
        offset += _LENGTH.size + length
        if offset > len(raw):
            raise Refused(f"input '{name}': incomplete string data")
        texts.append(raw[offset - length : offset])
    return texts


def response_of(
    answers: Sequence[Answer], request: service_pb2.ModelInferRequest
) -> service_pb2.ModelInferResponse:
    """Encode answers in the order of the rows; a bad one has its error only."""
    rows: dict[str, list[Any]] = {
        "decision": ["" if one.error else one.decision for one in answers],
        "score": [float("nan") if one.error else one.score for one in answers],
        "reason_codes": [
            "" if one.error else REASON_SEPARATOR.join(one.reason_codes)
            for one in answers
        ],
        "degraded": [0 if one.error else one.degraded for one in answers],
        "error": [one.error for one in answers],
        "release": [one.release for one in answers],
    }
    response = service_pb2.ModelInferResponse(
        model_name=request.model_name, model_version="1", id=request.id
    )
    wanted = [output.name for output in request.outputs] or list(ANSWER_TYPES)
    for name in wanted:
        response.outputs.add(
            name=name, datatype=wire_type(name), shape=(len(answers), 1)
        )
        response.raw_output_contents.append(
            b"".join(map(_written, rows[name]))
            if name in _TEXTS
            else np.array(rows[name], _NUMBERS[name]).tobytes()
        )
    return response


def wire_type(output: str) -> str:
    """Return the type of an output on the wire."""
    kind = ANSWER_TYPES[output].removeprefix("TYPE_")
    return "BYTES" if kind == "STRING" else kind


def _written(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded
