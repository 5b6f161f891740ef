"""Sharing is measured as work that was not done."""

from __future__ import annotations

import pytest

from loadtests.dry_share import measure

pytestmark = pytest.mark.slow


def test_without_sharing_each_batch_is_a_call_and_with_it_hardly_any() -> None:
    """Three purchases, asked for 640 times; the table has a line for each run."""
    head, _, without, shared, _, about = measure(batches=20, runs=1, distinct=3)
    assert head.startswith("| dry_share_ms | run | store calls |")
    assert without.split(" | ")[:3] == ["| 0", "1", "20"]
    assert shared.split(" | ")[:2] == ["| 1000", "1"]
    assert int(shared.split(" | ")[2]) < 20
    assert about == (
        "20 batches of 32 dry requests for 3 purchases; CPU in ms per 1,000 rows."
    )
