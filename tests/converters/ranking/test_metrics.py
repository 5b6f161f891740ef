"""The measures are those of plain arithmetic, and their intervals have their width."""

from __future__ import annotations

import math

import numpy as np
import pytest

from converters.ranking.metrics import MEASURES, ListQuality, judge_lists, resample

# Three items at 0°, 60° and 90°, and one opposite to the first.
VECTORS = np.array([[1, 0], [0.5, math.sqrt(3) / 2], [0, 1], [-1, 0]], dtype=np.float32)


def test_two_lists_by_hand() -> None:
    lists = np.full((2, 10), -1, np.int32)
    lists[0, :3] = [0, 1, 2]
    lists[1, :1] = [1]
    relevant = [np.array([1, 3], np.int32), np.array([1], np.int32)]
    share = np.array([0.5, 0.25, 0.125, 1.0])
    found = judge_lists(lists, relevant, vectors=VECTORS, user_share=share)
    assert found.recall.tolist() == [0.5, 1.0]
    assert found.ndcg[0] == pytest.approx(
        (1 / math.log2(3)) / (1 + 1 / math.log2(3)), abs=1e-12
    )
    assert found.ndcg[1] == 1.0
    assert found.coverage == 3 / 4
    # Cosines of 60°, 90° and 30°; a list of one item has no pair.
    cosines = [math.cos(math.radians(one)) for one in (60, 90, 30)]
    assert found.diversity[0] == pytest.approx(1 - sum(cosines) / 3, abs=1e-6)
    assert found.diversity[1] == 0.0
    assert found.novelty.tolist() == [(1 + 2 + 3) / 3, 2.0]


def some_quality(rng: np.random.Generator, *, users: int = 400) -> ListQuality:
    shown = np.stack([rng.permutation(60)[:10] for _ in range(users)])
    return ListQuality(
        recall=rng.random(users),
        ndcg=rng.random(users) ** 2,
        diversity=rng.normal(0.5, 0.1, users),
        novelty=rng.normal(4, 1, users),
        shown=shown.astype(np.int32),
        items=80,
    )


def test_an_interval_of_a_mean_is_about_that_of_the_normal_distribution() -> None:
    quality = some_quality(np.random.default_rng(3))
    found = resample(quality, seed=1).estimates()
    assert tuple(found) == MEASURES
    for name in ("recall", "ndcg", "diversity", "novelty"):
        values = getattr(quality, name)
        half = 1.96 * values.std() / math.sqrt(len(values))
        assert found[name].value == pytest.approx(values.mean(), abs=1e-12)
        assert found[name].high - found[name].low == pytest.approx(2 * half, rel=0.08)
        assert found[name].low < found[name].value < found[name].high


def test_coverage_lies_within_its_interval() -> None:
    # Most items are in the list of one user, so a sample of users misses a third.
    shown = np.arange(1000, dtype=np.int32).reshape(100, 10)
    zeros = np.zeros(100)
    quality = ListQuality(zeros, zeros, zeros, zeros, shown=shown, items=2000)
    found = resample(quality, seed=1).estimates()["coverage"]
    assert found.value == 0.5
    assert 0.45 < found.low < 0.5 < found.high < 0.55


def test_differences_are_of_the_same_users() -> None:
    rng = np.random.default_rng(4)
    ours = some_quality(rng)
    shifted = ListQuality(
        recall=ours.recall - 0.1,
        ndcg=ours.ndcg - 0.1,
        diversity=ours.diversity - 0.1,
        novelty=ours.novelty - 0.1,
        shown=ours.shown,
        items=ours.items,
    )
    found = resample(shifted, seed=2).differences(resample(ours, seed=2))
    for name in ("recall", "ndcg", "diversity", "novelty"):
        for value in (found[name].value, found[name].low, found[name].high):
            assert value == pytest.approx(-0.1, abs=1e-12)
    assert found["coverage"].low == found["coverage"].high == 0.0
