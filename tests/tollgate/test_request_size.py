"""Requests hold few rows of one id."""

from __future__ import annotations

import pytest

from tollgate.request_size import request_rows


@pytest.mark.parametrize(
    ("machines", "rows"),
    [
        ([], 32),
        (["a"] * 16, 32),
        (["a"] * 17, 16),
        (["a", "b"] * 40, 32),
        (["a", "b"] * 16 + ["c"] * 32, 16),
        (["a"] * 16 + ["b"] * 32, 32),
    ],
)
def test_a_backlog_of_one_machine_is_sent_in_smaller_requests(
    machines: list[str], rows: int
) -> None:
    """Cut at each 32 rows, no part has over 16 of one machine; or parts have 16."""
    assert request_rows(machines) == rows
