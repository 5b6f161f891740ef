"""Tests of who listens on a port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tollgate.server.processes.environment import free_port
from tollgate.server.processes.listening_ports import listens


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_is_known_by_its_process(host: str) -> None:
    """The port is this process's and not its parent's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listener:
        port = listener.getsockname()[1]
        assert listens(os.getpid(), port)
        assert not listens(os.getppid(), port)
    assert not listens(os.getpid(), port)


def test_a_port_that_is_only_bound_is_not_listened_on() -> None:
    """Connected and bound sockets do not count."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert not listens(os.getpid(), bound.getsockname()[1])


def test_a_process_that_is_gone_listens_on_nothing() -> None:
    """No such process is no error."""
    assert not listens(2**22 + 1, free_port())


def test_files_that_come_and_go_hide_no_socket() -> None:
    """A server opens and closes connections while we look; it listens all the same."""
    churn = (
        "import os, sys\n"
        "os.dup2(int(sys.argv[1]), 500)\n"
        "os.close(int(sys.argv[1]))\n"
        "print(flush=True)\n"
        "while True:\n"
        "    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]\n"
        "    [os.close(one) for one in files]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, number = server.getsockname()[1], server.fileno()
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", churn, str(number)],
            pass_fds=[number],
            stdout=subprocess.PIPE,
        )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert all(listens(process.pid, port) for _ in range(500))
    finally:
        process.kill()
        process.communicate()
