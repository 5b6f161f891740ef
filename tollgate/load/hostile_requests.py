"""
Generate invalid requests: every part of a ModelInferRequest, mutated.

All are made with google.protobuf or by hand, never with the gateway's own rules. The
same seed gives the same requests.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2

from tollgate.errors import ServerError
from tollgate.load.bodies import frame

_GRPC_STATUS = re.compile(r"recv \(stream_id=\d+\) grpc-status: (\d+)")  # of nghttp
SERVICE = "/inference.GRPCInferenceService/"
HEALTH = "/grpc.health.v1.Health/Check"
MODEL_INFER = f"{SERVICE}ModelInfer"

_INTEGERS = (
    *(0, 1, -1, 2, 5, 31, 32, 33, 127, 128, 255, 256, 1000, 65_536, 10**6),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1),
    *(-2, -32, -(2**31), -(2**32), -(2**63)),
)
_TEXTS = ("", "1", "-1", "true", "x", "\0", "é", '"', "{}", "../x", "%n%s", "a" * 5000)
_DATATYPES = (
    *("BYTES", "FP64", "INT64", "BOOL", "UINT8", "UINT64", "FP16", "BF16", "FP32"),
    *("STRING", "TYPE_STRING", "", "bytes", "INVALID", "x" * 3000, "\0"),
)
_TENSOR_PARAMETERS = (
    *("classification", "shared_memory_region", "shared_memory_byte_size"),
    *("shared_memory_offset", "binary_data", "binary_data_size", "x", ""),
)
_REQUEST_PARAMETERS = (
    *("sequence_id", "sequence_start", "sequence_end", "priority", "timeout"),
    *("headers", "triton_enable_empty_final_response", "triton_final_response"),
    *(
        "triton_x",
        "deadline_us",
        "dry_run",
        "store_deadline_ms",
        "binary_data_output",
        "max_tokens",
        "x",
    ),
    *("tollgate-arrived", "traceparent", ""),
)
_CONTENTS = (
    *("bool_contents", "int_contents", "int64_contents", "uint_contents"),
    *("uint64_contents", "fp32_contents", "fp64_contents", "bytes_contents"),
)
_MODELS = (
    *("fraud_features", "fraud_model", "fraud_decision", "credit", "unknown", ""),
    *("fraud\0", "fraud ", "Fraud", "../fraud", "fraud/1", "x" * 5000),
)
_VERSIONS = ("1", "2", "0", "-1", "999", "abc", "1.0", str(2**63), "9" * 400)
_OUTPUTS = ("decision", "score", "reason_codes", "degraded", "error", "release")

Request = Any  # a ModelInferRequest
Mutation = Callable[[random.Random, Request], "bytes | Message"]


class Hostile(msgspec.Struct, frozen=True):
    """
    One request.

    Attributes:
        body: Bytes after the HTTP headers, gRPC's frames included.
        path: Path of the gRPC method.
    """

    kind: str
    body: bytes
    path: str = MODEL_INFER


def good_request(rows: int, *, tag: str) -> Request:
    """Write a request that the fraud product answers; `tag` makes its ids unique."""
    now_us = time.time_ns() // 1000
    request = service_pb2.ModelInferRequest(model_name="fraud")
    ids = [f"{tag}-{row}".encode() for row in range(rows)]
    for name, datatype, raw in (
        ("transaction_id", "BYTES", _texts(ids)),
        ("customer_id", "BYTES", _texts([b"customer"] * rows)),
        ("terminal_id", "BYTES", _texts([b"terminal"] * rows)),
        ("amount", "FP64", struct.pack(f"<{rows}d", *[12.5] * rows)),
        ("event_time", "INT64", struct.pack(f"<{rows}q", *[now_us] * rows)),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=[rows, 1])
        request.raw_input_contents.append(raw)
    request.parameters["deadline_us"].int64_param = 5_000_000
    return request


def hostile_requests(seed: int) -> Iterator[Hostile]:
    """Yield requests without end: in turn each kind, a bad framing, a bad method."""
    rng = random.Random(seed)
    number = 0
    while True:
        for kind, mutation in MUTATIONS.items():
            number += 1
            rows = rng.choice((1, 1, 1, 2, 32))
            request = good_request(rows, tag=f"hostile-{seed}-{number}")
            made = mutation(rng, request)
            yield Hostile(kind, frame(_bytes(made)))
        kind = rng.choice(sorted(FRAMINGS))
        request = good_request(1, tag=f"hostile-{seed}-{number}-framed")
        yield Hostile(kind, FRAMINGS[kind](rng, _bytes(request)))
        yield Hostile("other_method", *_other_method(rng))


def _bytes(made: bytes | Message) -> bytes:
    return made if isinstance(made, bytes) else made.SerializeToString()


def _texts(values: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def _set_parameter(rng: random.Random, parameter: Message) -> None:
    """Set a parameter to a value of any type, or to none."""
    kind = rng.choice(("bool", "int64", "int64", "string", "double", "uint64", ""))
    if kind == "bool":
        parameter.bool_param = rng.random() < 0.5
    elif kind == "int64":
        parameter.int64_param = rng.choice(_INTEGERS)
    elif kind == "string":
        parameter.string_param = rng.choice(_TEXTS)
    elif kind == "double":
        number = rng.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
        parameter.double_param = number
    elif kind == "uint64":
        number = abs(rng.choice(_INTEGERS))
        parameter.uint64_param = number


# The parts of a request --------------------------------------------------------------


def _classification(rng: random.Random, request: Request) -> Request:
    for name in rng.sample(_OUTPUTS, rng.randint(1, len(_OUTPUTS))):
        output = request.outputs.add(name=name)
        output.parameters["classification"].int64_param = rng.choice(_INTEGERS)
    return request


def _output_parameter(rng: random.Random, request: Request) -> Request:
    for name in rng.sample((*_OUTPUTS, "x", ""), rng.randint(1, 4)):
        output = request.outputs.add(name=name)
        for key in rng.sample(_TENSOR_PARAMETERS, rng.randint(1, 4)):
            _set_parameter(rng, output.parameters[key])
    return request


def _input_parameter(rng: random.Random, request: Request) -> Request:
    for tensor in rng.sample(list(request.inputs), rng.randint(1, 3)):
        for key in rng.sample(_TENSOR_PARAMETERS, rng.randint(1, 4)):
            _set_parameter(rng, tensor.parameters[key])
    if rng.random() < 0.3:
        del request.raw_input_contents[:]
    return request


def _shared_memory(rng: random.Random, request: Request) -> Request:
    tensors = [*request.inputs, *(request.outputs.add(name=one) for one in _OUTPUTS)]
    for tensor in rng.sample(tensors, rng.randint(1, 4)):
        tensor.parameters["shared_memory_region"].string_param = rng.choice(_TEXTS)
        if rng.random() < 0.8:
            number = rng.choice(_INTEGERS)
            tensor.parameters["shared_memory_byte_size"].int64_param = number
        if rng.random() < 0.5:
            number = rng.choice(_INTEGERS)
            tensor.parameters["shared_memory_offset"].int64_param = number
    return request


def _fill(rng: random.Random, contents: Message, field: str, count: int) -> None:
    values: list[object]
    if field == "bool_contents":
        values = [True] * count
    elif field == "bytes_contents":
        values = [rng.choice((b"", b"x", b"\xff" * 200)) for _ in range(count)]
    elif field.startswith("fp"):
        values = [rng.choice((0.0, -1.0, float("nan"))) for _ in range(count)]
    else:
        values = [rng.choice((0, 1, 2**31 - 1)) for _ in range(count)]
    getattr(contents, field).extend(values)


def _typed(rng: random.Random, request: Request, *, keep_raw: float) -> Request:
    for tensor in rng.sample(list(request.inputs), rng.randint(1, 5)):
        for field in rng.sample(_CONTENTS, rng.choice((1, 1, 2, 8))):
            count = rng.choice((0, 1, 1, 2, 31, 33, 3000))
            _fill(rng, tensor.contents, field, count)
    if rng.random() >= keep_raw:
        del request.raw_input_contents[:]
    return request


def _raw_and_typed(rng: random.Random, request: Request) -> Request:
    return _typed(rng, request, keep_raw=1.0)


def _typed_only(rng: random.Random, request: Request) -> Request:
    return _typed(rng, request, keep_raw=0.0)


def _raw_contents(rng: random.Random, request: Request) -> Request:
    raw = list(request.raw_input_contents)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw)) if raw else 0
        how = rng.randrange(6)
        if how == 0 and raw:
            del raw[at]
        elif how == 1:
            raw.insert(at, rng.choice(raw) if raw else b"")
        elif how == 2 and raw:
            raw[at] = raw[at][: rng.randrange(len(raw[at]) + 1)]
        elif how == 3 and raw:
            raw[at] += rng.randbytes(rng.choice((1, 3, 4, 8, 5000)))
        elif how == 4 and raw:
            length = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1, 5000)))
            raw[at] = length + raw[at][4:]
        else:
            rng.shuffle(raw)
    del request.raw_input_contents[:]
    request.raw_input_contents.extend(raw)
    return request


def _shape(rng: random.Random, request: Request) -> Request:
    tensors = list(request.inputs)
    if rng.random() < 0.7:
        tensors = rng.sample(tensors, rng.randint(1, 2))
    dims = [rng.choice(_INTEGERS) for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 9)))]
    if rng.random() < 0.1:
        dims = [1] * rng.choice((100, 10_000))
    for tensor in tensors:
        del tensor.shape[:]
        tensor.shape.extend(dims)
    if rng.random() < 0.2:
        for at in range(len(request.raw_input_contents)):
            request.raw_input_contents[at] = b""
    return request


def _datatype(rng: random.Random, request: Request) -> Request:
    for tensor in rng.sample(list(request.inputs), rng.randint(1, 2)):
        tensor.datatype = rng.choice(_DATATYPES)
    return request


def _duplicate(rng: random.Random, request: Request) -> Request:
    for _ in range(rng.choice((1, 1, 2, 40))):
        if rng.random() < 0.5:
            at = rng.randrange(len(request.inputs))
            request.inputs.add().CopyFrom(request.inputs[at])
            if rng.random() < 0.7:
                raw = request.raw_input_contents[at % len(request.raw_input_contents)]
                request.raw_input_contents.append(raw)
        else:
            name = rng.choice(_OUTPUTS)
            request.outputs.add(name=name)
            request.outputs.add(name=name)
    return request


def _tensor_names(rng: random.Random, request: Request) -> Request:
    how = rng.randrange(4)
    if how == 0:
        rng.choice(request.inputs).name = rng.choice(_TEXTS)
    elif how == 1:
        request.outputs.add(name=rng.choice(_TEXTS))
    elif how == 2:
        del request.inputs[rng.randrange(len(request.inputs))]
    else:
        del request.inputs[:]
        if rng.random() < 0.5:
            del request.raw_input_contents[:]
    return request


def _model_name(rng: random.Random, request: Request) -> Request:
    request.model_name = rng.choice(_MODELS)
    return request


def _inner_step(rng: random.Random, request: Request) -> Request:
    """Call a step of the ensemble with the tensors that it expects."""
    rows = rng.choice((1, 2, 32))
    del request.inputs[:]
    del request.raw_input_contents[:]
    request.model_name = rng.choice(("fraud_model", "fraud_decision"))
    width = rng.choice((0, 1, 15, 64))
    request.inputs.add(name="features", datatype="FP32", shape=[rows, width])
    request.raw_input_contents.append(bytes(4 * rows * width))
    if request.model_name == "fraud_decision":
        request.inputs.add(name="probabilities", datatype="FP32", shape=[rows, 2])
        request.raw_input_contents.append(struct.pack("<2f", 1.0, 0.0) * rows)
        length = rng.choice((0, 1, 16, 200))
        contexts = [rng.randbytes(length) for _ in range(rows)]
        request.inputs.add(name="context", datatype="BYTES", shape=[rows, 1])
        request.raw_input_contents.append(_texts(contexts))
    return request


def _request_parameter(rng: random.Random, request: Request) -> Request:
    for key in rng.sample(_REQUEST_PARAMETERS, rng.randint(1, 4)):
        _set_parameter(rng, request.parameters[key])
    if rng.random() < 0.05:
        for number in range(2000):
            request.parameters[f"p{number}"].bool_param = True
    return request


def _model_version(rng: random.Random, request: Request) -> Request:
    request.model_version = rng.choice(_VERSIONS)
    return request


def _id(rng: random.Random, request: Request) -> Request:
    request.id = rng.choice((*_TEXTS, "x" * 100_000))
    return request


# The bytes ----------------------------------------------------------------------------


def _varint(number: int, *, length: int = 0) -> bytes:
    """Write a varint; longer than it needs to be where `length` says so."""
    made = bytearray()
    while number > 0x7F or len(made) + 1 < length:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _truncated(rng: random.Random, request: Request) -> bytes:
    whole = _bytes(request)
    return whole[: rng.randrange(len(whole))]


def _mutated(rng: random.Random, request: Request) -> bytes:
    whole = bytearray(_bytes(request))
    for _ in range(rng.choice((1, 1, 2, 5, 50))):
        at = rng.randrange(len(whole))
        how = rng.randrange(3)
        if how == 0:
            whole[at] = rng.randrange(256)
        elif how == 1:
            whole[at] ^= 1 << rng.randrange(8)
        else:
            end = min(len(whole), at + rng.randrange(1, 20))
            whole[at:end] = rng.randbytes(rng.randrange(20))
            if not whole:
                return b""
    return bytes(whole)


def _length_lie(rng: random.Random, request: Request) -> bytes:
    """Write a wrong length for one part of the message."""
    part = rng.choice(("inputs", "outputs", "raw_input_contents", "parameters"))
    number = {"inputs": 5, "outputs": 6, "raw_input_contents": 7, "parameters": 4}
    payload = rng.choice((b"", b"\x0a\x03abc", rng.randbytes(20)))
    claimed = rng.choice((0, 1, len(payload) + 1, 2**20, 2**31, 2**32, 2**63, 2**64))
    tag = _varint(number[part] << 3 | 2)
    lie = tag + _varint(claimed) + payload
    whole = _bytes(request)
    return whole + lie if rng.random() < 0.5 else lie + whole


def _long_varint(rng: random.Random, request: Request) -> bytes:
    """Write tags, lengths and numbers with more bytes than a varint may have."""
    long = _varint(
        rng.choice((0, 1, 2**32 + 10, 2**64 - 1)), length=rng.choice((5, 10))
    )
    kinds = (
        _varint(1 << 3 | 2, length=rng.choice((2, 5, 10))) + b"\x05fraud",
        b"\xff" * rng.choice((9, 10, 11, 200)) + b"\x01",
        _varint(5 << 3 | 2) + long,
        _varint(9 << 3) + long,
        _varint((1 << 32) | 1 << 3 | 2) + b"\x05fraud",
    )
    return _bytes(request) + rng.choice(kinds)


def _unknown_field(rng: random.Random, request: Request) -> bytes:
    """Add fields that the message does not have, of every wire type, and groups."""
    field = rng.choice((0, 8, 15, 16, 99, 2**29 - 1))
    wire = rng.randrange(8)
    payload = {
        0: _varint(7),
        1: bytes(8),
        2: b"\x03abc",
        3: _varint(field << 3 | 4),
        5: bytes(4),
    }.get(wire, b"")
    made = _varint(field << 3 | wire) + payload
    if rng.random() < 0.2:
        depth = rng.choice((50, 99, 101, 5000))
        start, end = _varint(99 << 3 | 3), _varint(99 << 3 | 4)
        made = start * depth + end * rng.choice((0, depth))
    elif rng.random() < 0.3:
        made *= rng.choice((100, 5000))
    return _bytes(request) + made


def _twice(rng: random.Random, request: Request) -> bytes:
    """Repeat a field, so that parsers disagree about which one counts."""
    other = service_pb2.ModelInferRequest()
    how = rng.randrange(4)
    if how == 0:
        other.model_name = rng.choice(_MODELS)
    elif how == 1:
        other.model_version = rng.choice(_VERSIONS)
    elif how == 2:
        other = _classification(rng, service_pb2.ModelInferRequest())
    else:
        other = good_request(1, tag="twice")
    parts = [_bytes(other), _bytes(request)]
    rng.shuffle(parts)
    return b"".join(parts)


def _typed_packing(rng: random.Random, request: Request) -> bytes:
    """Write shapes and numbers one by one instead of packed, or both ways."""
    tensor = b"\x0a\x06amount\x12\x04FP64" + b"\x18\x01" * rng.choice((1, 2, 3))
    if rng.random() < 0.5:
        tensor += b"\x1a\x02\x01\x01"
    contents = b"\x39" + bytes(8) if rng.random() < 0.5 else b"\x3a\x05" + bytes(5)
    tensor += b"\x2a" + _varint(len(contents)) + contents
    return _bytes(request) + b"\x2a" + _varint(len(tensor)) + tensor


MUTATIONS: dict[str, Mutation] = {
    "classification": _classification,
    "output_parameter": _output_parameter,
    "input_parameter": _input_parameter,
    "shared_memory": _shared_memory,
    "raw_and_typed": _raw_and_typed,
    "typed_only": _typed_only,
    "raw_contents": _raw_contents,
    "shape": _shape,
    "datatype": _datatype,
    "duplicate": _duplicate,
    "tensor_names": _tensor_names,
    "model_name": _model_name,
    "inner_step": _inner_step,
    "request_parameter": _request_parameter,
    "model_version": _model_version,
    "id": _id,
    "truncated": _truncated,
    "mutated": _mutated,
    "length_lie": _length_lie,
    "long_varint": _long_varint,
    "unknown_field": _unknown_field,
    "twice": _twice,
    "typed_packing": _typed_packing,
}


# gRPC's frames ------------------------------------------------------------------------


def _frame_length(rng: random.Random, message: bytes) -> bytes:
    claimed = rng.choice((0, 1, len(message) - 1, len(message) + 1, 2**31, 2**32 - 1))
    return struct.pack(">BI", 0, claimed) + message


def _frame_flag(rng: random.Random, message: bytes) -> bytes:
    return bytes([rng.choice((1, 2, 128, 255))]) + frame(message)[1:]


def _several_frames(rng: random.Random, message: bytes) -> bytes:
    return frame(message) * rng.choice((2, 2, 3, 20))


def _frame_tail(rng: random.Random, message: bytes) -> bytes:
    return frame(message) + rng.randbytes(rng.choice((1, 4, 5, 100)))


def _frame_cut(rng: random.Random, message: bytes) -> bytes:
    return frame(message)[: rng.randrange(20)]


FRAMINGS: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "frame_length": _frame_length,
    "frame_flag": _frame_flag,
    "several_frames": _several_frames,
    "frame_tail": _frame_tail,
    "frame_cut": _frame_cut,
}


def _other_method(rng: random.Random) -> tuple[bytes, str]:
    """Call health or metadata with another message than theirs."""
    path = rng.choice(
        (
            *(f"{SERVICE}ServerLive", f"{SERVICE}ServerReady", HEALTH),
            *(f"{SERVICE}ServerMetadata", f"{SERVICE}ModelReady"),
            f"{SERVICE}ModelMetadata",
        )
    )
    messages: tuple[bytes | Message, ...] = (
        service_pb2.ModelReadyRequest(name=rng.choice(_MODELS)),
        service_pb2.ModelReadyRequest(name="fraud", version=rng.choice(_VERSIONS)),
        rng.randbytes(rng.choice((1, 10, 1000))),
        good_request(1, tag="other"),
    )
    return frame(_bytes(rng.choice(messages))), path


async def post(
    address: str, one: Hostile, *, key: str, folder: Path
) -> tuple[str, str]:
    """Post a body with any frames (nghttp); return name and message of the status."""
    handle, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(one.body)
        process = await asyncio.create_subprocess_exec(
            *("nghttp", "-nv", "-t", "20", "-d", name, f"https://{address}{one.path}"),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            *("-H", f"authorization: Bearer {key}"),
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        text = re.sub(r"\x1b\[[\d;]*m", "", (await process.communicate())[0].decode())
    finally:
        Path(name).unlink()
    status = _GRPC_STATUS.search(text)
    if status is None:
        raise ServerError("nghttp", "returned no gRPC status", log=text[-2000:])
    words = re.search(r"recv \(stream_id=\d+\) grpc-message: (.*)", text)
    code = next(one for one in grpc.StatusCode if one.value[0] == int(status[1]))
    return code.name, words[1] if words else ""
