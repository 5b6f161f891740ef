"""
Serve Triton's metrics page without the private names of steps.

Triton itself serves the page on a loopback port that is not published. A label on that
page holds the name that a step is served under, which callers must not learn.
"""

from __future__ import annotations

import http.client
import logging
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from tollgate.server.http_listener import HttpListener
from tollgate.server.index_page import CONTENT_TYPE, INDEX, NOT_FOUND, index_page

log = logging.getLogger(__name__)

_PRIVATE = re.compile(rb"--[0-9a-f]{32}")
_PRIVATE_MODEL = re.compile(rb'model="([^"]+?)--[0-9a-f]{32}"')
_MODEL = re.compile(rb'^nv_.*model="([^"]+)"')
_TIMEOUT_S = 5.0
PATH = "/metrics"
PAGES = {PATH: "metrics of Triton and of the steps, for Prometheus"}


def public_page(page: bytes) -> bytes:
    """
    Replace private by public names of steps in Triton's page.

    The ensembles that refuse calls of those names are left out: their series would have
    the same labels.
    """
    steps = set(_PRIVATE_MODEL.findall(page))
    lines = [
        line
        for line in page.split(b"\n")
        if (found := _MODEL.match(line)) is None or found[1] not in steps
    ]
    return _PRIVATE.sub(b"", b"\n".join(lines))


class MetricsPage:
    """
    Answer `GET /metrics` until it is closed.

    Args:
        port: TCP port; 0 takes a free one.
        triton_port: Returns the loopback port on which Triton has its page.

    Attributes:
        port: The port it listens on.

    Raises:
        OSError: The port cannot be opened on the address.
    """

    def __init__(self, host: str, port: int, *, triton_port: Callable[[], int]) -> None:
        class Answers(_Answers):
            source = staticmethod(triton_port)

        self._listener = HttpListener(host, port, Answers, name="metrics-page")
        self.port = self._listener.port

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


class _Answers(BaseHTTPRequestHandler):
    source: Callable[[], int]
    timeout = 5.0  # s; a connection that sends nothing does not hold its thread
    server_version = "tollgate"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request."""
        status, kind, body = 404, CONTENT_TYPE, NOT_FOUND
        path = self.path.partition("?")[0]
        if path == INDEX:
            status, body = 200, index_page("tollgate: metrics port", PAGES)
        elif path == PATH:
            status, kind, body = self._page()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _page(self) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", type(self).source(), timeout=_TIMEOUT_S
        )
        try:
            connection.request("GET", PATH)
            answer = connection.getresponse()
            kind = answer.getheader("Content-Type", "text/plain")
            return answer.status, kind, public_page(answer.read())
        except (OSError, http.client.HTTPException) as error:
            log.debug("Triton's metrics page: %s", error)
            return 503, "text/plain", b"tritonserver does not answer\n"
        finally:
            connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: Prometheus scrapes every few seconds."""
