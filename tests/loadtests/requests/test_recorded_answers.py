"""Tests of reading what h2load got back."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from loadtests.requests.recorded_answers import Answer, read_answers, tally
from tollgate.errors import InputError
from tollgate.load.bodies import frame
from tollgate_client.wire import bytes_tensor

DATA, CLOSE, STATUS, MESSAGE, SENT = range(5)


def record(
    kind: int, value: bytes = b"", *, stream: int = 1, time_us: int = 0, code: int = 0
) -> bytes:
    """Lay a record out as the C compiler does."""
    return struct.pack("<QQiIII", time_us, 7, stream, kind, len(value), code) + value


def sent(offered: int, continued: int = 0) -> bytes:
    """The last record."""
    return record(SENT, struct.pack("<QQ", offered, continued), stream=0)


def answer_of(degraded: list[int], errors: list[bytes]) -> bytes:
    """An answer's body, as far as it is read."""
    response = service_pb2.ModelInferResponse(model_name="fraud")
    for name, raw in (
        ("error", bytes_tensor(errors)),
        ("degraded", np.array(degraded, "<u4").tobytes()),
    ):
        response.outputs.add(name=name)
        response.raw_output_contents.append(raw)
    return frame(response.SerializeToString())


def test_interleaved_answers_are_put_together(tmp_path: Path) -> None:
    """Pieces belong to their stream; the end decides the order."""
    path = tmp_path / "answers.bin"
    path.write_bytes(
        record(DATA, b"ab", stream=1)
        + record(DATA, b"xy", stream=3)
        + record(DATA, b"c", stream=1)
        + record(STATUS, b"0", stream=3)
        + record(CLOSE, stream=3, time_us=20)
        + record(STATUS, b"0", stream=1)
        + record(CLOSE, stream=1, time_us=30)
        + record(DATA, b"never closed", stream=5)
        + sent(3, 1)
    )
    recorded = read_answers(path)
    assert recorded.answers == [
        Answer(ended_us=20, body=b"xy", failure=""),
        Answer(ended_us=30, body=b"abc", failure=""),
    ]
    assert (recorded.offered, recorded.continued) == (3, 1)


def test_a_grpc_failure_is_told_in_its_own_words(tmp_path: Path) -> None:
    """HTTP's status is 200 for all of these."""
    path = tmp_path / "answers.bin"
    path.write_bytes(
        record(STATUS, b"14", stream=1)
        + record(MESSAGE, b"queue is full", stream=1)
        + record(CLOSE, stream=1)
        + record(CLOSE, stream=3, code=8)
        + sent(2)
    )
    said = tally(read_answers(path).answers)
    assert said.requests == 0
    assert said.failures == {
        "gRPC status 14: queue is full": 1,
        "closed without a gRPC status, HTTP/2 error 8": 1,
    }


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    """Without the last record nobody knows what is missing."""
    path = tmp_path / "answers.bin"
    path.write_bytes(record(STATUS, b"0") + record(CLOSE))
    with pytest.raises(InputError, match="did not end by itself"):
        read_answers(path)


def test_rows_are_counted_by_what_their_answer_says() -> None:
    """A refused row is no decision; degraded rows count once, and by bit."""
    answers = [
        Answer(ended_us=1, body=answer_of([0, 0], [b"", b""]), failure=""),
        Answer(ended_us=2, body=answer_of([5, 4], [b"", b""]), failure=""),
        Answer(ended_us=3, body=answer_of([0, 1], [b"amount: x", b""]), failure=""),
    ]
    said = tally(answers)
    assert (said.requests, said.rows, said.refused_rows) == (3, 5, 1)
    assert said.degraded_rows == 3
    assert said.degraded == {"STORE_UNAVAILABLE": 2, "COLD_START": 2}
    assert said.failures == {}


def test_an_answer_of_something_else_is_refused() -> None:
    """Figures about a model that is no product would mean nothing."""
    response = service_pb2.ModelInferResponse(model_name="other")
    response.outputs.add(name="y")
    response.raw_output_contents.append(b"")
    body = frame(response.SerializeToString())
    with pytest.raises(InputError, match="lacks degraded; it has y"):
        tally([Answer(ended_us=1, body=body, failure="")])
