"""Tests of running h2load."""

from __future__ import annotations

import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from loadtests.requests.generator import (
    SCENARIOS,
    command_line,
    http_command_line,
    make_generator,
    pick,
    read_log,
    run_h2load,
)
from tollgate.errors import InputError, ServerError, SetupError
from tollgate.server.processes.environment import free_port


def test_a_log_line_is_start_status_and_duration(tmp_path: Path) -> None:
    """Failed streams have the status -1."""
    path = tmp_path / "log"
    path.write_text("1700000000000001\t200\t8123\n1700000000000500\t-1\t77\n")
    log = read_log(path)
    assert log.start_us.tolist() == [1700000000000001, 1700000000000500]
    assert log.status.tolist() == [200, -1]
    assert log.took_us.tolist() == [8123, 77]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: no request ended"),
        ("1\t200\t3\n1\t200\n", r"line 2: '1\\t200' is not three numbers"),
        ("1\t200\tx\n", "line 1: .* is not three numbers"),
    ],
)
def test_another_log_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """The message names the line."""
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_log(path)


def test_a_missing_h2load_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"h2load is missing.*nghttp2-client"):
        make_generator(tmp_path)


def test_a_missing_compiler_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """h2load alone is not enough."""
    there = tmp_path / "h2load"
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"no C compiler.*gcc"):
        make_generator(tmp_path)


def test_a_command_has_as_many_requests_under_way_as_said() -> None:
    """Connections times streams, on one thread."""
    assert [(one.rows, one.in_flight) for one in SCENARIOS] == [
        (1, 1),
        (1, 16),
        (1, 64),
        (16, 8),
        (16, 4),
    ]
    for one in SCENARIOS:
        words = command_line(one, grpc_url="127.0.0.1:1", run_s=2.5)
        options = dict(pairwise(words))
        assert int(options["-c"]) * int(options["-m"]) == one.in_flight
        assert (options["-t"], options["-D"], options["-p"]) == ("1", "2500ms", "h2c")


def test_an_unknown_scenario_is_refused() -> None:
    """The message names those there are."""
    assert pick("1-row-1") == SCENARIOS[:1]
    with pytest.raises(InputError, match="--only: 'x' is none of 1-row-1, 1-row-16"):
        pick("x")


needs_h2load = pytest.mark.skipif(
    not (shutil.which("h2load") and shutil.which("cc")),
    reason="h2load or a C compiler is missing: apt-get install nghttp2-client gcc",
)


@needs_h2load
def test_a_server_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """h2load itself ends with status 0 then."""
    with pytest.raises(ServerError, match=r"no answer from 127\.0\.0\.1"):
        run_h2load(
            make_generator(tmp_path),
            SCENARIOS[0],
            bodies=np.zeros((1, 8), np.uint8),
            grpc_url=f"127.0.0.1:{free_port('127.0.0.1')}",
            run_s=0.2,
            folder=tmp_path,
        )


@needs_h2load
def test_services_that_speak_http_get_another_body_each_time(tmp_path: Path) -> None:
    """Whole bodies, in their order, to the path that is named; statuses are logged."""
    bodies = np.arange(4_000 * 40, dtype=np.uint32).view(np.uint8).reshape(4_000, -1)
    got: list[tuple[str, bytes]] = []

    class Service(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, body))
            self.send_response(200 if len(got) % 2 else 503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = run_h2load(
            make_generator(tmp_path),
            SCENARIOS[0],
            bodies=bodies,
            grpc_url=f"127.0.0.1:{server.server_address[1]}",
            run_s=0.4,
            folder=tmp_path,
            write_command=http_command_line,
        )
        server.shutdown()
    assert {path for path, _ in got} == {"/decide"}
    wanted = [bodies[place % len(bodies)].tobytes() for place in range(len(got))]
    assert [body for _, body in got] == wanted
    assert set(made.log.status.tolist()) == {200, 503}
    assert 0 <= made.recorded.offered - len(made.log.status) <= 1
    assert (made.recorded.answers, made.recorded.continued) == ([], 0)
