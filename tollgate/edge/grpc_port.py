"""
Serve a device's decisions over gRPC, in the protocol of the server.

One thread runs the loop of events and decides, too: the disk is all that it waits for,
and each change of threads would cost as much as a part of the decision. All requests
that arrive in one turn of the loop are decided together. The `grpc-timeout` of a
request is ignored: once it is read, it is decided with these.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import zlib
from collections.abc import Coroutine
from typing import Any, NoReturn, cast
from urllib.parse import quote

import grpc
import uvloop
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error
from hyperframe.frame import GoAwayFrame
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.edge.address import split_address
from tollgate.edge.device import Device
from tollgate.edge.service import MOST_REQUEST_BYTES, DeviceServicer, UnknownModel
from tollgate.errors import InputError, TollgateError, trace_of
from tollgate.server.wire_tensors import Refused
from tollgate.worker import Worker

log = logging.getLogger(__name__)

_END_S = 5.0  # for the requests in flight at the end
_LEAVE_S = 0.5  # for a peer to close its end after the last answer
_DECIDE = "ModelInfer"
_CONFIG = H2Configuration(
    client_side=False,
    normalize_inbound_headers=False,
    normalize_outbound_headers=False,
    validate_outbound_headers=False,
)

_Headers = list[tuple[bytes, bytes]]
_Methods = dict[bytes, tuple[str, Any]]  # path -> name, class of the request

_RESPONSE: _Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_OK: _Headers = [(b"grpc-status", b"0")]
# The reasons of 32 rows fit; grpcio's clients may refuse headers of more than 8 KiB.
_MOST_TEXT_BYTES = 7_168
_PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length
_ENCODINGS = (b"gzip", b"deflate")
_ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS
_UNQUOTED = "".join(map(chr, range(ord(" "), 127))).replace("%", "")


class GrpcPort:
    """
    Answer unary calls until it is closed; a context manager.

    Args:
        address: host:port to listen on; port 0 for any free one.

    Raises:
        SetupError: The port is in use, or cannot be used.

    Attributes:
        port: The port.
    """

    def __init__(self, device: Device, *, address: str) -> None:
        with split_address(address) as (host, port):
            listening = _listen(host, port)
        self.port: int = listening.getsockname()[1]
        self._calls = _Calls(DeviceServicer(device))
        self._loop = uvloop.new_event_loop()
        self._stopped = threading.Event()
        self._worker = Worker(
            "edge-grpc",
            self._loop.run_forever,
            pause_s=0.0,
            at_once=True,
            stopped=self._stopped,
        )
        self._worker.start()
        self._connections: set[_Connection] = set()
        self._server = self._run(
            self._loop.create_server(
                lambda: _Connection(self._calls, self._connections),
                sock=listening,
                backlog=socket.SOMAXCONN,
            )
        )

    def __enter__(self) -> GrpcPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer the requests in flight, and free the port; once is enough."""
        if self._loop.is_closed():
            return
        self._run(self._leave())
        self._stopped.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._worker.stop()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _leave(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # connections just accepted are made in this turn
        if lost := [one.leave() for one in self._connections]:
            _, late = await asyncio.wait(lost, timeout=_END_S)
            for one in list(self._connections):
                one.abort()
            if late:
                await asyncio.wait(late)


def _listen(host: str, port: int) -> socket.socket:
    """Open a port; `::` accepts IPv4 and IPv6."""
    if ":" not in host:
        return socket.create_server((host, port))
    return socket.create_server(
        (host, port), family=socket.AF_INET6, dualstack_ipv6=True
    )


class _Status(Exception):
    """A status that a call gets instead of a response, as the headers that say so."""

    def __init__(self, headers: _Headers) -> None:
        super().__init__(headers)
        self.headers = headers

    @classmethod
    def of(cls, code: grpc.StatusCode, text: str) -> _Status:
        """Return a status of gRPC."""
        number = b"%d" % code.value[0]
        text = text.strip()
        while len(words := _quoted(text)) > _MOST_TEXT_BYTES:  # whole characters stay
            text = text[: len(text) * _MOST_TEXT_BYTES // len(words)]
        return cls([*_RESPONSE, (b"grpc-status", number), (b"grpc-message", words)])

    @classmethod
    def after(cls, error: Exception) -> _Status:
        """Return the status that reports an error."""
        if isinstance(error, _Status):
            return error
        if isinstance(error, UnknownModel):
            return cls.of(grpc.StatusCode.NOT_FOUND, str(error))
        if isinstance(error, (Refused, InputError)):
            return cls.of(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if isinstance(error, TollgateError):
            return cls.of(grpc.StatusCode.UNAVAILABLE, str(error))
        # The message of an error may contain a customer's data.
        log.error("a request failed: %s", trace_of(error))
        return cls.of(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")


def _quoted(text: str) -> bytes:
    return quote(text, safe=_UNQUOTED, errors="replace").encode()


class _Context:
    """The context of a call, as far as `ProductServicer` uses it: `abort`."""

    def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise _Status.of(code, text)


class _Call:
    """A stream: the caller's request, as far as it has arrived, and the response."""

    def __init__(self, connection: _Connection, stream: int) -> None:
        self.connection = connection
        self.stream = stream
        self.ended = False  # its caller sends no more
        self.method = ""
        self.request: Any = None
        self.status: _Status | None = None  # of a call that gets no response
        self.unsent = memoryview(b"")  # of the response
        self._request_class: Any = None
        self._encoding = b""
        self._received = bytearray()

    @property
    def waits(self) -> bool:
        """Return whether its caller waits for it."""
        return self.connection.calls.get(self.stream) is self

    def take(self, event: Event, methods: _Methods) -> bool:
        """Take what has arrived; return whether the call is to be answered now."""
        ends = isinstance(event, StreamEnded)
        self.ended = self.ended or ends
        if self.status is not None:
            return False
        try:
            if isinstance(event, RequestReceived):
                self._open(dict(event.headers), methods)
            elif isinstance(event, DataReceived):
                self._receive(event.data)
            elif ends:
                self.request = self._parsed()
        except _Status as status:
            self.status = status
        return ends or self.status is not None

    def respond(self, outcome: Any) -> None:
        """Take the response, or the error that took its place."""
        try:
            if isinstance(outcome, Exception):
                raise outcome
            content = outcome.SerializeToString()
            prefix = b"\0" + len(content).to_bytes(_PREFIX_BYTES - 1, "big")
            self.unsent = memoryview(prefix + content)
        except Exception as error:  # noqa: BLE001  the other callers get theirs
            self.status = _Status.after(error)

    def _open(self, headers: dict[bytes, bytes], methods: _Methods) -> None:
        if headers[b":method"] != b"POST":
            raise _Status([(b":status", b"405"), (b"allow", b"POST")])
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            raise _Status([(b":status", b"415")])
        if (method := methods.get(headers[b":path"])) is None:
            raise _Status.of(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        self.method, self._request_class = method
        self._encoding = headers.get(b"grpc-encoding", b"identity")

    @property
    def _size(self) -> int:
        """Return the size of the message, as its prefix states it."""
        return int.from_bytes(self._received[1:_PREFIX_BYTES], "big")

    def _receive(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < _PREFIX_BYTES:
            return
        _check_size(self._size)
        if len(self._received) > _PREFIX_BYTES + self._size:
            text = f"the request is one message of {self._size} bytes; more came"
            raise _Status.of(grpc.StatusCode.INTERNAL, text)

    def _parsed(self) -> Any:
        if len(self._received) < _PREFIX_BYTES + self._size:
            text = f"the request is cut off after {len(self._received)} bytes"
            raise _Status.of(grpc.StatusCode.INTERNAL, text)
        content = bytes(self._received[_PREFIX_BYTES:])
        try:
            if self._received[0]:
                content = self._decompressed(content)
            return self._request_class.FromString(content)
        except (DecodeError, zlib.error) as error:
            text = "the request cannot be parsed"
            raise _Status.of(grpc.StatusCode.INTERNAL, text) from error

    def _decompressed(self, content: bytes) -> bytes:
        if self._encoding not in _ENCODINGS:
            text = f"requests in {self._encoding.decode('latin-1')} are not supported"
            status = _Status.of(grpc.StatusCode.UNIMPLEMENTED, text)
            status.headers.append((b"grpc-accept-encoding", b",".join(_ENCODINGS)))
            raise status
        unpacked = zlib.decompressobj(_ZLIB_OR_GZIP)
        content = unpacked.decompress(content, MOST_REQUEST_BYTES + 1)
        _check_size(len(content))
        if not unpacked.eof:
            raise zlib.error("cut off")
        return content


def _check_size(size: int) -> None:
    if size > MOST_REQUEST_BYTES:
        text = f"a request of {size} bytes or more; at most {MOST_REQUEST_BYTES} fit"
        raise _Status.of(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


class _Calls:
    """The calls that have arrived, of all connections."""

    def __init__(self, servicer: DeviceServicer) -> None:
        self.methods = _methods(servicer)
        self._servicer = servicer
        self._arrived: list[_Call] = []

    def add(self, call: _Call) -> None:
        """Answer a call with all others that arrive in this turn of the loop."""
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._answer)
        self._arrived.append(call)

    def _answer(self) -> None:
        arrived, self._arrived = self._arrived, []
        answered: dict[_Connection, list[_Call]] = {
            one.connection: [] for one in arrived
        }
        asked = []
        for call in arrived:
            if not call.waits:
                continue
            answered[call.connection].append(call)
            if call.status is not None:
                continue
            if call.method == _DECIDE:
                asked.append(call)
            else:
                call.respond(self._outcome(call))
        if asked:
            outcomes = self._servicer.decide([one.request for one in asked])
            for call, outcome in zip(asked, outcomes, strict=True):
                call.respond(outcome)
        for connection, calls in answered.items():
            connection.answer(calls)

    def _outcome(self, call: _Call) -> Any:
        try:
            return getattr(self._servicer, call.method)(call.request, _Context())
        except Exception as error:  # noqa: BLE001  it is the answer to this caller
            return error


def _methods(servicer: DeviceServicer) -> _Methods:
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    lacking = service_pb2_grpc.GRPCInferenceServiceServicer
    return {
        f"/{service.full_name}/{one.name}".encode(): (
            one.name,
            GetMessageClass(one.input_type),
        )
        for one in service.methods
        if one.name == _DECIDE
        or getattr(type(servicer), one.name) is not getattr(lacking, one.name)
    }


class _Http2(H2Connection):
    MAX_CLOSED_STREAMS = 1024  # that it remembers, instead of 8 MiB of them


class _Connection(asyncio.Protocol):
    """
    A connection in HTTP/2.

    Its peer has up to 100 streams open, and h2's limits of headers. While the peer does
    not read, nothing more is read of it: so what it has not read has a bound, too.

    Attributes:
        calls: Those that are not answered to the last byte, by their streams.
    """

    def __init__(self, arrived: _Calls, connections: set[_Connection]) -> None:
        self.calls: dict[int, _Call] = {}
        self._arrived = arrived
        self._connections = connections
        self._h2 = _Http2(_CONFIG)
        self._leaving = self._left = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the settings."""
        self._transport = cast(asyncio.Transport, transport)
        self._lost = asyncio.get_running_loop().create_future()
        self._connections.add(self)
        self._h2.initiate_connection()
        self._write()

    def connection_lost(self, error: Exception | None) -> None:
        """Drop the calls."""
        self.calls.clear()
        self._connections.discard(self)
        self._lost.set_result(None)

    def pause_writing(self) -> None:
        """Read no more until the peer reads."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Read frames; what they answer is sent with the responses, if any."""
        if self._left:
            return
        try:
            complete = self._read(data)
        except H2Error as error:
            self._end(error)
            return
        for call in complete:
            self._arrived.add(call)
        if not complete:
            self._write()

    def answer(self, calls: list[_Call]) -> None:
        """Send responses and statuses, as far as the peer takes them."""
        try:
            for call in calls:
                if call.status is None:
                    self._h2.send_headers(call.stream, _RESPONSE)
                    self._send(call)
                else:
                    self._refuse(call, call.status)
        except H2Error as error:
            self._end(error)
        else:
            self._write()

    def leave(self) -> asyncio.Future[None]:
        """End after the calls that are open; return the end of the connection."""
        self._leaving = True
        # h2 would send nothing more after a GOAWAY of its own.
        frame = GoAwayFrame(last_stream_id=self._h2.highest_inbound_stream_id)
        self._write(frame.serialize())
        return self._lost

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()

    def _read(self, data: bytes) -> list[_Call]:
        """Read frames; return the calls to answer."""
        complete = []
        for event in self._h2.receive_data(data):
            stream: int = getattr(event, "stream_id", 0)
            if isinstance(event, ConnectionTerminated):
                raise H2Error("its peer ended it")
            if isinstance(event, StreamReset):
                self.calls.pop(stream, None)
            elif isinstance(event, DataReceived):
                self._h2.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, RequestReceived) and not self._leaving:
                self.calls[stream] = _Call(self, stream)
            call = self.calls.get(stream)
            if call is not None and call.take(event, self._arrived.methods):
                complete.append(call)
        for call in [one for one in self.calls.values() if one.unsent]:
            self._send(call)  # the peer may have opened its window
        return complete

    def _refuse(self, call: _Call, status: _Status) -> None:
        self._h2.send_headers(call.stream, status.headers, end_stream=True)
        if not call.ended:
            self._h2.reset_stream(call.stream, ErrorCodes.NO_ERROR)
        del self.calls[call.stream]

    def _send(self, call: _Call) -> None:
        """Send as much of a response as fits into the peer's window."""
        while call.unsent:
            window = self._h2.local_flow_control_window(call.stream)
            size = min(window, self._h2.max_outbound_frame_size)
            if size <= 0:
                return
            self._h2.send_data(call.stream, call.unsent[:size])
            call.unsent = call.unsent[size:]
        self._h2.send_headers(call.stream, _OK, end_stream=True)
        del self.calls[call.stream]

    def _write(self, more: bytes = b"") -> None:
        if self._left or self._transport.is_closing():
            return
        if content := self._h2.data_to_send() + more:
            self._transport.write(content)
        if self._leaving and not self.calls:
            self._left = True
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(_LEAVE_S, self._transport.abort)

    def _end(self, error: H2Error) -> None:
        """End a connection whose peer broke the protocol, after h2's GOAWAY."""
        log.debug("a connection broke: %s", error)
        self.calls.clear()
        self._write()
        self._transport.close()
