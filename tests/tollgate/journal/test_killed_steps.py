"""A decision step that is killed at work loses no record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tollgate.journal.kill_steps import STEPS, run


@pytest.mark.slow
@pytest.mark.parametrize("form", STEPS)
def test_a_killed_step_loses_no_record(tmp_path: Path, form: str) -> None:
    """Every number that it gave out is in the stream, and so is its end."""
    found = run(kills=1, seed=3, rows=4, folder=tmp_path, form=form)
    assert found["ends"] == found["kills"] == 1, found
    assert isinstance(found["decided"], int)
    assert found["decided"] > 0, found
    assert found["missing_by_number"] == found["missing_answered"] == 0, found
