"""A store that is lost with its file is rebuilt from history, spool and feed."""

from __future__ import annotations

import pytest

from tests.tollgate.backfill import lose_the_store


@pytest.mark.slow
def test_lost_store_is_rebuilt_under_load() -> None:
    """All requests are answered; only events of the feed need the feed."""
    found = lose_the_store.run(customers=200, load_s=2, rate_per_s=150)
    assert found["answered"] == found["sent"]
    assert found["identical_with_feed"]
    # Only what the store had applied when it was lost: the rest was spooled, or came
    # after the rebuild.
    assert 0 < found["missing_without_feed"] <= found["sent"] - found["spooled"]
