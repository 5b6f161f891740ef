"""The codec writes and reads exactly what NVIDIA's own client does."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, InferResult, service_pb2
from tritonclient.utils import serialize_byte_tensor

from tollgate_client import ClientError, join
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.decisions import bad_rows
from tollgate_client.inputs import check_columns
from tollgate_client.wire import (
    Request,
    bytes_tensor,
    decisions_of,
    requests_of,
    texts_of,
)

TEXTS = ["", "a", "é", "x" * 128, "\x00\x00", "名前", "tab\tnewline\n"]


def random_columns(count, *, seed=0):
    """Make columns with ids of many lengths."""
    random = np.random.default_rng(seed)
    return {
        "transaction_id": [f"t{i}" * (i % 5 + 1) for i in range(count)],
        "customer_id": [TEXTS[i % len(TEXTS)] for i in range(count)],
        "terminal_id": [f"{i:09d}" for i in range(count)],
        "amount": random.uniform(0, 1e4, count),
        "event_time": random.integers(0, 2**60, count),
    }


def requests(columns, **changed):
    """Write columns as requests, and read them as a server does."""
    options = {"product": "fraud", "size": 32, "dry_run": False, "deadline_s": 0.05}
    rows = check_columns(columns, inputs=FRAUD_INPUTS)
    return [
        service_pb2.ModelInferRequest.FromString(request)
        for request in requests_of(rows, **{**options, **changed})
    ]


def answer_message(outputs):
    """Write an answer as the server does."""
    response = service_pb2.ModelInferResponse(model_name="fraud")
    for name, (kind, values) in outputs.items():
        values = np.asarray(values).reshape(-1, 1)
        response.outputs.add(name=name, datatype=kind, shape=values.shape)
        raw = (
            serialize_byte_tensor(values.astype(object)).item()
            if kind == "BYTES"
            else values.tobytes()
        )
        response.raw_output_contents.append(raw)
    return response


GOOD = {
    "decision": ("BYTES", ["approve", ""]),
    "score": ("FP32", np.float32([0.25, np.nan])),
    "reason_codes": ("BYTES", ["amount_high|new_terminal", ""]),
    "degraded": ("UINT32", np.uint32([5, 0])),
    "error": ("BYTES", ["", "amount: -1.0: must be 0 or more"]),
    "release": ("BYTES", ["fraud-1", "fraud-1"]),
}


def test_a_request_holds_the_tensors_of_nvidias_client():
    """Every input is, byte for byte, what InferInput would hold."""
    columns = random_columns(32)
    (request,) = requests(columns)
    for position, (name, kind) in enumerate(FRAUD_INPUTS.items()):
        values = np.asarray(columns[name], dtype=object if kind == "BYTES" else None)
        theirs = InferInput(name, [32, 1], kind)
        theirs.set_data_from_numpy(values.reshape(-1, 1))
        assert request.inputs[position] == theirs._get_tensor()
        assert request.raw_input_contents[position] == theirs._get_content()


def test_requests_cut_rows_in_order_and_the_last_may_be_shorter():
    """70 rows by 32 are 32, 32 and 6; nothing is lost or doubled."""
    columns = random_columns(70)
    parts = requests(columns)
    assert [list(part.inputs[0].shape) for part in parts] == [[32, 1], [32, 1], [6, 1]]
    ids = [one for part in parts for one in texts_of(part.raw_input_contents[0])]
    assert ids == columns["transaction_id"]
    amounts = b"".join(part.raw_input_contents[3] for part in parts)
    assert np.array_equal(np.frombuffer(amounts), columns["amount"])


def test_dry_run_and_deadline_travel_as_parameters():
    """A wet request has no dry_run parameter; the deadline is always there, in µs."""
    (wet,) = requests(random_columns(1))
    (dry,) = requests(random_columns(1), dry_run=True, deadline_s=0.0125)
    assert dict(wet.parameters).keys() == {"deadline_us"}
    assert wet.parameters["deadline_us"].int64_param == 50_000
    assert dry.parameters["dry_run"].bool_param is True
    assert "store_deadline_ms" not in dry.parameters
    (patient,) = requests(random_columns(1), store_deadline_ms=700)
    assert patient.parameters["store_deadline_ms"].int64_param == 700
    assert dry.parameters["deadline_us"].int64_param == 12_500


def test_texts_survive_the_way_there_and_back():
    """BYTES written are BYTES read, and equal NVIDIA's form."""
    encoded = [text.encode() for text in TEXTS]
    raw = bytes_tensor(encoded)
    assert raw == serialize_byte_tensor(np.array(encoded, dtype=object)).item()
    assert texts_of(raw) == TEXTS


def test_an_answer_is_read_as_nvidias_client_reads_it():
    """Values agree with InferResult; reason codes are split."""
    message = answer_message(GOOD)
    theirs = InferResult(message)
    ours = decisions_of(message.SerializeToString(), latency_s=0.5)
    for name in ("decision", "error", "release"):
        read = [one.decode() for one in theirs.as_numpy(name)[:, 0]]
        assert getattr(ours, name).tolist() == read
    assert np.array_equal(ours.score, theirs.as_numpy("score")[:, 0], equal_nan=True)
    assert np.array_equal(ours.degraded, theirs.as_numpy("degraded")[:, 0])
    assert ours.reason_codes == [("amount_high", "new_terminal"), ()]
    assert ours.latency_s.tolist() == [0.5, 0.5]
    assert len(ours) == 2


def test_an_answer_without_an_output_is_refused():
    """A server of another contract is told apart from a decision."""
    outputs = {name: value for name, value in GOOD.items() if name != "release"}
    with pytest.raises(ClientError, match="lacks release; it has decision, score"):
        decisions_of(answer_message(outputs).SerializeToString(), latency_s=0)


def test_an_answer_with_outputs_of_different_lengths_is_refused():
    """A short output must not shift answers between rows."""
    outputs = {**GOOD, "score": ("FP32", np.float32([0.5]))}
    with pytest.raises(ClientError, match="differ in length"):
        decisions_of(answer_message(outputs).SerializeToString(), latency_s=0)


def test_joined_answers_keep_the_order_of_rows():
    """Answers and rows of errors stand one after the other."""
    first = decisions_of(answer_message(GOOD).SerializeToString(), latency_s=0.1)
    whole = join([first, bad_rows(["amount: -2: rule"], latency_s=0.2), first])
    assert len(whole) == 5
    assert whole.decision.tolist() == ["approve", "", "", "approve", ""]
    assert whole.error.tolist()[2] == "amount: -2: rule"
    assert np.isnan(whole.score[2])
    assert whole.reason_codes[2] == ()
    assert whole.latency_s.tolist() == [0.1, 0.1, 0.2, 0.1, 0.1]


@pytest.mark.parametrize(
    ("name", "raw"),
    [("decision", b"\x09\0\0"), ("score", b"\0\0\0"), ("degraded", b"\0" * 7)],
)
def test_a_torn_answer_is_an_error_of_the_client(name, raw):
    """Whatever a server sends, callers see no error of a library's."""
    response = answer_message(GOOD)
    response.raw_output_contents[list(GOOD).index(name)] = raw
    with pytest.raises(ClientError, match="cannot be read"):
        decisions_of(response.SerializeToString(), latency_s=0.0)


@given(cut=st.integers(min_value=0), wrong=st.binary(max_size=64))
def test_damaged_bytes_are_an_error_of_the_client(cut, wrong):
    """A response that ends early, or goes on with other bytes: no other error."""
    whole = answer_message(GOOD).SerializeToString()
    with contextlib.suppress(ClientError):
        decisions_of(whole[: cut % len(whole)] + wrong, latency_s=0.0)


def test_fields_that_the_client_does_not_know_are_skipped():
    """Of every type on the wire, as newer servers may send them."""
    message = answer_message(GOOD)
    message.id = "x" * 200
    message.parameters["number"].int64_param = -1
    message.parameters["share"].double_param = 0.5
    unknown = b"\xf8\x3f\x96\x01" + b"\xfd\x3fabcd" + b"\xf9\x3fabcdefgh"
    answer = decisions_of(unknown + message.SerializeToString(), latency_s=0.0)
    assert answer.decision.tolist() == ["approve", ""]


def test_requests_are_byte_for_byte_those_of_protobuf():
    """With and without parameters, and of lengths that need two bytes and more."""
    for count, size, options in (
        (1, 1, {"dry_run": False}),
        (32, 32, {"dry_run": False, "deadline_s": 3600.0}),
    ):
        rows = check_columns(random_columns(count), inputs=FRAUD_INPUTS)
        options = {"product": "p" * 200, "size": size, "deadline_s": 0.05} | options
        for request in requests_of(rows, **options):
            message = service_pb2.ModelInferRequest.FromString(request)
            assert message.SerializeToString() == request


@pytest.mark.parametrize("raw", [b"\x05\0\0\0ab", b"\xff\xff\xff\xff", b"\0\0"])
def test_a_text_that_is_cut_is_refused(raw: bytes) -> None:
    """A length beyond the content, and a length that is cut itself."""
    with pytest.raises((ValueError, struct.error)):
        texts_of(raw)


def test_a_number_beyond_64_bits_is_refused() -> None:
    """It is not wrapped to a small one; a NumPy integer counts like any other."""
    for value in (2**63, 2**64 + 5):
        with pytest.raises(ValueError, match="64 bits"):
            Request([], rows=1, product="p", dry_run=False, store_deadline_ms=value)
    encoded = [
        Request([], rows=1, product="p", dry_run=False, store_deadline_ms=value)
        for value in (300, np.int64(300))
    ]
    assert encoded[0].encode(left_s=1.0) == encoded[1].encode(left_s=1.0)
