"""The test server for callers follows its script and keeps the contract."""

from __future__ import annotations

import threading

import grpc
import numpy as np
import pytest
from tritonclient.grpc import (
    InferenceServerClient,
    InferInput,
    InferRequestedOutput,
    service_pb2,
    service_pb2_grpc,
)
from tritonclient.utils import InferenceServerException

from tollgate.errors import InputError
from tollgate.testing import Answer, TestServer

TIME_US = 1_600_000_000_000_000
TYPES = {
    "transaction_id": ("BYTES", object),
    "customer_id": ("BYTES", object),
    "terminal_id": ("BYTES", object),
    "amount": ("FP64", np.float64),
    "event_time": ("INT64", np.int64),
}


def tensors(rows=1, **changed):
    """Return the inputs for NVIDIA's own client."""
    columns = {
        "transaction_id": [f"t{row}" for row in range(rows)],
        "customer_id": ["c"] * rows,
        "terminal_id": ["m"] * rows,
        "amount": [1.5] * rows,
        "event_time": [TIME_US] * rows,
        **changed,
    }
    made = []
    for name, values in columns.items():
        kind, dtype = TYPES[name]
        array = np.array(values, dtype).reshape(-1, 1)
        tensor = InferInput(name, array.shape, kind)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


@pytest.fixture
def server():
    """Start a test server."""
    with TestServer() as one:
        yield one


@pytest.fixture
def client(server):
    """Connect NVIDIA's own client to it."""
    with InferenceServerClient(server.url) as one:
        yield one


def test_nvidias_client_reads_health_and_metadata(client):
    """As those of Triton."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("fraud")
    assert not client.is_model_ready("credit")
    described = client.get_model_metadata("fraud", as_json=True)
    assert [one["name"] for one in described["inputs"]] == list(TYPES)
    assert described["outputs"][1] == {
        "name": "score",
        "datatype": "FP32",
        "shape": ["-1", "1"],
    }


def test_answers_are_chosen_by_id_then_rule_then_default(server, client):
    """The newest rule is applied first; a rule that returns None is skipped."""
    server.answer("t0", Answer("decline", 0.9, ("A", "B"), 5))
    server.answer_by(lambda row: Answer("review", 0.5))
    server.answer_by(
        lambda row: Answer("approve", 0.2) if row.transaction_id == "t1" else None
    )
    got = client.infer("fraud", tensors(3))
    assert got.as_numpy("decision")[:, 0].tolist() == [
        b"decline",
        b"approve",
        b"review",
    ]
    assert got.as_numpy("score")[:, 0].tolist() == np.float32([0.9, 0.2, 0.5]).tolist()
    assert got.as_numpy("reason_codes")[0, 0] == b"A|B"
    assert got.as_numpy("degraded")[0, 0] == 5
    assert got.as_numpy("release")[0, 0] == b"test-1"


def test_response_has_only_the_requested_outputs(client):
    """In the order of the request."""
    wanted = [InferRequestedOutput("score"), InferRequestedOutput("decision")]
    got = client.infer("fraud", tensors(), outputs=wanted)
    assert [one.name for one in got.get_response().outputs] == ["score", "decision"]


def test_bad_row_gets_an_error_and_the_next_row_an_answer(server, client):
    """The rules of the contract apply without a script."""
    got = client.infer("fraud", tensors(2, amount=[-1.0, 2.0]))
    assert got.as_numpy("error")[:, 0].tolist() == [b"amount: -1.0: is negative", b""]
    assert got.as_numpy("decision")[:, 0].tolist() == [b"", b"approve"]
    assert np.isnan(got.as_numpy("score")[:, 0]).tolist() == [True, False]


def test_requested_rows_are_recorded(server, client):
    """With values, parameters, metadata and the number of the request."""
    client.infer(
        "fraud",
        tensors(2),
        parameters={"dry_run": True, "deadline_us": 20_000},
        headers={"traceparent": "t"},
    )
    client.infer("fraud", tensors())
    first, second, third = server.asked
    assert first.values == {
        "transaction_id": "t0",
        "customer_id": "c",
        "terminal_id": "m",
        "amount": 1.5,
        "event_time": TIME_US,
    }
    assert (first.dry_run, first.deadline_us) == (True, 20_000)
    assert first.metadata["traceparent"] == "t"
    assert (third.dry_run, third.deadline_us) == (False, None)
    assert first.request == second.request != third.request


def test_fault_affects_the_given_number_of_requests(server, client):
    """Two requests fail, the third is answered; a fault without a number lasts."""
    server.fail("RESOURCE_EXHAUSTED", words="too much", requests=2)
    for _ in range(2):
        with pytest.raises(InferenceServerException, match="too much"):
            client.infer("fraud", tensors())
    client.infer("fraud", tensors())
    server.fail()
    for _ in range(3):
        with pytest.raises(InferenceServerException, match="scripted"):
            client.infer("fraud", tensors())
    server.heal()
    client.infer("fraud", tensors())


def test_stalled_request_is_answered_after_heal(server, client):
    """One caller times out; another one waits and gets the answer."""
    server.stall()
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        client.infer("fraud", tensors(), client_timeout=0.1)
    healer = threading.Timer(0.1, server.heal)
    healer.start()
    assert client.infer("fraud", tensors()).as_numpy("decision")[0, 0] == b"approve"
    healer.join()


def test_dropped_connections_fail_requests_in_flight(server):
    """New connections are refused until `heal`."""
    server.stall()
    with grpc.insecure_channel(
        server.url, options=[("grpc.max_reconnect_backoff_ms", 100)]
    ) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        message = service_pb2.ModelInferRequest(model_name="fraud")
        for name, (kind, _) in TYPES.items():
            message.inputs.add(name=name, datatype=kind, shape=(1, 1))
        for tensor in message.inputs:
            if tensor.datatype == "BYTES":
                tensor.contents.bytes_contents.append(b"x")
        message.inputs[3].contents.fp64_contents.append(1.5)
        message.inputs[4].contents.int64_contents.append(TIME_US)
        under_way = infer.future(message, timeout=30)
        while not server.asked:
            pass
        server.drop()
        failure = under_way.exception()
        assert failure.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        )
        with pytest.raises(grpc.RpcError) as refused:
            infer(message, timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        server.heal()
        answer = infer(message, timeout=30, wait_for_ready=True)
        assert answer.model_name == "fraud"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"decision": "allow"}, "answer: decision: 'allow' is none of approve"),
        ({"decision": ""}, "answer: decision: '' is none of approve"),
    ],
)
def test_invalid_scripted_answer_is_refused(changed, words):
    """The error is raised where the answer is made."""
    with pytest.raises(InputError, match=words):
        Answer(**changed)


def test_declared_fields_are_optional():
    """A request may omit them."""
    with (
        TestServer(fields={"channel": "BYTES"}) as server,
        InferenceServerClient(server.url) as client,
    ):
        client.infer("fraud", tensors())
        channel = InferInput("channel", [1, 1], "BYTES")
        channel.set_data_from_numpy(np.array([["web"]], object))
        client.infer("fraud", [*tensors(), channel])
        assert [row.values.get("channel") for row in server.asked] == [None, "web"]
