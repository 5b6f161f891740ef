"""A device answers real clients of gRPC, and frames that no such client sends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes, Settings
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.edge.bundles import Keys
from tollgate.edge.device import Ask, Device
from tollgate.edge.grpc_port import GrpcPort
from tollgate.edge.service import MOST_REQUEST_BYTES, DeviceServicer
from tollgate.errors import SetupError
from tollgate_client import Client, ClientError

NOW_US = time.time_ns() // 1000
INFER = b"/inference.GRPCInferenceService/ModelInfer"
READY = b"/inference.GRPCInferenceService/ServerReady"
READY_REQUEST = b"\0\0\0\0\0"  # an empty message
READY_RESPONSE = b"\0\0\0\0\2\x08\1"  # field 1 is true
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture
def device(bundle: Path, keys: Keys, tmp_path: Path) -> Iterator[Device]:
    """Open a device on an empty folder."""
    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        yield device


@pytest.fixture
def port(device: Device) -> Iterator[GrpcPort]:
    """Serve it."""
    with GrpcPort(device, address="127.0.0.1:0") as port:
        yield port


def columns(numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Make purchases of a few customers and terminals."""
    return {
        "transaction_id": [f"t{one}" for one in numbers],
        "customer_id": [f"c{one % 5}" for one in numbers],
        "terminal_id": [f"m{one % 3}" for one in numbers],
        "amount": [10.25 + 40 * one for one in numbers],
        "event_time": [NOW_US + one for one in numbers],
    }


def infer_request(*numbers: int) -> service_pb2.ModelInferRequest:
    """Encode purchases as NVIDIA's client does."""
    inputs = []
    kinds = {"amount": ("FP64", np.float64), "event_time": ("INT64", np.int64)}
    for name, column in columns(numbers).items():
        kind, dtype = kinds.get(name, ("BYTES", np.object_))
        tensor = tritonclient.grpc.InferInput(name, [len(column), 1], kind)
        tensor.set_data_from_numpy(np.array(column, dtype).reshape(-1, 1))
        inputs.append(tensor)
    request = service_pb2.ModelInferRequest(model_name="fraud")
    for tensor in inputs:
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    return request


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """Put the prefix of gRPC in front of a message."""
    return struct.pack(">?I", compressed, len(message)) + message


class Caller:
    """A peer that speaks HTTP/2 frame by frame."""

    def __init__(
        self, port: GrpcPort, settings: dict[SettingCodes | int, int] | None = None
    ) -> None:
        config = H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = H2Connection(config)
        if settings:
            self.h2.local_settings = Settings(client=True, initial_values=settings)
        self.socket = socket.create_connection(("127.0.0.1", port.port), timeout=30)
        self.h2.initiate_connection()
        self.headers: dict[int, dict[str, str]] = {}
        self.data: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.reset: dict[int, int] = {}
        self.events: list[Event] = []

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def open(
        self, path: bytes = READY, *, end: bool = False, **changed: bytes | None
    ) -> int:
        """Add the headers of a request to what is sent next."""
        stream = self.h2.get_next_available_stream_id()
        headers = {
            "method": b"POST",
            "scheme": b"http",
            "path": path,
            "authority": b"device",
            "content_type": b"application/grpc",
            "te": b"trailers",
            **changed,
        }
        pseudo = ("method", "scheme", "path", "authority")
        self.h2.send_headers(
            stream,
            [
                (
                    (":" if name in pseudo else "").encode()
                    + name.replace("_", "-").encode(),
                    value,
                )
                for name, value in headers.items()
                if value is not None
            ],
            end_stream=end,
        )
        self.data[stream] = b""
        return stream

    def ask(self, body: bytes, path: bytes = READY, **changed: bytes | None) -> int:
        """Add a request to what is sent next."""
        stream = self.open(path, **changed)
        size = self.h2.max_outbound_frame_size
        for start in range(0, len(body), size):
            self.h2.send_data(stream, body[start : start + size])
        self.h2.end_stream(stream)
        return stream

    def send(self) -> None:
        """Send what was added, at once."""
        self.socket.sendall(self.h2.data_to_send())

    def read(self) -> bool:
        """Read frames; return whether the connection is open."""
        received = self.socket.recv(65536)
        for event in self.h2.receive_data(received) if received else ():
            self.events.append(event)
            stream: int = getattr(event, "stream_id", 0)
            if isinstance(event, (ResponseReceived, TrailersReceived)):
                found = {str(name): str(value) for name, value in event.headers}
                self.headers.setdefault(stream, {}).update(found)
            elif isinstance(event, DataReceived):
                self.data[stream] += event.data
            elif isinstance(event, StreamEnded):
                self.ended.add(stream)
            elif isinstance(event, StreamReset):
                self.reset[stream] = event.error_code
        return bool(received)

    def wait_for(self, *streams: int) -> None:
        """Send what was added, and read until streams have ended."""
        self.send()
        while not self.ended >= set(streams):
            assert self.read(), "the connection ended"

    def status(self, stream: int) -> tuple[int, str]:
        """Wait for the end of a stream; return its status and message."""
        self.wait_for(stream)
        headers = self.headers[stream]
        assert headers[":status"] == "200"
        return int(headers["grpc-status"]), headers.get("grpc-message", "")

    def assert_ready(self) -> None:
        """Have another request answered."""
        stream = self.ask(READY_REQUEST)
        assert self.status(stream) == (0, "")
        assert self.data[stream] == READY_RESPONSE


@pytest.fixture
def caller(port: GrpcPort) -> Iterator[Caller]:
    """Open a connection."""
    with closing(Caller(port)) as caller:
        yield caller


def decisions(response: Any) -> list[bytes]:
    """Return the raw outputs of a response."""
    return list(response.raw_output_contents)


def test_many_calls_of_grpcio_have_their_own_answers(
    device: Device, port: GrpcPort
) -> None:
    """In threads on one channel, on several channels, and in asyncio."""
    wanted = {
        one: device.decide(columns([one]), dry_run=True)["score"].tobytes()
        for one in (0, 100)
    }
    address = f"127.0.0.1:{port.port}"

    def stub_of(channel: Any) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def ids(request: Any, response: Any) -> tuple[str, list[bytes]]:
        assert response.id == request.id
        return request.id, decisions(response)

    def ask(stub: Any, number: int) -> tuple[str, list[bytes]]:
        request = infer_request(number)
        request.id = f"call {number}"
        return ids(request, stub.ModelInfer(request, timeout=60))

    local = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.insecure_channel(address, options=local) for _ in range(5)]
    stubs = [stub_of(one) for one in channels]
    with ThreadPoolExecutor(20) as pool:
        one_channel = dict(pool.map(lambda one: ask(stubs[0], one), range(200)))
        several = dict(pool.map(lambda one: ask(stubs[one % 5], one), range(200)))
    for one in channels:
        one.close()

    async def all_at_once() -> dict[str, list[bytes]]:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = stub_of(channel)

            async def ask_one(number: int) -> tuple[str, list[bytes]]:
                request = infer_request(number)
                request.id = f"call {number}"
                return ids(request, await stub.ModelInfer(request, timeout=60))

            return dict(await asyncio.gather(*map(ask_one, range(300))))

    at_once = asyncio.run(all_at_once())
    assert len(one_channel) == len(several) == 200
    assert len(at_once) == 300
    assert several == one_channel  # the first decision stands
    assert {name: at_once[name] for name in one_channel} == one_channel
    assert len({answer[1] for answer in one_channel.values()}) > 5  # scores
    assert one_channel["call 0"][1] == wanted[0]


def test_the_clients_of_triton_and_of_tollgate_reach_it(
    device: Device, port: GrpcPort
) -> None:
    """Metadata, readiness and decisions; also compressed."""
    address = f"127.0.0.1:{port.port}"
    rows = columns(range(8))
    wanted = device.decide(rows, dry_run=True)
    with closing(tritonclient.grpc.InferenceServerClient(address)) as triton:
        assert triton.is_server_live()
        assert triton.is_server_ready()
        assert triton.is_model_ready("fraud")
        assert not triton.is_model_ready("other")
        described = triton.get_model_metadata("fraud")
        inputs = []
        for one in described.inputs:
            if one.name in rows:
                tensor = tritonclient.grpc.InferInput(one.name, [8, 1], one.datatype)
                dtype = tritonclient.grpc.triton_to_np_dtype(one.datatype)
                column = np.array(rows[one.name], dtype).reshape(8, 1)
                inputs.append(tensor.set_data_from_numpy(column))
        for algorithm in (None, "gzip", "deflate"):
            found = triton.infer("fraud", inputs, compression_algorithm=algorithm)
            assert found.as_numpy("score").tobytes() == wanted["score"].tobytes()
        with pytest.raises(tritonclient.grpc.InferenceServerException) as caught:
            triton.get_model_metadata("other")
        assert caught.value.status() == "StatusCode.NOT_FOUND"
        with pytest.raises(tritonclient.grpc.InferenceServerException) as caught:
            triton.get_server_metadata()
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    with Client(address, product="fraud", timeout_s=60.0) as client:
        assert client.decide(rows).score.tobytes() == wanted["score"].tobytes()


def test_a_streaming_method_is_not_implemented(port: GrpcPort) -> None:
    """The caller gets the status before its request ends."""
    with grpc.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        hold = threading.Event()

        def requests() -> Iterator[Any]:
            yield infer_request(1)
            hold.wait(60)

        with pytest.raises(grpc.RpcError) as caught:
            list(stub.ModelStreamInfer(requests(), timeout=60))
        hold.set()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_text_of_an_error_arrives_as_it_was_sent(port: GrpcPort) -> None:
    """With letters of other scripts, percent signs and line breaks."""
    name = "100 % Zürich\n取引\t'"
    with grpc.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for call in (
            lambda: stub.ModelInfer(service_pb2.ModelInferRequest(model_name=name)),
            lambda: stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=name)),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            words = f"Request for unknown model: '{name}' is not found"
            assert caught.value.details() == words


def test_a_text_that_no_client_would_take_is_cut(port: GrpcPort) -> None:
    """Clients refuse headers beyond some KiB, and would name another status."""
    with grpc.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(service_pb2.ModelInferRequest(model_name="n" * 20_000))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert caught.value.details().startswith("Request for unknown model: 'nnn")
        assert len(caught.value.details()) == 7_168
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(service_pb2.ModelInferRequest(model_name="取" * 20_000))
        assert "取取" in caught.value.details()
        assert "%" not in caught.value.details()


def test_each_of_many_bad_rows_has_its_reason(port: GrpcPort) -> None:
    """The text of the status has all of them."""
    rows = columns(range(32))
    rows["transaction_id"] = [f"{number:0128d}" for number in range(32)]
    other = rows | {"amount": [value + 1 for value in rows["amount"]]}
    address = f"127.0.0.1:{port.port}"
    with Client(address, product="fraud", timeout_s=60.0) as client:
        client.decide(rows)
        with pytest.raises(ClientError) as caught:
            client.decide(other)
    reasons = str(caught.value).splitlines()
    assert len(reasons) == 32
    for number, reason in enumerate(reasons):
        assert f"row {number}: transaction_id: " in reason
        assert reason.endswith("conflict: was decided with other content")


def test_a_response_that_cannot_be_built_is_one_callers_error(
    port: GrpcPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others of its turn, and those after it, get theirs."""
    ready = DeviceServicer.ServerReady

    def broken(servicer: DeviceServicer, request: object, context: object) -> object:
        return next(answers) or ready(servicer, request, context)

    answers = iter([object(), None, None])
    monkeypatch.setattr(DeviceServicer, "ServerReady", broken)
    with grpc.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [
            stub.ServerReady.future(service_pb2.ServerReadyRequest()) for _ in range(3)
        ]
        codes = [one.code() for one in calls]
    assert codes.count(grpc.StatusCode.UNKNOWN) == 1
    assert codes.count(grpc.StatusCode.OK) == 2


def test_requests_of_one_write_are_decided_together(
    device: Device, port: GrpcPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of two connections, too, while the loop is busy with others."""
    batches: list[int] = []
    answer = device.answer
    busy, go_on = threading.Event(), threading.Event()

    def counted(asks: Sequence[Ask]) -> None:
        batches.append(len(asks))
        if len(batches) == 2:
            busy.set()
            assert go_on.wait(60)
        answer(asks)

    monkeypatch.setattr(device, "answer", counted)
    with closing(Caller(port)) as one, closing(Caller(port)) as other:
        first = [
            one.ask(framed(infer_request(n).SerializeToString()), INFER)
            for n in range(10)
        ]
        one.wait_for(*first)
        other.assert_ready()
        assert batches == [10]
        held = one.ask(framed(infer_request(50).SerializeToString()), INFER)
        one.send()
        assert busy.wait(60)
        later = {}
        for caller, number in ((one, 51), (other, 52)):
            body = framed(infer_request(number).SerializeToString())
            later[caller] = caller.ask(body, INFER)
            caller.send()
        go_on.set()
        one.wait_for(held, later[one])
        other.wait_for(later[other])
        assert batches == [10, 1, 2]
        assert {one.status(stream)[0] for stream in (*first, held)} == {0}


def test_a_message_may_arrive_byte_by_byte(caller: Caller, device: Device) -> None:
    """As frames of one byte, and as packets of one byte."""
    body = framed(infer_request(1).SerializeToString())
    wanted = device.decide(columns([1]), dry_run=True)["score"].tobytes()
    streams = []
    for apart in (False, True):
        stream = caller.open(INFER)
        for byte in range(len(body)):
            caller.h2.send_data(stream, body[byte : byte + 1])
        caller.h2.end_stream(stream)
        if apart:
            for byte in caller.h2.data_to_send():
                caller.socket.sendall(bytes([byte]))
        assert caller.status(stream) == (0, "")
        response = service_pb2.ModelInferResponse.FromString(caller.data[stream][5:])
        assert decisions(response)[1] == wanted
        streams.append(stream)
    assert caller.data[streams[0]] == caller.data[streams[1]]


@pytest.mark.parametrize(
    ("body", "changed", "code", "says"),
    [
        (READY_REQUEST, {"path": b"/inference.GRPCInferenceService/No"}, 12, "found"),
        (READY_REQUEST, {"path": b"/"}, 12, "Method not found!"),
        (b"", {}, 13, "cut off after 0 bytes"),
        (b"\0\0\0", {}, 13, "cut off after 3 bytes"),
        (b"\0\0\0\0\5abc", {}, 13, "cut off after 8 bytes"),
        (READY_REQUEST * 2, {}, 13, "one message of 0 bytes; more came"),
        (b"\0\0\4\0\1", {}, 8, "262145 bytes or more; at most 262144 fit"),
        (b"\0\xff\xff\xff\xff", {}, 8, "4294967295 bytes"),
        (framed(b"\xff\xff"), {}, 13, "cannot be parsed"),
        (framed(b"", compressed=True), {}, 12, "identity are not supported"),
        (framed(b"x", compressed=True), {"grpc_encoding": b"snappy"}, 12, "snappy"),
        (framed(b"x", compressed=True), {"grpc_encoding": b"gzip"}, 13, "parsed"),
        (
            framed(zlib.compress(b"")[:-1], compressed=True),
            {"grpc_encoding": b"deflate"},
            13,
            "cannot be parsed",
        ),
        (
            framed(zlib.compress(bytes(50 << 20)), compressed=True),
            {"grpc_encoding": b"deflate"},
            8,
            "262145 bytes or more",
        ),
    ],
)
def test_a_request_that_is_no_message_gets_a_status(
    caller: Caller, body: bytes, changed: dict[str, bytes], code: int, says: str
) -> None:
    """The connection goes on."""
    stream = caller.ask(body, **changed)
    found, text = caller.status(stream)
    assert (found, says in text) == (code, True), text
    assert caller.data[stream] == b""
    caller.assert_ready()


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"content_type": b"application/json"}, "415"),
        ({"content_type": None}, "415"),
        ({"method": b"GET"}, "405"),
    ],
)
def test_what_is_not_grpc_gets_a_status_of_http(
    caller: Caller, changed: dict[str, bytes | None], status: str
) -> None:
    """The connection goes on."""
    stream = caller.ask(b"", **changed)
    caller.wait_for(stream)
    assert caller.headers[stream][":status"] == status
    assert "grpc-status" not in caller.headers[stream]
    caller.assert_ready()


def test_other_types_and_compressed_requests_are_of_grpc(caller: Caller) -> None:
    """With a suffix of the type; as gzip and as deflate, or announced but plain."""
    packer = zlib.compressobj(wbits=31)
    gzipped = packer.compress(b"") + packer.flush()
    streams = [
        caller.ask(READY_REQUEST, content_type=b"application/grpc+proto"),
        caller.ask(framed(gzipped, compressed=True), grpc_encoding=b"gzip"),
        caller.ask(
            framed(zlib.compress(b""), compressed=True), grpc_encoding=b"deflate"
        ),
        caller.ask(READY_REQUEST, grpc_encoding=b"gzip"),
    ]
    for stream in streams:
        assert caller.status(stream) == (0, "")
        assert caller.data[stream] == READY_RESPONSE


def test_a_request_that_is_too_long_is_refused_before_its_end(caller: Caller) -> None:
    """Its stream is reset, and what was under way does not hold up the others."""
    stream = caller.open(INFER)
    caller.h2.send_data(stream, b"\0\xff\0\0\0" + bytes(10_000))
    assert caller.status(stream)[0] == 8
    assert MOST_REQUEST_BYTES < 0xFF0000
    while stream not in caller.reset:
        assert caller.read()
    assert caller.reset[stream] == ErrorCodes.NO_ERROR
    for _ in range(30):  # more than the window of the connection, in all
        caller.assert_ready()
        late = caller.open(INFER)
        caller.h2.send_data(late, b"\0\xff\0\0\0" + bytes(10_000))
        assert caller.status(late)[0] == 8


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: device\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS handshake
        PREFACE + b"\0\0\x05\x04\0\0\0\0\0" + bytes(5),  # settings have 6
        PREFACE + b"\0\0\x05\x01\x05\0\0\0\1" + b"\xff" * 5,  # headers
        PREFACE + b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\x04\x08\0\0\0\0\0" + bytes(4),
        PREFACE + b"\0\0\1\0\0\0\0\0\1x",  # data of a stream that is not open
    ],
)
def test_a_broken_connection_ends_alone(
    port: GrpcPort,
    caller: Caller,
    garbage: bytes,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Others go on; the log has no stack trace."""
    caller.assert_ready()
    with socket.create_connection(("127.0.0.1", port.port), timeout=30) as broken:
        broken.sendall(garbage)
        received = b""
        while chunk := broken.recv(4096):
            received += chunk
    goaway = b"\x07\0\0\0\0\0"
    assert (goaway in received) == garbage.startswith(PREFACE)
    caller.assert_ready()
    assert "Traceback" not in capfd.readouterr().err


def test_random_frames_end_no_more_than_their_connection(
    port: GrpcPort, caller: Caller, capfd: pytest.CaptureFixture[str]
) -> None:
    """Valid connections with bytes changed at random, 300 of them."""
    draw = np.random.default_rng(7)
    for _ in range(300):
        with closing(Caller(port)) as broken:
            broken.ask(framed(infer_request(1).SerializeToString()), INFER)
            broken.ask(READY_REQUEST)
            sent = bytearray(broken.h2.data_to_send())
            for place in draw.integers(len(PREFACE), len(sent), 3):
                sent[place] = draw.integers(256)
            broken.socket.sendall(sent)
            broken.socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while broken.socket.recv(65536):
                    pass
    caller.assert_ready()
    assert "Traceback" not in capfd.readouterr().err


def test_a_caller_that_gives_up_gets_nothing_and_others_do(
    caller: Caller, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset in the same write, and one while the request is decided."""
    batches: list[int] = []
    answer = device.answer
    busy, go_on = threading.Event(), threading.Event()

    def held(asks: Sequence[Ask]) -> None:
        batches.append(len(asks))
        if len(batches) == 2:
            busy.set()
            assert go_on.wait(60)
        answer(asks)

    monkeypatch.setattr(device, "answer", held)
    bodies = [framed(infer_request(n).SerializeToString()) for n in range(4)]
    gone, first = caller.ask(bodies[0], INFER), caller.ask(bodies[1], INFER)
    caller.h2.reset_stream(gone, ErrorCodes.CANCEL)
    caller.h2.ping(b"12345678")
    assert caller.status(first)[0] == 0
    assert batches == [1]
    late, waiting = caller.ask(bodies[2], INFER), caller.ask(bodies[3], INFER)
    caller.send()
    assert busy.wait(60)
    caller.h2.reset_stream(late, ErrorCodes.CANCEL)
    caller.send()
    go_on.set()
    assert caller.status(waiting)[0] == 0
    caller.assert_ready()
    assert caller.data[gone] == b""
    assert any(isinstance(one, PingAckReceived) for one in caller.events)
    only_gone = caller.ask(bodies[0], INFER)
    caller.h2.reset_stream(only_gone, ErrorCodes.CANCEL)
    caller.events.clear()
    caller.h2.ping(b"87654321")
    caller.send()
    while not any(isinstance(one, PingAckReceived) for one in caller.events):
        assert caller.read()
    assert batches == [1, 2]


def test_a_response_waits_for_the_window_of_its_caller(
    port: GrpcPort, device: Device
) -> None:
    """It comes in parts as large as the window; a larger one lets the rest through."""
    size = SettingCodes.INITIAL_WINDOW_SIZE
    body = framed(infer_request(*range(32)).SerializeToString())
    wanted = device.decide(columns(range(32)))["score"].tobytes()
    with closing(Caller(port, {size: 10})) as caller:
        first, second = caller.ask(body, INFER), caller.ask(body, INFER)
        caller.send()
        while min(len(caller.data[first]), len(caller.data[second])) < 10:
            assert caller.read()
        ready = caller.ask(READY_REQUEST)  # a short one passes by
        assert caller.status(ready) == (0, "")
        assert (len(caller.data[first]), len(caller.data[second])) == (10, 10)
        caller.h2.increment_flow_control_window(7, first)
        caller.send()
        while len(caller.data[first]) < 17:
            assert caller.read()
        caller.assert_ready()
        assert (len(caller.data[first]), len(caller.data[second])) == (17, 10)
        caller.h2.update_settings({size: 100_000})
        for stream in (first, second):
            assert caller.status(stream) == (0, "")
            response = service_pb2.ModelInferResponse.FromString(
                caller.data[stream][5:]
            )
            assert decisions(response)[1] == wanted


def test_a_peer_that_does_not_read_is_not_read(port: GrpcPort, device: Device) -> None:
    """Its pings wait in its own buffers, and are all answered once it reads."""
    with closing(Caller(port)) as silent:
        silent.socket.settimeout(1.0)
        sent = 0
        ping = b"\0\0\x08\x06\0\0\0\0\0" + b"pingping"
        silent.send()
        with contextlib.suppress(TimeoutError):
            while sent < 1 << 30:
                sent += silent.socket.send(ping * 10_000)
        assert sent < 64 << 20
        with closing(Caller(port)) as other:
            other.assert_ready()
        silent.socket.settimeout(30.0)
        received = bytearray()
        while len(received) < sent - len(ping):
            received += silent.socket.recv(1 << 20)
        assert received.count(b"pingping") > 0.99 * (sent // len(ping))


def test_requests_in_flight_are_answered_at_the_end(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is decided, one that is half sent; a later one is not taken."""
    answer = device.answer
    busy, go_on = threading.Event(), threading.Event()

    def held(asks: Sequence[Ask]) -> None:
        busy.set()
        assert go_on.wait(60)
        answer(asks)

    port = GrpcPort(device, address="127.0.0.1:0")
    body = framed(infer_request(1).SerializeToString())
    with closing(Caller(port)) as caller, closing(Caller(port)) as idle:
        idle.assert_ready()
        half = caller.open(INFER)
        caller.h2.send_data(half, body[:20])
        caller.assert_ready()
        monkeypatch.setattr(device, "answer", held)
        decided = caller.ask(body, INFER)
        caller.send()
        assert busy.wait(60)
        closed = threading.Thread(target=port.close)
        closed.start()
        go_on.set()
        while not any(isinstance(one, ConnectionTerminated) for one in caller.events):
            assert caller.read()
        [goodbye] = [e for e in caller.events if isinstance(e, ConnectionTerminated)]
        assert goodbye.error_code == ErrorCodes.NO_ERROR
        assert goodbye.last_stream_id == decided
        assert closed.is_alive()
        # A peer's h2 sends nothing after a GOAWAY: these are the frames by hand.
        rest = body[20:]
        frame = len(rest).to_bytes(3, "big") + b"\0\1" + half.to_bytes(4, "big")
        caller.socket.sendall(frame + rest)
        received = b""
        while chunk := caller.socket.recv(65536):
            received += chunk
        assert b"fraud-1" in received
        while idle.read():
            pass
        closed.join(30)
        assert not closed.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.port))
    with GrpcPort(device, address=f"127.0.0.1:{port.port}") as again:
        assert again.port == port.port


def test_a_connection_that_comes_while_it_ends_is_ended(device: Device) -> None:
    """Callers connect between two turns of the loop, the second of which closes it."""
    for _ in range(5):
        port = GrpcPort(device, address="127.0.0.1:0")
        first, second = _Hold(port), _Hold(port)
        first.begin()
        closed = threading.Thread(target=port.close)
        closed.start()
        time.sleep(0.05)  # it waits for the loop
        second.begin(behind=first)
        with ExitStack() as stack:
            callers = [
                stack.enter_context(closing(socket.create_connection(address)))
                for address in [("127.0.0.1", port.port)] * 5
            ]
            for one in callers:
                one.sendall(PREFACE)
            second.go_on.set()
            closed.join(60)
            assert not closed.is_alive()
            assert not port._connections
            for one in callers:
                with suppress(ConnectionResetError):
                    while one.recv(65536):
                        pass


class _Hold:
    """Keep a port's loop busy until `go_on` is set."""

    def __init__(self, port: GrpcPort) -> None:
        self.go_on = threading.Event()
        self._port = port
        self._busy = threading.Event()

    def begin(self, *, behind: _Hold | None = None) -> None:
        """Wait until the loop is held; the hold before this one goes on."""
        self._port._loop.call_soon_threadsafe(self._hold)
        if behind is not None:
            behind.go_on.set()
        assert self._busy.wait(60)

    def _hold(self) -> None:
        self._busy.set()
        assert self.go_on.wait(60)


def test_connections_that_end_leave_no_file_open(port: GrpcPort) -> None:
    """1,000 of them: idle, within a request, and before the answer is read."""
    files = Path(f"/proc/{os.getpid()}/fd")
    with closing(Caller(port)) as first:
        first.assert_ready()
    before = len(list(files.iterdir()))
    for number in range(1_000):
        with closing(Caller(port)) as caller:
            if number % 4 == 1:
                caller.h2.send_data(caller.open(), b"\0\0")
            elif number % 4 == 2:
                caller.ask(READY_REQUEST)
            elif number % 4 == 3:
                caller.assert_ready()
            caller.send()
    with closing(Caller(port)) as last:
        last.assert_ready()
    until_s = time.monotonic() + 30
    # Other tests' clients may open some files meanwhile.
    while port._connections or len(list(files.iterdir())) > before + 20:
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_it_listens_on_its_address(device: Device, host: str) -> None:
    """And says so if that is taken."""
    with GrpcPort(device, address=f"{host}:0") as port:
        with grpc.insecure_channel(f"{host}:{port.port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerReady(service_pb2.ServerReadyRequest()).ready
        address = f"{host}:{port.port}"
        with pytest.raises(SetupError, match="cannot be used") as caught:
            GrpcPort(device, address=address)
        assert address in str(caught.value)
        assert "choose another port" in str(caught.value.remedy)


@pytest.mark.parametrize("address", ["nowhere.invalid:0", "127.0.0.1", "[::1]:99999"])
def test_an_address_that_cannot_be_used_is_named(device: Device, address: str) -> None:
    """In one line."""
    with pytest.raises(SetupError, match="cannot be used"):
        GrpcPort(device, address=address)
