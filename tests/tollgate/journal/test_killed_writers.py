"""Writers and servers killed at random moments lose no record that was acknowledged."""

from __future__ import annotations

from pathlib import Path

from tests.tollgate.journal.kill_writers import run


def test_no_acknowledged_record_is_lost_or_doubled(tmp_path: Path) -> None:
    """Four writers are killed at work, and Redis; numbers reveal missing records."""
    found = run(kills=4, seed=2, folder=tmp_path)
    assert found["redis_kills"], found
    assert found["acknowledged"], found
    assert found["acknowledged_lost"] == found["different"] == 0, found
    assert found["writers_without_end"] == 0, found
    assert found["missing_by_number"] == 0, found
