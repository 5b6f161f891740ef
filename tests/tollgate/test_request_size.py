"""Requests hold few rows of one id."""

from __future__ import annotations

import pytest

from tollgate.request_size import request_rows


@pytest.mark.parametrize(
    ("machines", "rows"),
    [
        ([], 32),
        (["a"] * 4, 32),
        (["a"] * 5, 4),
        (list("abcdefgh") * 8, 32),
        (list("abcdefg") * 8, 16),
        (["a", "b"] * 40, 8),
        (["a", "b", "b"] * 8, 4),
        (list("abcdefgh") * 4 + ["a"] * 5 + list("bcdefgh"), 4),
        (list("abcdefgh") * 4 + ["a"] * 4 + list("bcdefgh") * 3, 32),
    ],
)
def test_a_backlog_of_one_machine_is_sent_in_smaller_requests(
    machines: list[str], rows: int
) -> None:
    """Cut at each so many rows, no part has over 4 of one machine."""
    assert request_rows(machines) == rows
