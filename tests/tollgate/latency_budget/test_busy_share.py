"""Shares of a time, against arithmetic by hand and a count of every moment."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.latency_budget.busy_share import at_once


def spans(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Begins and ends."""
    begin, end = np.array(pairs, np.int64).reshape(-1, 2).T
    return begin, end


def test_overlapping_batches_of_a_step_count_once() -> None:
    """0 to 100: features 10…30 and 20…50 of two instances, model 40…60, decision none.

    Both at once from 40 to 50.
    """
    found = at_once(
        {
            "features": spans((20, 50), (10, 30)),
            "model": spans((40, 60)),
            "decision": spans(),
        },
        from_us=0,
        until_us=100,
    )
    assert found.busy == pytest.approx({"features": 0.4, "model": 0.2, "decision": 0})
    assert found.together == pytest.approx((0.5, 0.4, 0.1, 0.0))


def test_time_outside_the_span_is_left_out() -> None:
    """Before, after, and what reaches over an edge."""
    given = {"features": spans((-50, -10), (-10, 5), (95, 200), (300, 400))}
    found = at_once(given, from_us=0, until_us=100)
    assert found.busy["features"] == pytest.approx(0.1)
    assert found.together == pytest.approx((0.9, 0.1))


def test_it_agrees_with_looking_at_every_moment() -> None:
    """Made-up spans, microsecond by microsecond."""
    chance = np.random.default_rng(5)
    given, every = {}, np.zeros((3, 5_000), np.bool_)
    for place, step in enumerate(("features", "model", "decision")):
        start = chance.integers(-100, 5_100, 60)
        end = start + chance.integers(0, 90, 60)
        given[step] = (start, end)
        for one, two in zip(start, end, strict=True):
            every[place, max(one, 0) : max(two, 0)] = True
    found = at_once(given, from_us=0, until_us=5_000)
    assert list(found.busy.values()) == pytest.approx(every.mean(axis=1).tolist())
    counts = np.bincount(every.sum(axis=0), minlength=4) / 5_000
    assert found.together == pytest.approx(counts.tolist())
