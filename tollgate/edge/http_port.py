"""Serve a device's decisions over HTTP and JSON, as the door does."""

from __future__ import annotations

import logging
from http.server import BaseHTTPRequestHandler
from typing import Any

import msgspec
from tritonclient.grpc import service_pb2

from tollgate.door.answers import in_order, rows_answer
from tollgate.door.encoded_rows import decide_rows
from tollgate.door.json_rows import read_rows
from tollgate.door.products import describe_product
from tollgate.door.refusal import JSON, PROBLEM_JSON, Refusal, problem_body
from tollgate.door.request_parts import dry_run_of, require_json, take_idempotency_key
from tollgate.edge.address import split_address
from tollgate.edge.device import Device
from tollgate.edge.service import MOST_REQUEST_BYTES, DeviceServicer
from tollgate.errors import InputError, TollgateError, trace_of
from tollgate.schema import MAX_BATCH_ROWS
from tollgate.server.http_listener import HttpListener

log = logging.getLogger(__name__)

_IDLE_S = 30.0  # a connection that sends nothing does not hold its thread
_READY, _DECIDE = "/v2/health/ready", "/decide"


class HttpPort:
    """
    Answer HTTP requests until it is closed; a context manager.

    Args:
        address: host:port to listen on; port 0 for any free one.

    Raises:
        SetupError: The port is in use, or cannot be used.

    Attributes:
        port: The port.
    """

    def __init__(self, device: Device, *, address: str) -> None:
        self._rows = _Rows(device)

        class Handler(_Handler):
            rows = self._rows

        with split_address(address) as (host, port):
            self._listener = HttpListener(host, port, Handler, name="edge-http")
        self.port = self._listener.port

    def __enter__(self) -> HttpPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the port; requests of open connections are refused from now on."""
        self._rows.closed = True
        self._listener.close()


class _Rows:
    """Decide the rows of a body."""

    def __init__(self, device: Device) -> None:
        self._servicer = DeviceServicer(device)
        self._product = describe_product(
            device.manifest.release, device.spec, device.policy
        )
        self.product = device.manifest.product
        self.closed = False

    def answer(
        self, body: bytes, *, headers: dict[bytes, bytes], dry_run: bool
    ) -> bytes:
        """
        Decide the rows of a body; return the body of the response.

        Raises:
            Refusal: The body cannot be read, or every row is wrong.
            TollgateError: The decisions could not be written to disk.
        """
        product = self._product
        parsed = read_rows(body, most=MAX_BATCH_ROWS)
        take_idempotency_key(headers, parsed, id_name=product.id_name)
        outcomes = decide_rows(
            parsed.usable, product=product, dry_run=dry_run, infer=self._infer
        )
        answer = rows_answer(parsed, in_order(parsed, outcomes), product)
        return msgspec.json.encode(answer)

    def _infer(self, request: bytes) -> bytes:
        read = service_pb2.ModelInferRequest.FromString(request)
        [outcome] = self._servicer.decide([read])
        if isinstance(outcome, Exception):
            raise outcome
        response: bytes = outcome.SerializeToString()
        return response


class _Handler(BaseHTTPRequestHandler):
    rows: _Rows
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    wbufsize = -1  # headers and body leave together
    disable_nagle_algorithm = True
    server_version = "tollgate"
    sys_version = ""

    def handle_expect_100(self) -> bool:
        """Request the body that a caller holds back until then."""
        expected = super().handle_expect_100()
        self.wfile.flush()
        return expected

    def do_GET(self) -> None:
        """Report readiness."""
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # its body is no next request
        if self.path != _READY:
            problem = f"{self.path!r:.80} is no path; POST {_DECIDE}, GET {_READY}"
            self._refuse(Refusal(404, problem))
            return
        self._respond(200, JSON, msgspec.json.encode({"ready": True}))

    def do_POST(self) -> None:
        """Decide the rows of a request."""
        try:
            self._respond(200, JSON, self._decided())
        except Refusal as refusal:
            self._refuse(refusal)
        except OSError:  # the caller went away
            raise
        except Exception as error:  # noqa: BLE001  no caller waits for ever
            self._refuse(self._failure(error))

    def _failure(self, error: Exception) -> Refusal:
        if self.rows.closed:  # another bundle is opened, or the process ends
            self.close_connection = True
            return Refusal(503, "the device is closed")
        if isinstance(error, InputError):
            return Refusal(400, str(error))
        if isinstance(error, TollgateError):
            return Refusal(503, str(error))
        # The message of an error may contain a customer's data.
        log.error("a request failed: %s", trace_of(error))
        return Refusal(500, "the device failed; see its log")

    def _decided(self) -> bytes:
        """
        Read and decide a request.

        Raises:
            Refusal: It is refused.
        """
        headers = {
            name.lower().encode("latin-1"): value.encode("latin-1")
            for name, value in self.headers.items()
        }
        size = headers.get(b"content-length", b"")
        alone = len(self.headers.get_all("Content-Length", [])) == 1
        chunked = b"transfer-encoding" in headers
        if chunked or not alone or not size.isdigit() or len(size) > 9:
            self.close_connection = True  # its body cannot be skipped
            problem = "one content-length is needed, without transfer-encoding"
            raise Refusal(411, problem)
        if int(size) > MOST_REQUEST_BYTES:
            self.close_connection = True
            problem = f"the body is larger than {MOST_REQUEST_BYTES} bytes"
            raise Refusal(413, problem)
        body = self.rfile.read(int(size))
        if len(body) < int(size):
            self.close_connection = True
            raise Refusal(400, f"the body ends after {len(body)} of {int(size)} bytes")
        if self.rows.closed:
            raise InputError("the device", "is closed")
        path, _, query = self.path.partition("?")
        product = self.rows.product
        if path not in (_DECIDE, f"{_DECIDE}/{product}"):
            problem = f"{path!r:.80} is no path; POST {_DECIDE} decides by {product}"
            raise Refusal(404, problem)
        require_json(headers)
        dry_run = dry_run_of(query.encode("latin-1"))
        return self.rows.answer(body, headers=headers, dry_run=dry_run)

    def _refuse(self, refusal: Refusal) -> None:
        self._respond(refusal.status, PROBLEM_JSON, problem_body(refusal))

    def _respond(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: paths and ids are a caller's data."""
