"""Lanes of readings: whole machines, and about equal lengths."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.alarms.scoring import lanes_of


@pytest.mark.parametrize("seed", range(5))
def test_lanes_have_whole_machines_and_about_equal_lengths(seed: int) -> None:
    """Each row is in one lane, in its order; no lane has a machine's rows too many."""
    random = np.random.default_rng(seed)
    machines = [f"m{one}" for one in random.zipf(1.5, 256) % 60]
    rows = [int(row) for row in np.flatnonzero(random.random(256) < 0.8)]
    lanes = lanes_of(machines, rows, lanes=4)
    assert sorted(row for lane in lanes for row in lane) == rows
    assert all(lane == sorted(lane) for lane in lanes)
    owners = [{machines[row] for row in lane} for lane in lanes]
    assert sum(map(len, owners)) == len(set().union(*owners))
    largest = max(sum(machines[row] == one for row in rows) for one in set(machines))
    assert max(map(len, lanes)) - min(map(len, lanes)) <= largest


def test_fewer_machines_than_lanes_leave_lanes_out() -> None:
    """One machine is one lane, and no row is none."""
    assert lanes_of(["a", "a"], [0, 1], lanes=4) == [[0, 1]]
    assert lanes_of([], [], lanes=4) == []
