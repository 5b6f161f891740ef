"""An outage of the store leaves no trace once its spool has drained."""

from __future__ import annotations

import pytest

from tests.tollgate.repair import outage_under_load


@pytest.mark.slow
def test_windows_are_as_if_the_store_had_never_been_away() -> None:
    """Every request answered, rows spooled, drained, and all values bit-identical."""
    found = outage_under_load.run(outage_s=4, around_s=2, rate_per_s=200)
    assert found["answered"] == found["sent"]
    assert found["spooled"] >= 400  # a second of them may find the store back
    assert found["left_in_spool"] == ["drain.lock"]
    assert found["identical"]
