"""A store that fails under load, on a real Triton and a real Redis."""

from __future__ import annotations

from argparse import Namespace

import pytest

from loadtests.faults import FAULTS, run_all

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("killed", "ensemble"),
        ("hung", "ensemble"),
        ("slow", "ensemble"),
        ("cut", "ensemble"),
        ("killed", "fused"),
    ],
)
def test_every_request_is_answered_and_rows_are_whole_again(
    name: str, form: str
) -> None:
    """
    No request fails, what is degraded says so, and it ends with the fault.

    When the spool is empty, every value has the bytes of a reference store.
    """
    options = Namespace(
        rate=100.0,
        before=0.5,
        fault=1.0,
        after=3.0,
        only=name,
        command="this test",
        form=form,
    )
    (outcome,), description = run_all(options)
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
