"""Serve the admin port: health, releases and metrics over HTTP, apart from payments."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from tollgate.errors import SetupError, trace_of
from tollgate.imports import be_gentle
from tollgate.server.http_listener import HttpListener
from tollgate.server.index_page import CONTENT_TYPE, INDEX, NOT_FOUND, index_page
from tollgate.supervisor.supervisor import Supervisor
from tollgate.supervisor.supervisor_metrics import SupervisorMetrics
from tollgate.supervisor.version_detection import VersionDetector
from tollgate.worker import stuck_loops

log = logging.getLogger(__name__)

# A repair may include a restart of all processes; a longer one hangs.
_HANGS_AFTER_S = 120.0
_JSON = "application/json"
PAGES = {
    "/livez": "200 while the supervisor watches its processes, else 503",
    "/readyz": "200 while every product decides, else 503; JSON names the problems",
    "/readyz/PRODUCT": "the same for one product",
    "/releases": "JSON: each product's desired and running release",
    "/versions": "JSON: model versions that no release names",
    "/metrics": "metrics of the supervisor, for Prometheus",
    "/console": "web page: products, figures, releases, faults, decisions",
}
CONSOLE = "/console"
_MOST_BODY_BYTES = 4096
# The standard library answers so to a method that a server does not have.
_NOT_IMPLEMENTED = "Unsupported method ('POST')"


class AdminRequest(msgspec.Struct, frozen=True):
    """
    A request for a page below `/console`.

    Attributes:
        method: GET or POST.
        target: Path with query.
        headers: By name in lower case.
        address: IP address of the sender.
    """

    method: str
    target: str
    headers: dict[str, str]
    address: str
    body: bytes = b""


class AdminResponse(msgspec.Struct, frozen=True):
    """An answer: status, content type, body and further headers."""

    status: int
    kind: str
    body: bytes
    headers: dict[str, str] = {}


class ConsolePages(Protocol):
    """Answers requests below `/console`."""

    def respond(self, request: AdminRequest) -> AdminResponse:
        """Answer one request."""


@contextmanager
def serve_admin_port(
    supervisor: Supervisor,
    metrics: SupervisorMetrics,
    *,
    detectors: Sequence[VersionDetector] = (),
    console: ConsolePages | None = None,
    host: str,
    port: int,
) -> Iterator[int]:
    """
    Answer HTTP on the admin port until the context ends; yield the port.

    Args:
        console: Pages below `/console`; None for none.
        port: TCP port; 0 takes a free one.

    Raises:
        SetupError: The port cannot be opened on the address.
    """

    class Handler(_Handler):
        pages = _Pages(supervisor, metrics, detectors)

    Handler.console = console
    try:
        listener = HttpListener(host, port, Handler, name="side-port")
    except OSError as error:
        raise SetupError(
            f"{host}:{port} cannot be listened on: {error.strerror}",
            remedy="choose another admin port",
        ) from error
    try:
        yield listener.port
    finally:
        listener.close()


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


class _Pages:
    """Build the content of the pages."""

    def __init__(
        self,
        supervisor: Supervisor,
        metrics: SupervisorMetrics,
        detectors: Sequence[VersionDetector],
    ) -> None:
        self._supervisor = supervisor
        self._detectors = detectors
        self._metrics = metrics

    def page(self, path: str) -> tuple[int, str, bytes] | None:
        """Return status, content type and body for a path; None for an unknown path."""
        if path == INDEX:
            return 200, CONTENT_TYPE, index_page("tollgate: admin port", PAGES)
        if path == "/livez":
            idle_s = time.monotonic() - self._supervisor.ticked_s
            return 200 if idle_s < _HANGS_AFTER_S else 503, "text/plain", b"live\n"
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, self._metrics.page(self._supervisor)
        if path == "/releases":
            products = [one.reconciler.status for one in self._supervisor.products]
            return 200, _JSON, msgspec.json.encode(products) + b"\n"
        if path == "/versions":
            found = [one for each in self._detectors for one in each.versions]
            return 200, _JSON, msgspec.json.encode(found) + b"\n"
        if path == "/readyz" or path.startswith("/readyz/"):
            return self._readiness(path.removeprefix("/readyz").strip("/"))
        return None

    def _readiness(self, product: str) -> tuple[int, str, bytes] | None:
        draining = self._supervisor.draining
        products = {
            one.name: {
                "ready": one.ready and not draining,
                "release": one.release,
                "problem": "draining" if draining else one.problem,
            }
            for one in self._supervisor.products
            if product in ("", one.name)
        }
        if not products:
            return None
        ready = all(one["ready"] for one in products.values())
        page = {"ready": ready, "products": products, "stuck_loops": stuck_loops()}
        body = msgspec.json.encode(page) + b"\n"
        return 200 if ready else 503, _JSON, body


class _Handler(BaseHTTPRequestHandler):
    pages: _Pages
    console: ConsolePages | None = None
    timeout = 5.0  # s; a caller that sends nothing does not hold its thread
    server_version = "tollgate"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request."""
        path = self.path.partition("?")[0]
        if self.console is not None and _is_below(path, CONSOLE):
            self._respond(self.console, b"")
            return
        page = self.pages.page(path)
        status, kind, body = page or (404, CONTENT_TYPE, NOT_FOUND)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Answer a form of the console; every other page answers reads only."""
        if self.console is None or not self.path.startswith(f"{CONSOLE}/"):
            self.send_error(501, _NOT_IMPLEMENTED)
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self.send_error(411)
        elif len(length) > 4 or int(length) > _MOST_BODY_BYTES:
            self.send_error(413)
        else:
            self._respond(self.console, self.rfile.read(int(length)))

    def _respond(self, console: ConsolePages, body: bytes) -> None:
        be_gentle()  # this thread answers one connection; decisions have priority
        request = AdminRequest(
            method=self.command,
            target=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            address=self.client_address[0],
            body=body,
        )
        try:
            response = console.respond(request)
        except Exception as error:  # noqa: BLE001 - the other pages go on
            # The message of an error may contain a customer's data.
            log.error("the console did not answer: %s", trace_of(error))
            body = b'{"problem": "the server failed; its log has the reason"}'
            response = AdminResponse(500, _JSON, body)
        with contextlib.suppress(ConnectionError):  # the browser went away
            self._send(response)

    def _send(self, response: AdminResponse) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.kind)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: an orchestrator sends a request every second."""
