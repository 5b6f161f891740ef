"""Tests of gRPC bodies that differ in values and not in length."""

from __future__ import annotations

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from loadtests.requests.bodies import DEADLINE_S, Columns, bodies_of
from tollgate.errors import InputError
from tollgate.load.bodies import frame, unframe
from tollgate.load.traffic import fixed_width
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of, texts_of


def columns_of(count: int, *, seed: int = 0) -> Columns:
    """Purchases with every value drawn."""
    draw = np.random.default_rng(seed)
    letter = np.array([b"C", b"T"])
    return {
        "transaction_id": fixed_width(draw.integers(10**12, size=count), digits=12),
        "customer_id": np.char.add(
            letter[0], fixed_width(draw.integers(10**5, size=count), digits=5)
        ),
        "terminal_id": np.char.add(
            letter[1], fixed_width(draw.integers(10**5, size=count), digits=5)
        ),
        "amount": draw.integers(0, 100_000, count) / 100,
        "event_time": draw.integers(10**15, 2 * 10**15, count),
    }


def parsed(body: bytes) -> service_pb2.ModelInferRequest:
    """Read a body as the server does."""
    return service_pb2.ModelInferRequest.FromString(unframe(body))


@pytest.mark.parametrize("rows", [1, 2, 16, 32])
def test_bodies_are_what_the_client_would_send(rows: int) -> None:
    """Byte for byte, for every body."""
    columns = columns_of(20 * rows)
    requests = requests_of(
        check_columns(columns, inputs=FRAUD_INPUTS),
        product="fraud",
        size=rows,
        dry_run=False,
        deadline_s=DEADLINE_S,
    )
    expected = [frame(request) for request in requests]
    bodies = bodies_of(columns, rows=rows)
    assert [body.tobytes() for body in bodies] == expected


@pytest.mark.parametrize("rows", [1, 16])
def test_two_bodies_mixed_at_any_byte_are_still_a_request(rows: int) -> None:
    """A body whose rest came from another one has ids of the right width."""
    bodies = bodies_of(columns_of(2 * rows, seed=1), rows=rows)
    first, second = (body.tobytes() for body in bodies)
    whole = parsed(first)
    for cut in range(len(first) + 1):
        mixed = parsed(first[:cut] + second[cut:])
        assert list(mixed.inputs) == list(whole.inputs)
        assert mixed.parameters == whole.parameters
        widths = {"transaction_id": 12, "customer_id": 6, "terminal_id": 6}
        for name, raw in zip(FRAUD_INPUTS, mixed.raw_input_contents, strict=True):
            if name in widths:
                texts = texts_of(raw)
                assert [len(text) for text in texts] == [widths[name]] * rows
            else:
                assert len(raw) == 8 * rows


def test_ids_of_different_widths_are_refused() -> None:
    """A shorter id would move everything behind it."""
    columns = {**columns_of(2), "customer_id": np.array([b"C00001", b"C2"])}
    with pytest.raises(InputError, match="not all 6 bytes long"):
        bodies_of(columns, rows=1)


def test_a_frame_holds_its_message() -> None:
    """Not compressed, and the length in front."""
    assert frame(b"abc") == b"\0\0\0\0\3abc"
    assert unframe(frame(b"abc")) == b"abc"


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", b"\1\0\0\0\0", b"\0\0\0\0\2x"])
def test_invalid_frame_is_refused(body: bytes) -> None:
    """Empty, cut, compressed, or of another length."""
    with pytest.raises(InputError, match="gRPC body"):
        unframe(body)
