"""Another process of the same user finds a running server, and only a running one."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.server.address import ADDRESS_FILE, endpoint, find_server
from tollgate.server.triton.launcher import ADMIN_HEADER


def _write(state: Path, *, pid: int, port: int) -> None:
    address = {
        "grpc_url": f"127.0.0.1:{port}",
        "metrics_url": "http://127.0.0.1:1/metrics",
        "pid": pid,
        "repository": "/models",
        "products": ["fraud"],
        "admin_secret": "hush",
    }
    (state / ADDRESS_FILE).write_text(json.dumps(address))


def test_server_that_listens_is_found(tmp_path: Path) -> None:
    """The process of the file listens on its port; its secret opens the control API."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        _write(tmp_path, pid=os.getpid(), port=listening.getsockname()[1])
        found = find_server(tmp_path)
    assert found is not None
    assert found.admin_headers == {ADMIN_HEADER: "hush"}
    assert found.repository == "/models"
    assert "hush" not in f"{found} {found!r}"


def test_file_of_a_killed_server_is_not_believed(tmp_path: Path) -> None:
    """Its process is gone, or another one has its number and does not listen there."""
    assert find_server(tmp_path) is None
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    _write(tmp_path, pid=os.getpid(), port=port)
    assert find_server(tmp_path) is None
    _write(tmp_path, pid=2**22 + 1, port=port)  # above the kernel's largest
    assert find_server(tmp_path) is None


def test_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    """One line that names the file."""
    (tmp_path / ADDRESS_FILE).write_text('{"pid": "x"}')
    with pytest.raises(InputError, match=ADDRESS_FILE):
        find_server(tmp_path)


def test_secret_is_read_from_a_file(tmp_path: Path) -> None:
    """One line, with or without its end; without a file nothing is sent."""
    file = tmp_path / "secret"
    file.write_text("hush\n")
    assert endpoint("h:1", secret_file=file).admin_headers == {ADMIN_HEADER: "hush"}
    assert endpoint("h:1", secret_file=None).admin_headers == {}


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"a\nb", b"\xff"])
def test_secret_that_is_not_one_line_is_refused(tmp_path: Path, content: bytes) -> None:
    """The message names the file and does not repeat what is in it."""
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"secret: is not one line") as caught:
        endpoint("h:1", secret_file=file)
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "host", "host:", ":1", "host:x", "host:99999"])
def test_address_without_host_or_port_is_refused(url: str) -> None:
    """The message shows what was given."""
    with pytest.raises(InputError, match=r"^url: .* is not host:port"):
        endpoint(url, secret_file=None)
