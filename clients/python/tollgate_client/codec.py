"""
Encode columns as requests and decode a response into decisions.

The only module that reads or writes the wire format: KServe's protobuf messages,
tensors as raw little-endian bytes, each BYTES element preceded by its length in four
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from tritonclient.grpc import service_pb2

from tollgate.errors import ClientError
from tollgate.schema import (
    ANSWER_TYPES,
    DEADLINE_US,
    DRY_RUN,
    REASON_SEPARATOR,
    STORE_DEADLINE_MS,
)
from tollgate_client.columns import Rows
from tollgate_client.decisions import Decisions
from tollgate_client.purchase import Purchase

_LENGTH = struct.Struct("<I")


def requests_of(
    rows: Rows,
    *,
    product: str,
    size: int,
    dry_run: bool,
    deadline_s: float,
    store_deadline_ms: int | None = None,
) -> Iterator[service_pb2.ModelInferRequest]:
    """
    Split rows into requests; each is encoded only when the iterator reaches it.

    Args:
        rows: Checked columns.
        product: Name of the Triton ensemble.
        size: Rows per request; the last may have fewer.
        dry_run: Request decisions without side effects.
        deadline_s: Time left for the response, seconds.
        store_deadline_ms: Time that the store may take, ms; None for the same limit as
            for a payment.
    """
    for start in range(0, rows.count, size):
        request = service_pb2.ModelInferRequest(model_name=product)
        for name, kind in rows.inputs.items():
            part = rows.values[name][start : start + size]
            raw = bytes_tensor(part) if isinstance(part, list) else part.tobytes()
            request.inputs.add(name=name, datatype=kind, shape=(len(part), 1))
            request.raw_input_contents.append(raw)
        request.parameters[DEADLINE_US].int64_param = int(deadline_s * 1e6)
        if dry_run:
            request.parameters[DRY_RUN].bool_param = True
        if store_deadline_ms is not None:
            request.parameters[STORE_DEADLINE_MS].int64_param = store_deadline_ms
        yield request


def request_of(
    purchases: Sequence[Purchase],
    *,
    product: str,
    kinds: Mapping[str, str],
    dry_run: bool,
) -> service_pb2.ModelInferRequest:
    """
    Encode checked purchases as one request; its deadline is set when it is sent.

    Args:
        purchases: 1 to 32 purchases.
        product: Name of the Triton ensemble.
        kinds: Name -> type on the wire, in the order of the purchases' parts.
        dry_run: Request decisions without side effects.
    """
    request = service_pb2.ModelInferRequest(model_name=product)
    columns = zip(*(purchase.parts for purchase in purchases), strict=True)
    for (name, kind), column in zip(kinds.items(), columns, strict=True):
        request.inputs.add(name=name, datatype=kind, shape=(len(purchases), 1))
        request.raw_input_contents.append(b"".join(column))
    if dry_run:
        request.parameters[DRY_RUN].bool_param = True
    return request


def set_deadline(request: service_pb2.ModelInferRequest, *, left_s: float) -> None:
    """Write into the request how much time is left."""
    request.parameters[DEADLINE_US].int64_param = int(left_s * 1e6)


def decisions_of(
    response: service_pb2.ModelInferResponse, *, latency_s: float
) -> Decisions:
    """
    Decode a response.

    Raises:
        ClientError: The response lacks an output, its outputs differ in length, or one
            is truncated.
    """
    names = [output.name for output in response.outputs]
    raw = dict(zip(names, response.raw_output_contents, strict=False))
    for name in ANSWER_TYPES:
        if name not in raw:
            raise ClientError(f"the answer lacks {name}; it has {', '.join(names)}")
    try:
        answer = _read(raw, latency_s=latency_s)
    except (struct.error, ValueError) as error:
        raise ClientError(f"the answer cannot be read: {error}") from error
    lengths = {name: len(getattr(answer, name)) for name in ANSWER_TYPES}
    if len(set(lengths.values())) != 1:
        raise ClientError(f"the answer's outputs differ in length: {lengths}")
    return answer


def _read(raw: Mapping[str, bytes], *, latency_s: float) -> Decisions:
    reasons = texts_of(raw["reason_codes"])
    return Decisions(
        decision=np.asarray(texts_of(raw["decision"]), dtype=np.str_),
        score=np.frombuffer(raw["score"], dtype="<f4"),
        reason_codes=[
            tuple(text.split(REASON_SEPARATOR)) if text else () for text in reasons
        ],
        degraded=np.frombuffer(raw["degraded"], dtype="<u4"),
        error=np.asarray(texts_of(raw["error"]), dtype=np.str_),
        release=np.asarray(texts_of(raw["release"]), dtype=np.str_),
        latency_s=np.full(len(reasons), latency_s),
    )


def bytes_tensor(values: Sequence[bytes]) -> bytes:
    """Encode texts as one BYTES tensor."""
    lengths = map(_LENGTH.pack, map(len, values))
    return b"".join(chain.from_iterable(zip(lengths, values, strict=True)))


def texts_of(raw: bytes) -> list[str]:
    """Decode the texts of a BYTES tensor; bytes that are not UTF-8 become U+FFFD."""
    texts = []
    offset = 0
    while offset < len(raw):
        (length,) = _LENGTH.unpack_from(raw, offset)
        offset += _LENGTH.size + length
        texts.append(raw[offset - length : offset].decode(errors="replace"))
    return texts
