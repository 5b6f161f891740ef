"""Faults of a server under load, on a real Triton and a real Redis."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from pathlib import Path

import pytest
from msgspec import structs

from loadtests.chaos import INJECTIONS, ChaosBench, run_all
from loadtests.results.surroundings import CHECKOUT
from loadtests.servers.proxy import Proxy
from tollgate.server.processes.environment import free_port
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton.probe import probe

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "client"),
    [("killed", "async"), ("stub", "sync"), ("stalled", "sync"), ("slow", "async")],
)
def test_every_call_is_answered_and_the_model_comes_back(name, client):
    """No call fails; while the fault lasts it shows, and then it ends."""
    options = Namespace(
        calls=600,
        rate=50.0,
        deadline_ms=250.0,
        client=client,
        only=name,
        command="this test",
    )
    ((fault, calls),), description = run_all(options)
    assert fault.name == name
    assert (calls.source >= 0).all()
    during = calls.source[calls.fault_start : calls.fault_end]
    if name == "slow":
        assert (during == 0).any()
    else:
        assert (during > 0).any()
    assert (calls.source[calls.fault_end :] == 0).any()
    assert "this test" in description


class DyingWith:
    """A product whose server ends as the step is to be restarted."""

    def __init__(self, server: Embedded):
        self._triton = server.triton
        self._serving = server.serving["fraud"]

    def renew(self, step: str):
        """As when tritonserver meets the lock in this very call."""
        os.kill(self._triton.pid, signal.SIGKILL)
        self._serving.renew(step)

    def again(self):
        """Load what was served."""
        self._serving.again()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_step_that_took_the_server_with_it_comes_back(when, tmp_path: Path):
    """As the lock that a killed step held does now and then."""
    ports = [free_port("127.0.0.1") for _ in range(3)]
    repository = CHECKOUT / "model_repository"
    with serve(
        repository, state=tmp_path, grpc_port=ports[0], metrics_port=ports[1]
    ) as server:
        before = server.triton.pid
        if when == "before":
            os.kill(before, signal.SIGKILL)
        else:
            server = structs.replace(server, serving={"fraud": DyingWith(server)})
        with Proxy(server.grpc_url, listen=f"127.0.0.1:{ports[2]}") as proxy:
            INJECTIONS["stub"][1](ChaosBench(server, repository, proxy))
        assert server.triton.pid not in (0, before)
        assert probe(server.triton, "fraud", rows=[1]).release == "fraud-1"
