"""A device answers real clients of gRPC, and frames that no such client sends."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from pygrpc_native import EVENT_CALL, EVENT_CANCEL
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.edge.bundles import Keys
from tollgate.edge import grpc_port
from tollgate.edge.device import Ask, Device
from tollgate.edge.grpc_port import GrpcPort
from tollgate.edge.service import MOST_REQUEST_BYTES, DeviceServicer
from tollgate.errors import SetupError
from tollgate_client import Client, ClientError

NOW_US = time.time_ns() // 1000
INFER = "/inference.GRPCInferenceService/ModelInfer"
READY = "/inference.GRPCInferenceService/ServerReady"
READY_RESPONSE = b"\x08\1"  # field 1 is true
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


def call_raw(port: GrpcPort, path: str, content: bytes, **options: Any) -> bytes:
    """Call a method with the bytes of a message, on a connection of its own."""
    with grpc.insecure_channel(
        f"127.0.0.1:{port.port}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        answer: bytes = channel.unary_unary(path)(content, timeout=60, **options)
    return answer


def assert_ready(port: GrpcPort) -> None:
    """Have a request answered."""
    assert call_raw(port, READY, b"") == READY_RESPONSE


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
        for algorithm in (None, "gzip"):
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


@pytest.mark.parametrize("letter", ["n", "n ", '"', "{}", "取"])
def test_a_text_that_no_client_would_take_is_cut(port: GrpcPort, letter: str) -> None:
    """Clients refuse headers beyond some KiB, and would name another status."""
    with grpc.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name=letter * 20_000)
        for _ in range(20):  # a client refuses some of those that it may refuse
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(request)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        words = caught.value.details()
        assert words.startswith("Request for unknown model: '" + letter * 20)
        assert 700 < len(words) <= 7_168


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


class Front:
    """The library's part, with calls that a test makes."""

    bound_port = 1

    def __init__(self, address: str, methods: list[tuple[str, bool]], **_: int) -> None:
        self.paths = [path for path, _ in methods]
        self.arrived: list[tuple[int, int, int, bytes | None, None]] = []
        self.answers: dict[int, bytes] = {}
        self.failed: dict[int, tuple[int, str]] = {}

    def start(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def add(self, number: int, path: str, content: bytes) -> None:
        """Add a call to those that wait."""
        method = self.paths.index(path)
        self.arrived.append((EVENT_CALL, number, method, content, None))

    def recv_batch(self, most: int, timeout_ms: int) -> list[Any]:
        """Return the calls that wait, and then none."""
        batch, self.arrived = self.arrived[:most], self.arrived[most:]
        if not batch:
            time.sleep(timeout_ms / 1e3)
        return batch

    def respond(self, number: int, content: bytes) -> bool:
        """Keep an answer."""
        self.answers[number] = content
        return True

    def fail(self, number: int, code: int, text: str) -> bool:
        """Keep a status."""
        self.failed[number] = code, text
        return True


def test_calls_that_wait_are_decided_together(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without those whose callers gave up; each gets its own answer or status."""
    batches: list[int] = []
    answer = device.answer

    def counted(asks: Sequence[Ask]) -> None:
        batches.append(len(asks))
        answer(asks)

    monkeypatch.setattr(device, "answer", counted)
    monkeypatch.setattr(grpc_port, "NativeGrpcFront", Front)
    port = GrpcPort(device, address="127.0.0.1:0")
    port.close()
    front: Any = port._front
    for number in range(1, 6):
        front.add(number, INFER, infer_request(number).SerializeToString())
    front.add(6, READY, b"")
    front.add(7, INFER, b"\xff\xff")
    front.add(8, INFER, bytes(MOST_REQUEST_BYTES + 1))
    front.arrived.append((EVENT_CANCEL, 2, 0, None, None))
    front.arrived.append((EVENT_CANCEL, 9, 0, None, None))  # answered long ago
    port._answer()
    assert batches == [4]
    assert sorted(front.answers) == [1, 3, 4, 5, 6]
    assert len({front.answers[number] for number in (1, 3, 4, 5)}) == 4
    assert front.answers[6] == READY_RESPONSE
    assert front.failed == {
        7: (13, "the request cannot be parsed"),
        8: (8, "a request of 262145 bytes; at most 262144 fit"),
    }
    port._answer()
    assert batches == [4]


def test_requests_of_several_callers_share_a_batch(
    device: Device, port: GrpcPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that arrive while others are decided."""
    batches: list[int] = []
    answer = device.answer

    def slow(asks: Sequence[Ask]) -> None:
        batches.append(len(asks))
        time.sleep(0.02)
        answer(asks)

    monkeypatch.setattr(device, "answer", slow)
    contents = [infer_request(number).SerializeToString() for number in range(200)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda one: call_raw(port, INFER, one), contents))
    assert len(answers) == sum(batches) == 200
    assert len(batches) < 150


@pytest.mark.parametrize(
    ("path", "content", "code"),
    [
        (INFER, b"\xff\xff", grpc.StatusCode.INTERNAL),
        (INFER, bytes(MOST_REQUEST_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (INFER, b"", grpc.StatusCode.NOT_FOUND),  # of no model
        (INFER + "s", b"", grpc.StatusCode.UNIMPLEMENTED),
        ("/other.Service/ModelInfer", b"", grpc.StatusCode.UNIMPLEMENTED),
    ],
)
def test_a_request_that_is_none_gets_a_status(
    port: GrpcPort, path: str, content: bytes, code: grpc.StatusCode
) -> None:
    """The next one is answered."""
    with pytest.raises(grpc.RpcError) as caught:
        call_raw(port, path, content)
    assert caught.value.code() is code
    with pytest.raises(grpc.RpcError) as caught:
        call_raw(port, path, content, compression=grpc.Compression.Gzip)
    assert caught.value.code() is code
    assert_ready(port)


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Write a frame of HTTP/2."""
    size = len(content).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def opened(calls: int = 1) -> bytes:
    """Write a connection with some calls."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": READY,
        ":authority": "device",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    streams = range(1, 2 * calls, 2)
    return (PREFACE + frame(4, 0, 0, b"")) + b"".join(
        frame(1, 4, one, block) + frame(0, 1, one, bytes(5)) for one in streams
    )


def sent(port: GrpcPort, content: bytes) -> None:
    """Send bytes to a port, and nothing more; read until it ends the connection."""
    with socket.create_connection(("127.0.0.1", port.port), timeout=30) as peer:
        peer.sendall(content)
        peer.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while peer.recv(65536):
                pass


def test_frames_of_a_call_are_answered(port: GrpcPort) -> None:
    """Also when they come byte by byte."""
    with socket.create_connection(("127.0.0.1", port.port), timeout=30) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in opened():
            peer.sendall(bytes([byte]))
        found = b""
        while bytes([0, 0, 0, 0, 2]) + READY_RESPONSE not in found:
            chunk = peer.recv(65536)
            assert chunk
            found += chunk


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: device\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS handshake
        PREFACE + frame(4, 0, 0, bytes(5)),  # settings have 6
        PREFACE + frame(4, 0, 0, b"") + frame(1, 5, 1, b"\xff" * 5),  # headers
        PREFACE + frame(4, 0, 0, b"") + frame(8, 0, 0, bytes(4)),  # a window of 0
        PREFACE + frame(0, 0, 1, b"x"),  # data of a stream that is not open
        opened()[:-20],
    ],
)
def test_a_broken_connection_ends_alone(
    port: GrpcPort, garbage: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Others go on, and nothing is printed."""
    sent(port, garbage)
    assert_ready(port)
    assert capfd.readouterr().err == ""


def test_a_peer_that_does_not_read_harms_no_other(port: GrpcPort) -> None:
    """It has sent 20,000 calls, or as many as the port takes."""
    content = memoryview(opened(20_000))
    with socket.create_connection(("127.0.0.1", port.port), timeout=1) as peer:
        with suppress(TimeoutError, ConnectionError):
            while content:
                content = content[peer.send(content) :]
        for _ in range(20):
            assert_ready(port)


def test_random_frames_end_no_more_than_their_connection(
    port: GrpcPort, capfd: pytest.CaptureFixture[str]
) -> None:
    """Valid connections with bytes changed at random, 300 of them."""
    draw = np.random.default_rng(7)
    for _ in range(300):
        content = bytearray(opened())
        for place in draw.integers(len(PREFACE), len(content), 3):
            content[place] = draw.integers(256)
        sent(port, bytes(content))
    assert_ready(port)
    assert capfd.readouterr().err == ""


def test_requests_in_flight_are_answered_at_the_end(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one is not taken; the port is free at once."""
    answer = device.answer
    batches: list[int] = []
    busy, go_on = threading.Event(), threading.Event()

    def held(asks: Sequence[Ask]) -> None:
        batches.append(len(asks))
        busy.set()
        assert go_on.wait(60)
        answer(asks)

    monkeypatch.setattr(device, "answer", held)
    port = GrpcPort(device, address="127.0.0.1:0")
    with grpc.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelInfer.future(infer_request(1), timeout=60)
        assert busy.wait(60)
        later = stub.ModelInfer.future(infer_request(2), timeout=60)
        closed = threading.Thread(target=port.close)
        closed.start()
        closed.join(0.2)
        assert closed.is_alive()
        go_on.set()
        closed.join(60)
        assert not closed.is_alive()
        assert b"fraud-1" in b"".join(decisions(call.result()))
        assert later.code() is grpc.StatusCode.UNAVAILABLE
    assert batches == [1]
    port.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.port))
    with GrpcPort(device, address=f"127.0.0.1:{port.port}") as again:
        assert again.port == port.port
        assert_ready(again)


def test_a_port_closes_while_callers_connect(device: Device) -> None:
    """Each call is answered or refused; none waits for its deadline."""
    for number in range(5):
        port = GrpcPort(device, address="127.0.0.1:0")
        stopped = threading.Event()

        def call(port: GrpcPort, stopped: threading.Event) -> set[grpc.StatusCode]:
            codes = set()
            while not stopped.is_set():
                try:
                    assert_ready(port)
                except grpc.RpcError as error:
                    codes.add(error.code())
            return codes

        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(call, port, stopped) for _ in range(4)]
            time.sleep(0.02 * number)
            port.close()
            stopped.set()
            for one in calls:
                assert one.result() <= {grpc.StatusCode.UNAVAILABLE}


def test_connections_that_end_leave_no_file_open(port: GrpcPort) -> None:
    """Idle, within a request, and before the answer is read."""
    files = Path(f"/proc/{os.getpid()}/fd")
    assert_ready(port)
    before = len(list(files.iterdir()))
    for number in range(400):
        with socket.create_connection(("127.0.0.1", port.port)) as peer:
            peer.sendall(opened()[: len(PREFACE) + 30 * (number % 10)])
    assert_ready(port)
    until_s = time.monotonic() + 60
    # Other tests' clients may open some files meanwhile.
    while len(list(files.iterdir())) > before + 20:
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


@pytest.mark.parametrize(
    "address", ["nowhere.invalid:0", "127.0.0.1", "[::1]:99999", "unix:/x:0"]
)
def test_an_address_that_cannot_be_used_is_named(device: Device, address: str) -> None:
    """In one line."""
    with pytest.raises(SetupError, match="cannot be used"):
        GrpcPort(device, address=address)
