"""
Read and write KServe's inference protocol, version 2, over REST.

https://github.com/kserve/open-inference-protocol, inference_rest.md. Tensors are JSON;
the extension for binary tensors is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from tollgate.door.json_rows import read_json
from tollgate.door.products import DoorProduct
from tollgate.door.refusal import Refusal
from tollgate.schema import (
    ANSWER_TYPES,
    DEADLINE_US,
    DRY_RUN,
    REASON_SEPARATOR,
)
from tollgate_client import InvalidRequest, Outcome

MOST_DEADLINE_US = 60_000_000
SOURCE = "source"
# Outputs of the contract, and the source of each row's decision, which is the door's.
_KINDS = {"TYPE_STRING": "BYTES", "TYPE_FP32": "FP32", "TYPE_UINT32": "UINT32"}
OUTPUTS = {name: _KINDS[kind] for name, kind in ANSWER_TYPES.items()}
OUTPUTS[SOURCE] = "BYTES"
_PARAMETERS = (DRY_RUN, DEADLINE_US)
_NOT_BINARY = {"binary_data": False}  # Triton's client says so of each output


class Tensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input, or one output."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]
    parameters: dict[str, Any] = {}


class _Wanted(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Any] = {}


class _Body(msgspec.Struct, frozen=True):
    inputs: list[Tensor]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Wanted] = []


class InferenceRequest(msgspec.Struct, frozen=True):
    """
    A request to decide rows.

    Attributes:
        id: The caller's name of the request.
        rows: Field -> value of each row.
        outputs: Names of the outputs to send.
        dry_run: Decide without side effects.
        deadline_s: Time left for the answer; None for the door's default.
    """

    id: str
    rows: list[dict[str, Any]]
    outputs: list[str]
    dry_run: bool
    deadline_s: float | None


class InferenceResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer: one value of each output per row."""

    model_name: str
    outputs: list[Tensor]
    id: str = ""


def read_inference(body: bytes, product: DoorProduct, *, most: int) -> InferenceRequest:
    """
    Read a request.

    Args:
        most: Maximum number of rows.

    Raises:
        Refusal: It is not JSON, or does not fit the product; the text names the tensor.
    """
    try:
        request = msgspec.convert(read_json(body), _Body)
    except msgspec.ValidationError as error:
        raise Refusal(400, str(error)) from error
    columns = _columns(request.inputs, product, most=most)
    dry_run, deadline_s = _parameters(request.parameters)
    for one in request.outputs:
        if one.name not in OUTPUTS:
            known = _list(OUTPUTS)
            raise Refusal(400, f"output {one.name}: unknown; known are {known}")
        if one.parameters not in ({}, _NOT_BINARY):
            raise Refusal(400, f"output {one.name}: parameters are not supported")
    names = [one.name for one in request.outputs] or list(OUTPUTS)
    rows = [
        dict(zip(columns, values, strict=True))
        for values in zip(*columns.values(), strict=True)
    ]
    return InferenceRequest(request.id, rows, names, dry_run, deadline_s)


def write_inference(
    request: InferenceRequest,
    outcomes: Sequence[Outcome],
    *,
    product: DoorProduct,
) -> InferenceResponse:
    """Write the outcomes of all rows, one tensor [N, 1] for each wanted output."""
    shape = [len(outcomes), 1]
    rows = [_values(outcome) for outcome in outcomes]
    return InferenceResponse(
        model_name=product.name,
        id=request.id,
        outputs=[
            Tensor(name, OUTPUTS[name], shape, [row[name] for row in rows])
            for name in request.outputs
        ],
    )


def metadata(product: DoorProduct) -> dict[str, Any]:
    """Describe the product's inputs and outputs, as KServe's model metadata."""
    return {
        "name": product.name,
        "platform": "tollgate",
        "inputs": [_described(name, kind) for name, kind in product.kinds.items()],
        "outputs": [_described(name, kind) for name, kind in OUTPUTS.items()],
    }


def _described(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": [-1, 1]}


def _columns(
    tensors: Sequence[Tensor], product: DoorProduct, *, most: int
) -> dict[str, list[Any]]:
    """Check the tensors against the product; return one value per row for each."""
    kinds = product.kinds
    columns: dict[str, list[Any]] = {}
    count = None
    for tensor in tensors:
        name = tensor.name
        if name not in kinds:
            raise Refusal(400, f"input {name}: unknown; known are {_list(kinds)}")
        if name in columns:
            raise Refusal(400, f"input {name}: appears twice")
        if tensor.datatype != kinds[name]:
            raise Refusal(400, f"input {name}: is {tensor.datatype}, not {kinds[name]}")
        if tensor.parameters:
            raise Refusal(400, f"input {name}: parameters are not supported")
        rows = tensor.shape[0] if tensor.shape else 0
        if tensor.shape not in ([rows], [rows, 1]) or not 1 <= rows <= most:
            problem = f"input {name}: shape is {tensor.shape}, not [N, 1] with N from"
            raise Refusal(400, f"{problem} 1 to {most}")
        if count is not None and rows != count:
            first = next(iter(columns))
            raise Refusal(400, f"input {name}: {rows} rows, but {first} has {count}")
        count = rows
        columns[name] = _flat(tensor)
    for name in product.inputs:
        if name not in columns:
            problem = f"input {name}: missing; needed are {_list(product.inputs)}"
            raise Refusal(400, problem)
    return columns


def _flat(tensor: Tensor) -> list[Any]:
    """Return one value per row: `data` is flat, or nested as the shape is."""
    data = tensor.data
    if len(tensor.shape) == 2 and data and isinstance(data[0], list):
        for row, values in enumerate(data):
            if not isinstance(values, list) or len(values) != 1:
                problem = f"input {tensor.name}: row {row} of data is not one value"
                raise Refusal(400, problem)
        data = [values[0] for values in data]
    if len(data) != tensor.shape[0]:
        problem = f"input {tensor.name}: {len(data)} values for shape {tensor.shape}"
        raise Refusal(400, problem)
    return data


def _parameters(given: dict[str, Any]) -> tuple[bool, float | None]:
    for name in given:
        if name not in _PARAMETERS:
            problem = f"parameter {name}: unknown; known are {_list(_PARAMETERS)}"
            raise Refusal(400, problem)
    dry_run, deadline_us = given.get(DRY_RUN, False), given.get(DEADLINE_US)
    if not isinstance(dry_run, bool):
        raise Refusal(400, f"parameter {DRY_RUN}: {dry_run!r:.40} is not true or false")
    if deadline_us is None:
        return dry_run, None
    if type(deadline_us) is not int or not 0 < deadline_us <= MOST_DEADLINE_US:
        problem = f"{deadline_us!r:.40} is not an integer above 0 and up to"
        raise Refusal(400, f"parameter {DEADLINE_US}: {problem} {MOST_DEADLINE_US}")
    return dry_run, deadline_us / 1e6


def _values(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, InvalidRequest):
        return {
            "decision": "",
            "score": None,
            "reason_codes": "",
            "degraded": 0,
            "error": str(outcome),
            "release": "",
            SOURCE: "",
        }
    return {
        "decision": outcome.decision,
        "score": None if math.isnan(outcome.score) else outcome.score,
        "reason_codes": REASON_SEPARATOR.join(outcome.reason_codes),
        "degraded": outcome.degraded,
        "error": "",
        "release": outcome.release,
        SOURCE: outcome.source,
    }


def _list(names: Sequence[str] | dict[str, str]) -> str:
    return ", ".join(names)
