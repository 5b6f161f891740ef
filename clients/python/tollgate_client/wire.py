"""
Encode rows as requests and decode a response into decisions or ranked items.

The only module that reads or writes the wire format: KServe's protobuf messages,
tensors as raw little-endian bytes, each BYTES element preceded by its length in four
bytes. It encodes the few protobuf fields itself, so that the client requires no version
of protobuf's library, of which a process can load only one.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Protocol

import numpy as np

from tollgate_client.contract import (
    DEADLINE_US,
    DRY_RUN,
    LIST_SIZE,
    OUTPUTS,
    RANKED_OUTPUTS,
    REASON_SEPARATOR,
    STORE_DEADLINE_MS,
)
from tollgate_client.decisions import Decisions
from tollgate_client.errors import ClientError
from tollgate_client.inputs import Rows
from tollgate_client.recommendations import RankedRows

# gRPC method that decides; requests and responses are the bytes of this module.
METHOD = "/inference.GRPCInferenceService/ModelInfer"

_LENGTH = struct.Struct("<I")

# Field numbers of ModelInferRequest with its parts, and of ModelInferResponse:
# https://github.com/kserve/open-inference-protocol, inference_grpc.md.
_MODEL_NAME, _PARAMETERS, _INPUTS, _RAW_INPUTS = 1, 4, 5, 7
_TENSOR_NAME, _DATATYPE, _SHAPE = 1, 2, 3
_KEY, _VALUE, _BOOL, _INT64 = 1, 2, 1, 2
_OUTPUTS, _RAW_OUTPUTS = 5, 6

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5  # types on the protobuf wire
_LAST_SHIFT = 63


class EncodedRow(Protocol):
    """A checked row: its bytes in the raw tensor of each input."""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """Return them, for each input and then for each declared field."""


class Request:
    """
    An encoded request without its deadline, which each attempt sets.

    Args:
        tensors: Name, type and raw content of each input.
        rows: Number of rows, 1 to 32.
        product: Name of the Triton ensemble.
        dry_run: Request decisions without side effects.
        store_deadline_ms: Time that the store may take, ms; None for the same limit as
            for a payment.
        count: Number of items for each row, of a product that ranks; else None.
    """

    def __init__(
        self,
        tensors: Sequence[tuple[str, str, bytes]],
        *,
        rows: int,
        product: str,
        dry_run: bool,
        store_deadline_ms: int | None = None,
        count: int | None = None,
    ) -> None:
        self._head = _field(_MODEL_NAME, product.encode())
        parts = []
        if dry_run:
            parts.append(_parameter(DRY_RUN, _BOOL, 1))
        if store_deadline_ms is not None:
            parts.append(_parameter(STORE_DEADLINE_MS, _INT64, store_deadline_ms))
        if count is not None:
            parts.append(_parameter(LIST_SIZE, _INT64, count))
        parts += [_input(name, kind, rows) for name, kind, _ in tensors]
        parts += [_field(_RAW_INPUTS, raw) for _, _, raw in tensors]
        self._tail = b"".join(parts)

    def encode(self, *, left_s: float) -> bytes:
        """Return the message, with the time that is left for the response."""
        deadline = _parameter(DEADLINE_US, _INT64, int(left_s * 1e6))
        return b"".join((self._head, deadline, self._tail))


def requests_of(
    rows: Rows,
    *,
    product: str,
    size: int,
    dry_run: bool,
    deadline_s: float,
    store_deadline_ms: int | None = None,
) -> Iterator[bytes]:
    """
    Split rows into requests; each is encoded only when the iterator reaches it.

    Args:
        product: Name of the Triton ensemble.
        size: Rows per request; the last may have fewer.
        dry_run: Request decisions without side effects.
        deadline_s: Time left for the response, seconds.
        store_deadline_ms: Time that the store may take, ms; None for the same limit as
            for a payment.
    """
    for start in range(0, rows.count, size):
        tensors = []
        for name, kind in rows.inputs.items():
            part = rows.values[name][start : start + size]
            raw = bytes_tensor(part) if isinstance(part, list) else part.tobytes()
            tensors.append((name, kind, raw))
        request = Request(
            tensors,
            rows=min(size, rows.count - start),
            product=product,
            dry_run=dry_run,
            store_deadline_ms=store_deadline_ms,
        )
        yield request.encode(left_s=deadline_s)


def request_of(
    checked: Sequence[EncodedRow],
    *,
    product: str,
    kinds: Mapping[str, str],
    dry_run: bool,
    count: int | None = None,
) -> Request:
    """
    Encode checked rows as one request; its deadline is set when it is sent.

    Args:
        checked: 1 to 32 rows.
        product: Name of the Triton ensemble.
        kinds: Name -> type on the wire, in the order of the rows' parts.
        dry_run: Request answers without side effects.
        count: Number of items for each row, of a product that ranks; else None.
    """
    columns = zip(*(row.parts for row in checked), strict=True)
    return Request(
        [
            (name, kind, b"".join(column))
            for (name, kind), column in zip(kinds.items(), columns, strict=True)
        ],
        rows=len(checked),
        product=product,
        dry_run=dry_run,
        count=count,
    )


def decisions_of(response: bytes, *, latency_s: float) -> Decisions:
    """
    Decode a response.

    Raises:
        ClientError: The response lacks an output, its outputs differ in length, or it
            is truncated.
    """
    try:
        answer = _read(_raw_outputs(response, OUTPUTS), latency_s=latency_s)
    except (struct.error, ValueError) as error:
        raise ClientError(f"the answer cannot be read: {error}") from error
    lengths = {name: len(getattr(answer, name)) for name in OUTPUTS}
    if len(set(lengths.values())) != 1:
        raise ClientError(f"the answer's outputs differ in length: {lengths}")
    return answer


def ranked_rows_of(response: bytes) -> RankedRows:
    """
    Decode the response of a product that ranks.

    Raises:
        ClientError: The response lacks an output, the lengths of its outputs do not fit
            together, or it is truncated.
    """
    try:
        raw = _raw_outputs(response, RANKED_OUTPUTS)
        ranked = RankedRows(
            items=texts_of(raw["items"]),
            scores=np.frombuffer(raw["scores"], dtype="<f4"),
            source=texts_of(raw["source"]),
            degraded=np.frombuffer(raw["degraded"], dtype="<u4"),
            error=texts_of(raw["error"]),
            release=texts_of(raw["release"]),
        )
    except (struct.error, ValueError) as error:
        raise ClientError(f"the answer cannot be read: {error}") from error
    lengths = {name: len(getattr(ranked, name)) for name in RANKED_OUTPUTS}
    rows = len(ranked.error)
    if (
        not rows == len(ranked.degraded) == len(ranked.release)
        or not len(ranked.items) == len(ranked.scores) == len(ranked.source)
        or len(ranked.items) % max(rows, 1)
    ):
        raise ClientError(f"the answer's outputs do not fit together: {lengths}")
    return ranked


def _raw_outputs(response: bytes, needed: Sequence[str]) -> dict[str, bytes]:
    names, contents = _outputs(response)
    raw = dict(zip(names, contents, strict=False))
    for name in needed:
        if name not in raw:
            raise ClientError(f"the answer lacks {name}; it has {', '.join(names)}")
    return raw


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
        if offset > len(raw):
            raise ValueError(f"a text ends {offset - len(raw)} bytes beyond its tensor")
        texts.append(raw[offset - length : offset].decode(errors="replace"))
    return texts


# https://protobuf.dev/programming-guides/encoding/


def _varint(value: int) -> bytes:
    """Encode an integer, seven bits in each byte, the lowest ones first."""
    if 0 <= value <= 0x7F:
        return bytes((value,))
    value = operator.index(value)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} does not fit into 64 bits")
    value %= 2**64  # a negative one as its two's complement
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _field(number: int, content: bytes) -> bytes:
    """Encode a field that holds a text, bytes, a message or a packed list."""
    return bytes((number << 3 | _DELIMITED,)) + _varint(len(content)) + content


@lru_cache(1024)
def _input(name: str, kind: str, rows: int) -> bytes:
    """Encode name, type and shape of an input; few of them occur."""
    described = _field(_TENSOR_NAME, name.encode()) + _field(_DATATYPE, kind.encode())
    shape = _field(_SHAPE, _varint(rows) + _varint(1))
    return _field(_INPUTS, described + shape)


def _parameter(name: str, choice: int, value: int) -> bytes:
    """Encode an entry of the parameters: a truth value or an integer."""
    chosen = bytes((choice << 3 | _VARINT,)) + _varint(value)
    entry = _field(_KEY, name.encode()) + _field(_VALUE, chosen)
    return _field(_PARAMETERS, entry)


def _outputs(response: bytes) -> tuple[list[str], list[bytes]]:
    """Read the names of a response's outputs, and their raw contents."""
    names, contents = [], []
    for number, content in _delimited(response):
        if number == _RAW_OUTPUTS:
            contents.append(content)
        elif number == _OUTPUTS:
            fields = _delimited(content)
            found = (text for field, text in fields if field == _TENSOR_NAME)
            names.append(next(found, b"").decode())
    return names, contents


def _delimited(message: bytes) -> Iterator[tuple[int, bytes]]:
    """
    Yield number and content of a message's fields that have a length; skip others.

    Raises:
        ValueError: The message is truncated, or no message at all.
    """
    offset, length = 0, len(message)
    while offset < length:
        tag = message[offset]
        offset += 1
        if tag > 0x7F:
            tag, offset = _read_varint(message, offset - 1)
        form = tag & 7
        if form == _VARINT:
            _, offset = _read_varint(message, offset)
            continue
        if form == _DELIMITED:
            size, offset = _read_varint(message, offset)
        elif form in (_FIXED32, _FIXED64):
            size = 4 if form == _FIXED32 else 8
        else:
            raise ValueError(f"a field of type {form}")
        end = offset + size
        if end > length:
            raise ValueError(f"{end - length} bytes are missing")
        if form == _DELIMITED:
            yield tag >> 3, message[offset:end]
        offset = end


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    """Read an integer; return it and the offset behind it."""
    value = shift = 0
    while offset < len(message):
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
        if shift > _LAST_SHIFT:
            break
    raise ValueError("an integer does not end")
