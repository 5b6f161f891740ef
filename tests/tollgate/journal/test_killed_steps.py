"""A decision step that is killed at work loses records that its numbers reveal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tollgate.journal.kill_steps import run


@pytest.mark.slow
def test_records_lost_with_a_killed_step_are_reported(tmp_path: Path) -> None:
    """Its end is in the stream; what was answered and left no record is in the gap."""
    found = run(kills=1, seed=3, rows=4, folder=tmp_path)
    assert found["ends"] == found["kills"] == 1, found
    decided, missing = found["decided"], found["missing_by_number"]
    answered = found["missing_answered"]
    assert isinstance(decided, int)
    assert isinstance(missing, int)
    assert isinstance(answered, int)
    assert 0 <= answered <= missing < decided, found
