"""Requests of the console on a real admin port, without a server behind it."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from tollgate.console import Console, ConsoleSources, SignIn
from tollgate.supervisor.admin_port import (
    AdminRequest,
    AdminResponse,
    ConsolePages,
    serve_admin_port,
)
from tollgate.supervisor.supervisor_metrics import SupervisorMetrics

SECRET = "correct-horse-battery"
SUPERVISOR: Any = SimpleNamespace(products=(), draining=False)


@contextmanager
def admin_port(console: ConsolePages) -> Iterator[int]:
    """Serve a console; yield the port."""
    with serve_admin_port(
        SUPERVISOR, SupervisorMetrics(), console=console, host="127.0.0.1", port=0
    ) as port:
        yield port


def ask(
    port: int, path: str, *, method: str = "GET", form: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Request a page; return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Customer": "customer-7"}
        connection.request(method, path, urlencode(form or {}), headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a console with a secret."""
    folder: Path = tmp_path_factory.mktemp("console")
    sources = ConsoleSources(
        supervisor=SUPERVISOR,
        metrics_url="http://127.0.0.1:1/metrics",
        repository=folder,
        state=folder,
        stream_url=lambda: "",
    )
    with admin_port(Console(sources, sign_in=SignIn(SECRET))) as found:
        yield found


def test_a_browser_signs_in_and_out_by_forms(port: int) -> None:
    """A link of another page signs nobody out."""
    path = "/console/sign-in"
    status, headers, _ = ask(port, path, method="POST", form={"secret": SECRET})
    assert (status, headers["Location"]) == (303, "/console")
    assert "Max-Age=43200" in headers["Set-Cookie"]
    status, headers, _ = ask(port, "/console/sign-out")
    assert (status, headers["Set-Cookie"]) == (200, None)
    status, headers, _ = ask(port, "/console/sign-out", method="POST")
    assert status == 303
    assert "=; Max-Age=0" in headers["Set-Cookie"]


def test_sign_ins_are_logged_without_secrets(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With the address; a form with many other fields is a wrong one, too."""
    wrong = {f"field-{number}": "x" for number in range(40)} | {"secret": "a-wrong-one"}
    with caplog.at_level(logging.INFO, logger="tollgate.console"):
        assert ask(port, "/console/sign-in", method="POST", form=wrong)[0] == 403
        right = {"secret": SECRET}
        assert ask(port, "/console/sign-in", method="POST", form=right)[0] == 303
    assert caplog.messages == [
        "127.0.0.1 sent a wrong secret to the console",
        "127.0.0.1 signed in to the console",
    ]


def test_an_error_is_answered_and_the_other_pages_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has the place of the error, and not its message."""

    class Broken:
        def respond(self, request: AdminRequest) -> AdminResponse:
            raise KeyError(request.headers["customer"])

    with admin_port(Broken()) as port:
        status, _, body = ask(port, "/console")
        assert (status, b"problem" in body) == (500, True)
        assert ask(port, "/versions")[0] == 200
    assert "KeyError" in caplog.text
    assert "customer-7" not in caplog.text
