"""Consumers killed at random moments leave the store as if nothing had happened."""

from __future__ import annotations

import pytest

from tests.tollgate.stream.kill_consumers import run


@pytest.mark.slow
@pytest.mark.parametrize("kafka", [False, True], ids=["redis", "kafka"])
def test_the_store_ends_with_the_same_bytes(kafka: bool) -> None:
    """Five consumers are killed at work; every entity's value is as undisturbed."""
    found = run(kills=5, kafka=kafka, customers=400, days=30)
    assert found["killed_at_work"] > 0
    assert found["identical"], found
