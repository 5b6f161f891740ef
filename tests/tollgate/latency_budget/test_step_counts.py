"""Counts of Triton, by version, add up to those of one model."""

from __future__ import annotations

from typing import Any

import pytest

from tollgate.latency_budget.step_counts import Counts, counts_of_answer


def entry(name: str, version: str, *, times: int) -> dict[str, Any]:
    """One version's counters as gRPC's JSON has them: numbers as text, zeros left out.

    Per request 9 ms, of which 5 were the queue and 1 + 2 + 1 the work.
    """
    ns = {"success": 9, "queue": 5, "compute_input": 1, "compute_infer": 2}
    ns |= {"compute_output": 1}
    return {
        "name": name,
        "version": version,
        "inference_count": str(4 * times),
        "execution_count": str(2 * times),
        "inference_stats": {
            part: {"count": str(times), "ns": str(one * times * 1_000_000)}
            for part, one in ns.items()
        },
    }


def test_versions_of_a_model_are_added_up() -> None:
    """The serving version and the loaded one; other models are not queried."""
    answer = {
        "model_stats": [
            entry("shop_model", "1", times=3),
            entry("shop_model", "2", times=7),
            entry("other", "1", times=100),
            {"name": "shop", "version": "1"},
        ]
    }
    found = counts_of_answer(answer, ["shop", "shop_model", "gone"])
    assert found["shop_model"].requests == 10
    assert found["shop_model"].rows_per_batch == 2.0
    assert found["shop_model"].whole_ms == pytest.approx(9.0)
    assert found["shop_model"].queue_ms == pytest.approx(5.0)
    assert found["shop_model"].work_ms == pytest.approx(4.0)
    assert found["shop"] == found["gone"] == Counts()
    assert found["gone"].queue_ms == 0.0


def test_earlier_counts_are_subtracted() -> None:
    """Means are those of the time in between."""
    before = Counts(10, 10, 10, 100, 50_000_000, 10)
    after = Counts(30, 50, 20, 500, 90_000_000, 30)
    found = after.since(before)
    assert found == Counts(20, 40, 10, 400, 40_000_000, 20)
    assert (found.queue_ms, found.rows_per_batch) == (2.0, 4.0)
