"""
Write tens of thousands of request bodies, all of one length.

The client's own code writes one request; the others are copies of its bytes with other
values at the same positions. That works because every value has a fixed width: numbers
by their type, ids by the way they are generated.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from tollgate.errors import InputError
from tollgate.load.bodies import frame
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

_LENGTH_BYTES = 4  # before each element of a BYTES tensor
DEADLINE_S = 1.0  # the client's default deadline

Columns = Mapping[str, npt.NDArray[np.generic]]


def fraud_requests(
    columns: Columns, *, rows: int, product: str = "fraud", deadline_s: float
) -> list[bytes]:
    """
    Convert columns to requests of the fraud product.

    Args:
        columns: Inputs, N x rows values each.
        rows: Rows per request.
        deadline_s: Deadline of each request, s.

    Returns:
        N encoded ModelInferRequests.
    """
    return list(
        requests_of(
            check_columns(columns, inputs=FRAUD_INPUTS),
            product=product,
            size=rows,
            dry_run=False,
            deadline_s=deadline_s,
        )
    )


def bodies_of(
    columns: Columns,
    *,
    rows: int,
    product: str = "fraud",
    deadline_s: float = DEADLINE_S,
    ids: npt.NDArray[np.bytes_] | None = None,
) -> npt.NDArray[np.uint8]:
    """
    Convert columns to gRPC bodies.

    Args:
        columns: Inputs of the fraud product, B x rows values each; BYTES as "S" that
            fill their width.
        rows: Rows per body.
        deadline_s: Deadline of each request, s.
        ids: Id of each request, "S" [B] that fill their width; None for no id.

    Returns:
        uint8 [B, L].
    """
    first = {name: column[:rows] for name, column in columns.items()}
    (encoded,) = fraud_requests(
        first, rows=rows, product=product, deadline_s=deadline_s
    )
    request = service_pb2.ModelInferRequest.FromString(encoded)
    if ids is not None:
        request.id = ids[0].decode()
    template = frame(request.SerializeToString())
    count = len(columns[next(iter(columns))]) // rows
    bodies = np.tile(np.frombuffer(template, np.uint8), (count, 1))
    start = 0
    if ids is not None:
        start = template.index(ids[0])
        _write(bodies, ids, start=start, head=0, rows=1)
    for name, raw in zip(FRAUD_INPUTS, request.raw_input_contents, strict=True):
        start = template.index(raw, start)
        head = _LENGTH_BYTES if FRAUD_INPUTS[name] == "BYTES" else 0
        _write(bodies, columns[name], start=start, head=head, rows=rows)
        start += len(raw)
    return bodies


def _write(
    bodies: npt.NDArray[np.uint8],
    column: npt.NDArray[np.generic],
    *,
    start: int,
    head: int,
    rows: int,
) -> None:
    """Write one tensor of every body, without the header of each element."""
    width = column.dtype.itemsize
    if head and (np.char.str_len(column.astype(np.bytes_)) != width).any():
        raise InputError("ids", f"are not all {width} bytes long")
    little = column if head else column.astype(column.dtype.newbyteorder("<"))
    values = np.ascontiguousarray(little).view(np.uint8).reshape(len(bodies), rows, -1)
    for row in range(rows):
        at = start + row * (head + width) + head
        bodies[:, at : at + width] = values[:, row]
