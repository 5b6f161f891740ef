"""A receiver of OTLP over HTTP, as a collector is one."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2


class Receiver:
    """
    Takes OTLP spans.

    Attributes:
        bodies: What came, as it came.
        spans: OTLP's Span messages.
        resources: OTLP's Resource messages.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        receiver = self

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Content-Encoding"] == "gzip":
                    body = gzip.decompress(body)
                receiver.take(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, body: bytes) -> None:
        """Take one request."""
        message = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        for part in message.resource_spans:
            self.resources.append(part.resource)
            for scope in part.scope_spans:
                self.spans.extend(scope.spans)
        self.bodies.append(body)

    def trace(self, trace_id: str) -> list[Any]:
        """Pick the spans of a trace."""
        return [span for span in self.spans if span.trace_id.hex() == trace_id]

    def wait(self, what: Callable[[], object], *, patience_s: float = 20.0) -> None:
        """Wait until something is there."""
        until_s = time.monotonic() + patience_s
        while not what():
            names = [(one.name, one.trace_id.hex()) for one in self.spans]
            assert time.monotonic() < until_s, names
            time.sleep(0.05)


@pytest.fixture(scope="module")
def otlp() -> Iterator[Receiver]:
    """One receiver for the tests of a module."""
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.1,))
    thread.start()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join()
