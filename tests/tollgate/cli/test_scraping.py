"""Metrics are offered where the person said, or that is said to be impossible."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tollgate.cli.metrics_port import serve_metrics
from tollgate.cli.operations import challenger_commands
from tollgate.errors import InputError
from tollgate.server.processes.environment import free_port

REPOSITORY = Path(__file__).parents[3] / "model_repository"


def test_metrics_are_read_over_http() -> None:
    """On loopback, in Prometheus' text."""
    registry = CollectorRegistry()
    Gauge("a_number", "Of no meaning", registry=registry).set(7)
    port = free_port()
    serve_metrics(registry, port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert "a_number 7.0" in answer.read().decode()


def test_a_bare_path_names_the_pages() -> None:
    """One line for each; the metrics are where the line says."""
    registry = CollectorRegistry()
    Gauge("a_number", "Of no meaning", registry=registry).set(7)
    port = free_port()
    serve_metrics(registry, port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        text = answer.read().decode()
    paths = [line.split()[0] for line in text.splitlines() if line.startswith("/")]
    assert paths == ["/metrics"]
    assert "a_number" not in text


def test_readiness_has_a_page_where_a_command_knows_it() -> None:
    """200 when it is ready, else 503 and the problem; the first page lists it."""
    problems = ["store: away", ""]
    port = free_port()
    serve_metrics(CollectorRegistry(), port, problem=lambda: problems[0])
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ready")
    with error.value:
        assert (error.value.code, error.value.read()) == (503, b"store: away\n")
    del problems[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as answer:
        assert answer.read() == b"ready\n"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        assert "\n/ready " in answer.read().decode()


def test_other_hosts_read_metrics_only_if_allowed() -> None:
    """Loopback by default; another address is named in what goes wrong with it."""
    port = free_port("127.0.0.2")
    serve_metrics(CollectorRegistry(), port, host="127.0.0.2")
    assert socket.create_connection(("127.0.0.2", port)).close() is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with pytest.raises(InputError, match=f"cannot listen on 192.0.2.1:{port}"):
        serve_metrics(CollectorRegistry(), port, host="192.0.2.1")


def test_a_worker_of_trials_listens_on_the_given_address(tmp_path: Path) -> None:
    """An address that is not this machine's is refused, before any row is read."""
    with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1:9"):
        challenger_commands.run(
            journal_url="redis://127.0.0.1:1",
            metrics_port=9,
            metrics_host="192.0.2.1",
            repository=str(REPOSITORY),
            product="fraud",
            state=str(tmp_path),
        )


def test_a_port_that_is_taken_is_named() -> None:
    """Not a traceback; 0 asks for nothing."""
    serve_metrics(CollectorRegistry(), 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InputError, match=f"--metrics-port: cannot listen on 127.0.0.1:{port}"
        ):
            serve_metrics(CollectorRegistry(), port)
