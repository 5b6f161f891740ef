"""A real nginx passes what the contract allows, and suspends harmful callers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from tritonclient.grpc import service_pb2

from tests.support.gateway.gateways import PATIENT_S, SERVICE, Place, bearer, running
from tollgate.gateway.gateway_metrics import GatewayMetrics, outcomes_of
from tollgate.gateway.template import Gateway
from tollgate.load.hostile_requests import Hostile, good_request, hostile_requests, post

pytestmark = pytest.mark.system("nginx", "nghttp", "openssl")

INFER = f"{SERVICE}ModelInfer"
PARAMETERS = {"count", "deadline_us", "dry_run", "store_deadline_ms"}
Request = service_pb2.ModelInferRequest
Change = Callable[[Request], "bytes | None"]


class Recorder(grpc.GenericRpcHandler):
    """A server that answers every method, and notes the bytes that it was sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Answer with an empty message."""

        def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
            self.seen.append((details.method, message))
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


class Behind(msgspec.Struct, frozen=True):
    """A gateway before a recorder, and the caller `shop`."""

    gateway: Gateway
    place: Place
    recorder: Recorder
    channel: grpc.Channel

    def send(self, message: bytes, path: str = INFER, *, key: str = "") -> str:
        """Send a message: OK, or status and words."""
        return said(self.channel, message, path, key=key or self.place.shop)


def said(channel: grpc.Channel, message: bytes, path: str, *, key: str) -> str:
    """Send a message: OK, or status and words."""
    call = channel.unary_unary(path)
    try:
        call(message, metadata=bearer(key), timeout=PATIENT_S)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "OK"


@contextlib.contextmanager
def recorded(place: Place, **changes: object) -> Iterator[Behind]:
    """Run a gateway before a recorder."""
    recorder = Recorder()
    server = grpc.server(ThreadPoolExecutor(4), handlers=(recorder,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    gateway = place.gateway(f"127.0.0.1:{port}", **changes)
    try:
        with running(gateway), place.channel(gateway.listen) as channel:
            yield Behind(gateway, place, recorder, channel)
    finally:
        server.stop(None).wait()


@pytest.fixture(scope="module")
def behind(place: Place) -> Iterator[Behind]:
    """A gateway for two products."""
    with recorded(place, products=("fraud", "credit")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def forgiven(behind: Behind) -> None:
    """Let every caller in again: tests share one gateway."""
    for record in (behind.gateway.state / "suspended").iterdir():
        record.unlink()


# What passes ------------------------------------------------------------------------


def typed(request: Request) -> None:
    """Send numbers and texts as typed contents."""
    del request.raw_input_contents[:]
    rows = request.inputs[0].shape[0]
    for tensor in request.inputs:
        if tensor.datatype == "BYTES":
            tensor.contents.bytes_contents.extend([b"id"] * rows)
        elif tensor.datatype == "FP64":
            tensor.contents.fp64_contents.extend([12.5] * rows)
        else:
            tensor.contents.int64_contents.extend([-(2**63)] * rows)


def unpacked(request: Request) -> bytes:
    """Write one more input with its shape number by number."""
    # 1: "x", 2: "FP64", 3: 1, 3: 1
    tensor = b"\x0a\x01x\x12\x04FP64\x18\x01\x18\x01"
    request.raw_input_contents.append(bytes(8))
    return request.SerializeToString() + b"\x2a" + bytes([len(tensor)]) + tensor


def named_outputs(request: Request) -> None:
    """Ask for some outputs only."""
    for name in ("decision", "score"):
        request.outputs.add(name=name)


def with_id(request: Request) -> None:
    """Name the request."""
    request.id = "é" * 64


def with_parameters(request: Request) -> None:
    """Say all that a request may say; numbers of ten bytes included."""
    request.parameters["dry_run"].bool_param = True
    request.parameters["deadline_us"].int64_param = -1
    request.parameters["store_deadline_ms"].int64_param = 1000
    request.parameters["count"].int64_param = 50


def other_product(request: Request) -> None:
    """Ask the second product."""
    request.model_name = "credit"


@pytest.mark.parametrize("rows", [1, 2, 32])
@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        typed,
        named_outputs,
        with_id,
        with_parameters,
        other_product,
    ],
)
def test_what_the_contract_allows_passes_as_it_is(
    behind: Behind, change: Change, rows: int
) -> None:
    """Byte for byte."""
    request = good_request(rows, tag="t")
    change(request)
    message = request.SerializeToString()
    assert behind.send(message) == "OK"
    assert behind.recorder.seen[-1] == (INFER, message)


def test_a_shape_written_number_by_number_passes(behind: Behind) -> None:
    """Protobuf reads both ways of writing it."""
    message = unpacked(good_request(1, tag="t"))
    assert list(Request.FromString(message).inputs[-1].shape) == [1, 1]
    assert behind.send(message) == "OK"
    assert behind.recorder.seen[-1] == (INFER, message)


# What does not ------------------------------------------------------------------------


def changed(path: str, value: object) -> Change:
    """Set a part of the request, such as `inputs.0.datatype`."""

    def change(request: Request) -> None:
        *places, name = path.split(".")
        part: object = request
        for one in places:
            part = part[int(one)] if one.isdigit() else getattr(part, one)  # type: ignore[index]
        setattr(part, name, value)

    return change


def shape(*dims: int) -> Change:
    """Give the amount another shape."""

    def change(request: Request) -> None:
        del request.inputs[3].shape[:]
        request.inputs[3].shape.extend(dims)

    return change


def raw(place: int, value: bytes | None) -> Change:
    """Give an input other raw contents, or none."""

    def change(request: Request) -> None:
        if value is None:
            del request.raw_input_contents[place]
        else:
            request.raw_input_contents[place] = value

    return change


def parameter(name: str, **value: object) -> Change:
    """Add a parameter of the request."""

    def change(request: Request) -> None:
        request.parameters[name].CopyFrom(service_pb2.InferParameter(**value))

    return change


def output_twice(request: Request) -> None:
    """Ask for one output twice."""
    request.outputs.add(name="score")
    request.outputs.add(name="score")


def input_twice(request: Request) -> None:
    """Send one input twice."""
    request.inputs.add().CopyFrom(request.inputs[0])
    request.raw_input_contents.append(request.raw_input_contents[0])


def raw_and_typed(request: Request) -> None:
    """Send the amount both ways."""
    request.inputs[3].contents.fp64_contents.append(1.0)


def wrong_typed(request: Request) -> None:
    """Send the amount as float32."""
    typed(request)
    request.inputs[3].contents.fp32_contents.append(1.0)


def too_many_typed(request: Request) -> None:
    """Send an amount too many."""
    typed(request)
    request.inputs[3].contents.fp64_contents.append(1.0)


def nothing(request: Request) -> None:
    """Send no tensor at all."""
    del request.inputs[:]
    del request.raw_input_contents[:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("model_version", "1"), "model_version: leave it out"),
        (changed("id", "x" * 129), "field 3|over 128 bytes"),
        (parameter("sequence_id", int64_param=1), '"sequence_id.* is not known'),
        (parameter("priority", uint64_param=1), "is not known"),
        (parameter("timeout", int64_param=1), "is not known"),
        (parameter("constructor", int64_param=1), "is not known"),
        (parameter("triton_enable_empty_final_response", bool_param=True), "not known"),
        (parameter("deadline_us", string_param="1"), "deadline_us is not an int64"),
        (parameter("deadline_us"), "deadline_us is not an int64"),
        (parameter("dry_run", int64_param=1), "dry_run is not a bool"),
        (shape(), "input amount: shape is not"),
        (shape(1), "shape is not"),
        (shape(1, 1, 1), "shape is not"),
        (shape(0, 1), "shape is not"),
        (shape(-1, 1), "shape is not"),
        (shape(33, 1), "shape is not"),
        (shape(1, 2), "shape is not"),
        (shape(2**62, 4), "shape is not"),
        (shape(2**63 - 1, 1), "shape is not"),
        (shape(2, 1), "has 2 rows, and others have 1"),
        (changed("inputs.3.datatype", "FP32"), "FP32.* is not BYTES"),
        (changed("inputs.3.datatype", "constructor"), "is not BYTES"),
        (changed("inputs.3.datatype", ""), "is not BYTES"),
        (changed("inputs.3.name", ""), "an input is called"),
        (changed("inputs.3.name", "a\0b"), "an input is called"),
        (raw(3, bytes(7)), "input amount has not as many elements"),
        (raw(3, bytes(16)), "input amount has not as many elements"),
        (raw(3, b""), "input amount has not as many elements"),
        (raw(3, None), "4 raw_input_contents for 5 inputs"),
        (raw(0, b"\x05\0\0\0abcd"), "the message is cut"),
        (raw(0, b"\xff\xff\xff\xffabcd"), "the message is cut"),
        (raw(0, b"\0\0\0"), "the message is cut"),
        (raw(0, bytes(8)), "transaction_id has not as many elements"),
        (output_twice, "output score is there twice"),
        (input_twice, "input transaction_id is there twice"),
        (raw_and_typed, "input amount has raw and typed contents"),
        (wrong_typed, "input amount has contents of another type"),
        (too_many_typed, "input amount has not as many elements"),
        (nothing, "there are no inputs"),
    ],
)
def test_what_it_does_not_allow_is_refused_in_words(
    behind: Behind, change: Change, words: str
) -> None:
    """INVALID_ARGUMENT; the server sees nothing of it."""
    request = good_request(1, tag="t")
    change(request)
    before = len(behind.recorder.seen)
    answer = behind.send(request.SerializeToString())
    assert answer.startswith("INVALID_ARGUMENT: ")
    assert re.search(words, answer), answer
    assert len(behind.recorder.seen) == before


GOOD = good_request(1, tag="t").SerializeToString()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        GOOD[:-1],
        GOOD + b"\x0a\x05fraud",  # the name again
        b"\x0a\x05other" + GOOD,  # protobuf takes the last one
        GOOD + b"\x40\x01",  # field 8
        GOOD + b"\x9b\x06\x9c\x06",  # a group
        GOOD + b"\x8a\x00\x05fraud",  # field 1, its tag in two bytes
        GOOD + b"\x08\x01",  # field 1 as a number
        GOOD + b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2^64 - 1 bytes
        GOOD + b"\x2a\x80\x80\x80\x80\x10",  # 2^32 bytes
        GOOD + b"\x2a" + b"\xff" * 11,
        GOOD + b"\xff" * 30,
        GOOD + b"\x1a\x02\xff\xfe",  # an id that is no UTF-8
        b"\xff" * 100_000,
        b"\x2a\x00" * 50_000,
        b"\x3a\x00" * 50_000,
    ],
)
def test_bytes_that_only_protobuf_understands_are_refused(
    behind: Behind, message: bytes
) -> None:
    """Or that nobody does; nothing of them is passed on."""
    before = len(behind.recorder.seen)
    assert behind.send(message).split(":")[0] in (
        "INVALID_ARGUMENT",
        "PERMISSION_DENIED",
    )
    assert len(behind.recorder.seen) == before


@pytest.mark.parametrize(
    "name",
    ["fraud_features", "fraud_model", "fraud_decision", "", "frau", "fraud,credit"],
)
@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady", "ModelMetadata"])
def test_models_that_are_no_products_are_denied(
    behind: Behind, method: str, name: str
) -> None:
    """The steps of an ensemble among them, also for health and metadata."""
    request: object = service_pb2.ModelReadyRequest(name=name)
    if method == "ModelInfer":
        request = good_request(1, tag="t")
        request.model_name = name
    before = len(behind.recorder.seen)
    answer = behind.send(request.SerializeToString(), SERVICE + method)  # type: ignore[attr-defined]
    assert answer == f'PERMISSION_DENIED: model_name: "{name}" is not a product'
    assert len(behind.recorder.seen) == before


def test_health_and_metadata_take_what_their_messages_have(behind: Behind) -> None:
    """A name, no version, and nothing where there is nothing to say."""
    ready = service_pb2.ModelReadyRequest(name="credit").SerializeToString()
    versioned = service_pb2.ModelReadyRequest(name="credit", version="1")
    check = "/grpc.health.v1.Health/Check"
    for method in ("ModelReady", "ModelMetadata"):
        assert behind.send(ready, SERVICE + method) == "OK"
        answer = behind.send(versioned.SerializeToString(), SERVICE + method)
        assert answer.startswith("INVALID_ARGUMENT: model_version")
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        assert behind.send(b"", SERVICE + method) == "OK"
        assert behind.send(ready, SERVICE + method).startswith("INVALID_ARGUMENT")
    assert behind.send(b"", check) == "OK"
    assert behind.send(b"\x0a\x04name", check) == "OK"
    assert behind.send(b"\x12\x04name", check).startswith("INVALID_ARGUMENT")


def test_messages_that_cannot_be_inspected_are_refused(behind: Behind) -> None:
    """Compressed ones, and several in one call."""
    before = len(behind.recorder.seen)
    key = bearer(behind.place.shop)
    unary, many = behind.channel.unary_unary(INFER), behind.channel.stream_unary(INFER)
    gzip = grpc.Compression.Gzip
    with pytest.raises(grpc.RpcError, match="is compressed") as compressed:
        unary(GOOD * 9, metadata=key, compression=gzip, timeout=PATIENT_S)
    with pytest.raises(grpc.RpcError, match="not one message") as several:
        many(iter([GOOD, GOOD]), metadata=key, timeout=PATIENT_S)
    for error in (compressed, several):
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(behind.recorder.seen) == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        struct.pack(">BI", 0, len(GOOD) + 1) + GOOD,
        struct.pack(">BI", 0, len(GOOD) - 1) + GOOD,
        struct.pack(">BI", 0, 2**32 - 1) + GOOD,
        struct.pack(">BI", 2, len(GOOD)) + GOOD,
        struct.pack(">BI", 0, len(GOOD)) + GOOD + b"\0",
    ],
)
def test_frames_that_lie_are_refused(
    behind: Behind, tmp_path: Path, body: bytes
) -> None:
    """Posted by a program that knows nothing of gRPC."""
    before = len(behind.recorder.seen)
    one, key = Hostile("frame", body), behind.place.shop
    sent = post(behind.gateway.listen, one, key=key, folder=tmp_path)
    assert asyncio.run(sent)[0] == "INVALID_ARGUMENT"
    assert len(behind.recorder.seen) == before


def allowed(request: Request) -> bool:
    """Tell, by google.protobuf, whether the contract allows a request."""
    tensors = list(request.inputs)
    rows = tensors[0].shape[0] if tensors and tensors[0].shape else 0
    parts = [request, *tensors, *request.outputs, *(one.contents for one in tensors)]
    names = [one.name for one in tensors]
    outputs = [one.name for one in request.outputs]
    typed = [one.HasField("contents") for one in tensors]
    return (
        request.model_name in ("fraud", "credit")
        and not request.model_version
        and set(request.parameters) <= PARAMETERS
        and all(list(one.shape) == [rows, 1] for one in tensors)
        and 1 <= rows <= 32
        and not any(len(UnknownFieldSet(part)) for part in parts)
        and not any(one.parameters for one in (*tensors, *request.outputs))
        and len(set(names)) == len(names)
        and len(set(outputs)) == len(outputs)
        and (
            len(request.raw_input_contents) == len(tensors) and not any(typed)
            if request.raw_input_contents
            else all(typed)
        )
    )


def test_all_that_passes_a_fuzzer_is_allowed(behind: Behind) -> None:
    """What reached the server of 1,000 requests is read again by google.protobuf."""
    requests = (one for one in hostile_requests(7) if one.path == INFER)
    behind.recorder.seen.clear()
    sent = 0
    for one in requests:
        flag, length = struct.unpack(">BI", one.body[:5].ljust(5, b"\xff"))
        if flag or length != len(one.body) - 5:
            continue
        while behind.send(one.body[5:]).startswith("PERMISSION_DENIED: suspended"):
            for record in (behind.gateway.state / "suspended").iterdir():
                record.unlink()
        sent += 1
        if sent == 1000:
            break
    passed = [message for _, message in behind.recorder.seen]
    assert 20 < len(passed) < 300
    for message in passed:
        assert allowed(Request.FromString(message)), message


# Who sends harm -----------------------------------------------------------------------


def classified(request: Request) -> None:
    """Ask for the classes of a text: tritonserver 2.51 ends."""
    output = request.outputs.add(name="decision")
    output.parameters["classification"].int64_param = 1


def shared_input(request: Request) -> None:
    """Name a shared memory region for an input."""
    request.inputs[0].parameters["shared_memory_region"].string_param = "region"


def harmful_message(change: Change = classified) -> bytes:
    """Write a request with a parameter where none is taken."""
    request = good_request(1, tag="t")
    change(request)
    return request.SerializeToString()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (classified, "output decision has parameters; none are taken"),
        (shared_input, "input transaction_id has parameters; none are taken"),
    ],
)
def test_the_third_harmful_request_suspends_its_caller_and_nobody_else(
    place: Place, change: Change, words: str
) -> None:
    """In all processes of nginx; counted and logged, and over by itself."""
    log = place.folder / f"harmful-{time.monotonic_ns()}.log"
    with recorded(place, requests=log, workers=4) as behind:
        metrics = GatewayMetrics(log)
        for _ in range(2):
            refused = behind.send(harmful_message(change))
            assert refused == f"INVALID_ARGUMENT: {words}"
            assert behind.send(GOOD) == "OK"
        behind.send(harmful_message(change))
        suspended = "PERMISSION_DENIED: suspended for a minute after 3 harmful requests"
        for _ in range(8):  # connections of their own: other processes of nginx
            with place.channel(behind.gateway.listen) as channel:
                assert said(channel, GOOD, INFER, key=place.shop) == suspended
                ready = f"{SERVICE}ServerReady"
                assert said(channel, b"", ready, key=place.shop) == suspended
                assert said(channel, GOOD, INFER, key=place.bank) == "OK"
        folder = behind.gateway.state / "suspended"
        (record,) = (one for one in folder.iterdir() if one.name != "latest")
        a_minute_ago = time.time() - 61
        os.utime(record, (a_minute_ago, a_minute_ago))
        assert behind.send(GOOD) == "OK"
        assert behind.send(harmful_message(change)) == refused
        assert behind.send(GOOD) == "OK"  # counted from one again
        until = time.monotonic() + PATIENT_S
        wanted = {
            ("harmful", "INVALID_ARGUMENT"): 4,
            ("suspended", "PERMISSION_DENIED"): 16,
            ("passed", "OK"): 4,
        }
        while outcomes_of(metrics, caller="shop") != wanted:
            assert time.monotonic() < until, outcomes_of(metrics, caller="shop")
            time.sleep(0.05)
            metrics.update()
        assert outcomes_of(metrics, caller="bank") == {("passed", "OK"): 8}
        metrics.close()
        text = (behind.gateway.state / "nginx.log").read_text()
    lines = [line for line in text.splitlines() if '"refused":"harmful"' in line]
    assert len(lines) == 4
    assert all('"caller":"shop"' in line and words in line for line in lines)


def test_mistakes_suspend_nobody(behind: Behind) -> None:
    """A wrong shape, an unknown model or a cut message, again and again."""
    wrong = good_request(1, tag="t")
    wrong.inputs[0].shape[0] = 33
    inner = good_request(1, tag="t")
    inner.model_name = "fraud_decision"
    for message in (wrong.SerializeToString(), inner.SerializeToString(), GOOD[:-1]):
        for _ in range(20):
            assert behind.send(message) != "OK"
    assert behind.send(GOOD) == "OK"
