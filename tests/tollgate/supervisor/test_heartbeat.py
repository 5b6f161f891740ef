"""A heartbeat goes on asking, whatever comes of it."""

from __future__ import annotations

import time

from tollgate.server.control import Endpoint
from tollgate.supervisor.heartbeat import Heartbeat

PATIENCE_S = 600.0


def test_what_nobody_foresaw_is_a_failure_and_not_the_end() -> None:
    """A header that is a number raises what is no error of a server."""
    odd = Endpoint("127.0.0.1:1", admin_headers={"x": 1})  # type: ignore[dict-item]
    beat = Heartbeat(odd, "fraud", interval_s=0.01)
    beat.start()
    try:
        until_s = time.monotonic() + PATIENCE_S
        while beat.failures < 2:
            assert time.monotonic() < until_s, beat.problem
            time.sleep(0.01)
    finally:
        beat.stop()
    assert "unforeseen" in beat.problem
    assert not beat.ready
