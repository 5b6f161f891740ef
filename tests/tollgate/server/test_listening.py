"""Tests of who listens on a port."""

from __future__ import annotations

import os
import socket

import pytest

from tollgate.server.environment import free_port
from tollgate.server.listening import listens


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
