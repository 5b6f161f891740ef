"""A health probe continues after every error."""

from __future__ import annotations

import time

import pytest

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


def test_only_decisions_after_an_overload_was_noted_count_as_an_overload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A counter that begins again with a reload is no sign of answers to others."""
    counts = iter([40, 40, 41, 41, 41, 0, 0, 3])
    monkeypatch.setattr(HealthProbe, "_count", lambda _: next(counts))
    health_probe = HealthProbe(Endpoint("127.0.0.1:1"), "fraud")
    health_probe._fail("in time")  # 40 decisions
    assert not health_probe.others_get_answers()
    assert health_probe.others_get_answers()  # 41
    health_probe.note_overload()  # 41
    assert health_probe.failures == 1
    assert not health_probe.others_get_answers()  # still 41: hung since then
    assert not health_probe.others_get_answers()  # loaded again
    assert not health_probe.others_get_answers()
    assert health_probe.others_get_answers()  # 3 since it was loaded
