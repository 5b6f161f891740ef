"""Write gRPC bodies of requests to a file, for senders of thousands a second."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from tollgate.errors import InputError
from tollgate.load.arrivals import F64

_FRAME = struct.Struct(">BI")  # of gRPC: compressed or not, length of the message


def frame(message: bytes) -> bytes:
    """Put gRPC's five-byte header before a message."""
    return _FRAME.pack(0, len(message)) + message


def unframe(body: bytes) -> bytes:
    """
    Return the message in a gRPC body.

    Raises:
        InputError: It is compressed, truncated, or more than one message.
    """
    if len(body) < _FRAME.size:
        raise InputError("gRPC body", f"{len(body)} bytes are less than its head")
    compressed, length = _FRAME.unpack_from(body)
    if compressed or length != len(body) - _FRAME.size:
        raise InputError(
            "gRPC body",
            f"compressed {compressed}, {length} bytes declared, "
            f"{len(body) - _FRAME.size} there",
        )
    return body[_FRAME.size :]


class Bodies(msgspec.Struct, frozen=True, eq=False):
    """
    The gRPC bodies of N requests in a file.

    Attributes:
        offsets: Offset of each body, and the end of the last one; uint64 [N + 1].
        poisoned: Rows of each request that break a rule; uint8 [N].
    """

    path: Path
    offsets: npt.NDArray[np.uint64]
    rows: int
    poisoned: npt.NDArray[np.uint8]


class Load(msgspec.Struct, frozen=True, eq=False):
    """
    Requests to send.

    Attributes:
        at_s: Time at which each request is due, s from the beginning, ascending;
            float64 [N].
        bodies: Body of each.
        timeout_s: Time after which a caller gives up on an attempt, s.
        connections: Number of connections that they share.
        retries: Number of retries of a request without an answer.
        metadata: Metadata of each request.
    """

    at_s: F64
    bodies: Bodies
    timeout_s: float
    connections: int = 4
    retries: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


def with_id(request: bytes, request_id: str) -> bytes:
    """Add an id to an encoded request: protobuf merges messages that are joined."""
    added: bytes = service_pb2.ModelInferRequest(id=request_id).SerializeToString()
    return request + added


def rows_of(requests: Sequence[bytes]) -> int:
    """Return the rows in each of these encoded requests; 1 without any."""
    if not requests:
        return 1
    first = service_pb2.ModelInferRequest.FromString(requests[0])
    return int(first.inputs[0].shape[0])


def bodies_from(requests: Sequence[bytes], *, path: Path) -> Bodies:
    """Write requests of equally many rows, none of which breaks a rule."""
    framed = [frame(one) for one in requests]
    path.write_bytes(b"".join(framed))
    ends = np.cumsum([0, *map(len, framed)], dtype=np.uint64)
    return Bodies(path, ends, rows_of(requests), np.zeros(len(framed), np.uint8))
