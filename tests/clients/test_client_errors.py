"""Foreign errors become ours in one place, with the server's own words."""

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tollgate.testing import TestServer
from tollgate_client import (
    Client,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from tollgate_client.errors import clean, row_errors

ROW = {
    "transaction_id": ["t1"],
    "customer_id": ["c1"],
    "terminal_id": ["m1"],
    "amount": [1.5],
    "event_time": [1_533_000_000_000_000],
}


class Refusing(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Refuse every request with one status: some that Triton has only when ill."""

    def __init__(self, code, words):
        self.code, self.words = code, words

    def ModelInfer(self, request, context):
        context.abort(self.code, self.words)


@contextmanager
def refusing_server(code, words):
    """Serve gRPC on a free port; yield host:port."""
    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
        Refusing(code, words), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Unavailable),
        (grpc.StatusCode.INTERNAL, Unavailable),
        (grpc.StatusCode.NOT_FOUND, Unavailable),
        (grpc.StatusCode.UNIMPLEMENTED, Unavailable),
        (grpc.StatusCode.UNKNOWN, Unavailable),
    ],
)
def test_every_status_becomes_one_of_three_errors(code, expected):
    """The caller decides by type: mend the request, fall back, or try elsewhere."""
    with (
        refusing_server(code, "in ensemble 'fraud', the words") as url,
        Client(url) as client,
        pytest.raises(expected) as caught,
    ):
        client.decide(ROW)
    assert isinstance(caught.value.__cause__, grpc.RpcError)
    if expected is not DeadlineExceeded:
        assert str(caught.value).endswith("the words")
        assert "ensemble" not in str(caught.value)


def test_a_server_that_is_not_there_is_unavailable():
    """The message names product and address."""
    with socket.socket() as taken:  # nobody else can listen there meanwhile
        taken.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            Client(url) as client,
            pytest.raises(Unavailable, match=f"^fraud at {re.escape(url)}: "),
        ):
            client.decide(ROW, deadline_s=30)


@pytest.mark.parametrize("left_s", [0, -1, float("nan")])
def test_a_spent_deadline_is_not_sent(left_s):
    """No time left is DeadlineExceeded at once, even without a server."""
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(DeadlineExceeded, match="no time left"),
    ):
        client.decide(ROW, deadline_s=left_s)


def test_bad_columns_are_refused_without_a_server():
    """decide and decide_many both check at the call, not at the first answer."""
    columns = {**ROW, "amount": ["12"]}
    with Client("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest, match="amount: row 0"):
            client.decide(columns)
        with pytest.raises(InvalidRequest, match="amount: row 0"):
            client.decide_many(columns)


def test_too_many_rows_are_refused_with_what_to_do():
    """33 rows fit no request."""
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(InvalidRequest, match=r"33 rows; .* 1 to 32, decide_many any"),
    ):
        client.decide({name: values * 33 for name, values in ROW.items()})


@pytest.mark.parametrize(("batch_rows", "in_flight"), [(0, 1), (33, 1), (32, 0)])
def test_impossible_batches_are_refused(batch_rows, in_flight):
    """The words name both figures."""
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(InvalidRequest, match=f"batch_rows {batch_rows} must"),
    ):
        client.decide_many(ROW, batch_rows=batch_rows, in_flight=in_flight)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("in ensemble 'fraud', row 0: bad", "row 0: bad"),
        ("[request id: <id_unknown>] expected 5 inputs", "expected 5 inputs"),
        ("[request id: 7] in ensemble 'fraud', in ensemble 'x', bad", "bad"),
        (
            "in ensemble 'fraud', Failed to process the request(s) for model instance "
            "'fraud_features_0_0', message: ValueError: no",
            "ValueError: no",
        ),
        ("Exceeds maximum queue size", "Exceeds maximum queue size"),
        ("", ""),
    ],
)
def test_tritons_prefixes_are_stripped(message, words):
    """What Triton puts in front says nothing to a caller."""
    assert clean(message) == words


def test_row_lines_are_read_back_per_row():
    """A refusal of bad rows is turned back into one error per row."""
    message = "row 0: amount: -1: too small\nrow 1: customer_id: : empty"
    assert row_errors(message, rows=2) == [
        "amount: -1: too small",
        "customer_id: : empty",
    ]


@pytest.mark.parametrize(
    "message",
    [
        "row 0: amount: -1: too small",
        "row 0: a\nrow 2: b",
        "row 1: a\nrow 0: b",
        "row 0: a\nrow 1: b\nrow 2: c",
        "expected 5 inputs but got 4",
        "first\nrow 0: a\nrow 1: b",
        "",
    ],
)
def test_other_words_are_not_taken_for_row_errors(message):
    """Only a line for every row of the request, in order, counts."""
    assert row_errors(message, rows=2) is None


def test_what_an_overloaded_server_refuses_is_asked_for_again():
    """By who decides a file, which can wait; a payment is told at once."""
    many = {name: column * 40 for name, column in ROW.items()}
    with TestServer() as server, Client(server.url, timeout_s=30) as client:
        server.fail("UNAVAILABLE", words="overloaded: later", requests=3)
        assert sum(len(part.decision) for part in client.decide_many(many)) == 40
        server.fail("UNAVAILABLE", words="overloaded: later")
        with pytest.raises(Overloaded, match=r"fraud at .*: overloaded: later"):
            client.decide(ROW)


def test_a_file_that_can_wait_says_so():
    """As metadata of each request, which a gateway reads."""
    with TestServer() as server, Client(server.url, timeout_s=30, bulk=True) as client:
        client.decide(ROW)
        many = {name: column * 20 for name, column in ROW.items()}
        sizes = [len(part.decision) for part in client.decide_many(many)]
        assert sizes == [8, 8, 4]  # small enough for payments to wait behind
        told = {one.metadata.get("tollgate-class") for one in server.asked}
        assert told == {"bulk"}
