"""Decode tensors of inference requests, and encode those of answers, as Triton does."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from tollgate.schema import DEADLINE_US, DRY_RUN, MAX_BATCH_ROWS

_LENGTH = struct.Struct("<I")
_NUMPY = {"FP64": "<f8", "INT64": "<i8"}
_TYPED = {
    "BYTES": "bytes_contents",
    "FP64": "fp64_contents",
    "INT64": "int64_contents",
}

_NUMBERS = {"FP32": "<f4", "UINT32": "<u4"}

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
        inputs: Required inputs: name -> type.

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


def parameters_of(request: Any) -> dict[str, Any]:
    """Read the parameters of a request."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in request.parameters.items()
    }


def wire_type(kind: str) -> str:
    """Return a type of a configuration as it is on the wire."""
    kind = kind.removeprefix("TYPE_")
    return "BYTES" if kind == "STRING" else kind


def encode_column(values: Sequence[Any] | npt.NDArray[Any], *, kind: str) -> bytes:
    """Encode an output: texts or bytes of BYTES, numbers of FP32 and UINT32."""
    if kind != "BYTES":
        return np.asarray(values, _NUMBERS[kind]).tobytes()
    texts = [one.encode() if isinstance(one, str) else one for one in values]
    return b"".join([_LENGTH.pack(len(one)) + one for one in texts])


def parameter_error(parameters: Mapping[str, Any]) -> str:
    """Return the error in the parameters, as the feature step does."""
    dry, left_us = parameters.get(DRY_RUN, False), parameters.get(DEADLINE_US, 1)
    if not isinstance(dry, bool):
        return f"{DRY_RUN}: {dry!r:.40}: is neither true nor false"
    if isinstance(left_us, bool) or not isinstance(left_us, int):
        return f"{DEADLINE_US}: {left_us!r:.40}: is not whole microseconds"
    return f"{DEADLINE_US}: no time left" if left_us <= 0 else ""


def all_refused(product: str, errors: Sequence[str]) -> str:
    """Return the message of a request whose rows are all bad."""
    lines = [f"row {row}: {error}" for row, error in enumerate(errors)]
    return f"in ensemble '{product}', " + "\n".join(lines)
