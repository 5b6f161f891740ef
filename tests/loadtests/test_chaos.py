"""Servers in trouble under load, on a real Triton and a real Redis."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from loadtests.chaos import Options, run_all
from loadtests.chaos_kinds import ORDERS, Place
from loadtests.coalescing import Options as JoinOptions
from loadtests.coalescing import run_all as run_joined
from loadtests.coalescing import to_markdown
from loadtests.proxy import Proxy
from loadtests.surroundings import CHECKOUT
from tollgate.server import control
from tollgate.server.embedded import serve
from tollgate.server.environment import free_port

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "client"),
    [("killed", "async"), ("stub", "sync"), ("stalled", "sync"), ("slow", "async")],
)
def test_every_call_is_answered_and_the_model_comes_back(name, client):
    """No call fails; while the trouble lasts it shows, and then it ends."""
    # A server that was killed starts again, on a machine that may be busy.
    options = Options(
        calls=600,
        rate_per_s=25.0 if name == "killed" else 50.0,
        deadline_s=0.25,
        client=client,
        only=name,
        out=None,
    )
    ((trouble, calls),), told = run_all(options, command="this test")
    assert trouble.name == name
    assert (calls.source >= 0).all()
    during = calls.source[calls.begun : calls.ended]
    if name == "slow":
        assert (during == 0).any()
    else:
        assert (during > 0).any()
    assert (calls.source[-20:] == 0).any()
    assert "this test" in told


def test_a_step_that_took_the_server_with_it_comes_back(tmp_path: Path):
    """As the lock that a killed step held does now and then."""
    ports = free_port("127.0.0.1"), free_port("127.0.0.1"), free_port("127.0.0.1")
    repository = CHECKOUT / "model_repository"
    with serve(
        repository, state=tmp_path, grpc_port=ports[0], metrics_port=ports[1]
    ) as server:
        before = server.triton.pid
        os.kill(before, signal.SIGKILL)
        until_s = time.monotonic() + 30.0
        while server.triton.alive() and time.monotonic() < until_s:
            time.sleep(0.01)
        with Proxy(server.grpc_url, listen=f"127.0.0.1:{ports[2]}") as proxy:
            ORDERS["stub"][1](Place(server, repository, proxy))
        assert server.triton.pid not in (0, before)
        assert control.is_ready(server.triton, "fraud")


def test_gathered_calls_are_fewer_requests():
    """A short run each way; what it says is made of what was counted."""
    options = JoinOptions(callers=64, rounds=1, seconds=1.0, out=None)
    blocks, told = run_joined(options, command="this test")
    (on,), (off,) = blocks["on"], blocks["off"]
    # A request may come back just outside of the measured time.
    assert 0.5 < len(off.latency_us) / off.requests < 2
    assert len(on.latency_us) / on.requests > 4
    assert to_markdown(blocks, told).count("\n| ") == 3
