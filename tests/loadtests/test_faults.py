"""A store that fails under load, on a real Triton and a real Redis."""

from __future__ import annotations

import pytest

from loadtests.faults import FAULTS, Options, run_all

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["killed", "hung", "slow", "cut"])
def test_every_request_is_answered_and_rows_are_whole_again(name: str) -> None:
    """
    No request fails, what is degraded says so, and it ends with the fault.

    When the spool is empty, every value has the bytes of a reference store.
    """
    options = Options(
        rate_per_s=100.0, before_s=0.5, fault_s=1.0, after_s=3.0, only=name, out=None
    )
    (outcome,), description = run_all(options, command="this test")
    assert outcome.fault in FAULTS
    assert outcome.sent >= 90
    assert outcome.failed == 0
    assert outcome.answered == outcome.sent
    assert outcome.degraded == outcome.last_known + outcome.defaulted > 0
    assert outcome.recovered_s is not None
    assert outcome.comparison.drained
    assert outcome.comparison.values > 800
    assert outcome.comparison.different == 0
    assert "this test" in description
