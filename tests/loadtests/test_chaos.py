"""Servers in trouble under load, on a real Triton and a real Redis."""

from __future__ import annotations

import pytest

from loadtests.chaos import Options, run_all
from loadtests.coalescing import Options as JoinOptions
from loadtests.coalescing import run_all as run_joined
from loadtests.coalescing import to_markdown

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


def test_gathered_calls_are_fewer_requests():
    """A short run each way; what it says is made of what was counted."""
    options = JoinOptions(callers=64, rounds=1, seconds=1.0, out=None)
    blocks, told = run_joined(options, command="this test")
    (on,), (off,) = blocks["on"], blocks["off"]
    # A request may come back just outside of the measured time.
    assert 0.5 < len(off.latency_us) / off.requests < 2
    assert len(on.latency_us) / on.requests > 4
    assert to_markdown(blocks, told).count("\n| ") == 3
