"""
Serve a device's decisions over gRPC, in the protocol of the server.

HTTP/2 is spoken by threads of a library, outside Python. One thread decides: all
requests that wait for it are decided together.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NoReturn
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pygrpc_native import NativeGrpcFront
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.edge.address import split_address
from tollgate.edge.device import Device
from tollgate.edge.service import MOST_REQUEST_BYTES, DeviceServicer, UnknownModel
from tollgate.errors import InputError, TollgateError, trace_of
from tollgate.server.wire_tensors import Refused
from tollgate.worker import Worker

log = logging.getLogger(__name__)

_DECIDE = "ModelInfer"
_MOST_REQUESTS = 64  # that are taken at once
_LOOK_MS = 200  # how often an idle port looks whether it is closed
_SENT_S = 0.1  # for the library to send the last responses
# The reasons of 32 rows fit; grpcio's clients may refuse headers of more than 8 KiB.
_MOST_TEXT_BYTES = 7_168
# The library sends these characters unchanged, and any other byte as three.
_UNQUOTED = "".join(sorted(set(map(chr, range(33, 127))) - set('%"#<>?\\`{}')))


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
        self._servicer = DeviceServicer(device)
        methods = _methods(self._servicer)
        self._names = list(methods.values())
        with split_address(address):
            self._front = NativeGrpcFront(
                address,
                [(path, False) for path in methods],
                io_threads=1,
                max_concurrent_streams=_MOST_REQUESTS,
            )
        self.port: int = self._front.bound_port
        self._front.start()
        self._worker = Worker("edge-grpc", self._answer, pause_s=0.0, at_once=True)
        self._worker.start()

    def __enter__(self) -> GrpcPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer the requests in flight, and free the port; once is enough."""
        if self._worker.running:
            self._worker.stop()
            time.sleep(_SENT_S)
            self._front.close()

    def _answer(self) -> None:
        """Answer the calls that wait, all decisions at once."""
        events = self._front.recv_batch(_MOST_REQUESTS, timeout_ms=_LOOK_MS) or ()
        calls: dict[int, tuple[int, bytes]] = {}
        for _, number, method, content, _ in events:
            if content is None:  # its caller has given it up
                calls.pop(number, None)
            else:
                calls[number] = method, content
        asked: dict[int, Any] = {}
        for number, (method, content) in calls.items():
            name, request_class = self._names[method]
            try:
                request = _parsed(request_class, content)
                if name == _DECIDE:
                    asked[number] = request
                else:
                    outcome = getattr(self._servicer, name)(request, _Context())
                    self._respond(number, outcome)
            except Exception as error:  # noqa: BLE001  it is the answer to this caller
                self._respond(number, error)
        if asked:
            outcomes = self._servicer.decide(list(asked.values()))
            for number, outcome in zip(asked, outcomes, strict=True):
                self._respond(number, outcome)

    def _respond(self, call: int, outcome: Any) -> None:
        """Send the response, or the error that took its place."""
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._front.respond(call, outcome.SerializeToString())
        except Exception as error:  # noqa: BLE001  the other callers get theirs
            status = _Status.after(error)
            self._front.fail(call, status.code.value[0], status.text)


class _Status(Exception):
    """A status that a call gets instead of a response."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = _cut(text)

    @classmethod
    def after(cls, error: Exception) -> _Status:
        """Return the status that reports an error."""
        if isinstance(error, _Status):
            return error
        if isinstance(error, UnknownModel):
            return cls(grpc.StatusCode.NOT_FOUND, str(error))
        if isinstance(error, (Refused, InputError)):
            return cls(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if isinstance(error, TollgateError):
            return cls(grpc.StatusCode.UNAVAILABLE, str(error))
        # The message of an error may contain a customer's data.
        log.error("a request failed: %s", trace_of(error))
        text = f"the request failed: {type(error).__name__}"
        return cls(grpc.StatusCode.UNKNOWN, text)


def _cut(text: str) -> str:
    """Cut a text that its caller's headers would not have room for."""
    text = text.encode(errors="replace").decode().strip()
    while (size := len(quote(text, safe=_UNQUOTED))) > _MOST_TEXT_BYTES:
        text = text[: len(text) * _MOST_TEXT_BYTES // size]
    return text


class _Context:
    """The context of a call, as far as `ProductServicer` uses it: `abort`."""

    def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise _Status(code, text)


def _parsed(request_class: Any, content: bytes) -> Any:
    if len(content) > MOST_REQUEST_BYTES:
        text = f"a request of {len(content)} bytes; at most {MOST_REQUEST_BYTES} fit"
        raise _Status(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    try:
        return request_class.FromString(content)
    except DecodeError as error:
        text = "the request cannot be parsed"
        raise _Status(grpc.StatusCode.INTERNAL, text) from error


def _methods(servicer: DeviceServicer) -> dict[str, tuple[str, Any]]:
    """Return the name and the class of requests of each path."""
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    lacking = service_pb2_grpc.GRPCInferenceServiceServicer
    return {
        f"/{service.full_name}/{one.name}": (one.name, GetMessageClass(one.input_type))
        for one in service.methods
        if one.name == _DECIDE
        or getattr(type(servicer), one.name) is not getattr(lacking, one.name)
    }
