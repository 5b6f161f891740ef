"""A health probe continues after every error."""

from __future__ import annotations

import time

from tollgate.server.triton.control import Endpoint
from tollgate.supervisor.health_probe import HealthProbe

PATIENCE_S = 600.0


def test_an_unexpected_error_counts_as_a_failed_probe() -> None:
    """A header that is a number raises an error of gRPC, not a ServerError."""
    odd = Endpoint("127.0.0.1:1", admin_headers={"x": 1})  # type: ignore[dict-item]
    health_probe = HealthProbe(odd, "fraud", interval_s=0.01)
    health_probe.start()
    try:
        until_s = time.monotonic() + PATIENCE_S
        while health_probe.failures < 2:
            assert time.monotonic() < until_s, health_probe.problem
            time.sleep(0.01)
    finally:
        health_probe.stop()
    assert "unforeseen" in health_probe.problem
    assert not health_probe.ready
