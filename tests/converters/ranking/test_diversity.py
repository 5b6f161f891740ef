"""The weight of the diversity is the greatest one that costs little."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from converters.ranking.diversity import WEIGHTS, choose_diversity, diverse_lists
from converters.ranking.metrics import list_diversity, mean_ndcg
from tests.support.products.small_shop import small_catalogue

USERS = 30


def requests() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Draw all six items for some users; the two most relevant ones are met."""
    rng = np.random.default_rng(4)
    items = np.stack([rng.permutation(6) for _ in range(USERS)]).astype(np.int32)
    relevance = np.sort(rng.random((USERS, 6)), axis=1)[:, ::-1]
    return items, relevance, [np.sort(own[:2]) for own in items]


def test_a_list_is_the_greedy_one_of_plain_python() -> None:
    items, relevance, _ = requests()
    vectors = small_catalogue().vectors.astype(np.float64)
    lists = diverse_lists(small_catalogue(), items, relevance, weight=0.4)
    for own, scores, found in zip(items, relevance, lists, strict=True):
        low, high = scores.min(), scores.max()
        left = {
            item: (score - low) / (high - low)
            for item, score in zip(own.tolist(), scores, strict=True)
        }
        wanted: list[int] = []
        while len(wanted) < 4:
            worth = {
                item: 0.6 * score
                - 0.4 * max([0.0, *(vectors[item] @ vectors[one] for one in wanted)])
                for item, score in left.items()
            }
            best = max(worth, key=lambda item: worth[item])
            wanted.append(best)
            del left[best]
        assert found[:4].tolist() == wanted


@pytest.mark.parametrize("most_lost", [0.0, 0.02, 0.2])
def test_the_next_weight_of_the_grid_costs_too_much(most_lost: float) -> None:
    items, relevance, relevant = requests()
    choice = choose_diversity(
        small_catalogue(), items, relevance, relevant, most_lost=most_lost
    )
    assert [one.weight for one in choice.tried] == list(WEIGHTS[: len(choice.tried)])
    least = (1 - most_lost) * choice.tried[0].ndcg
    within = [one.weight for one in choice.tried if one.ndcg >= least]
    chosen = choice.chosen
    assert chosen.weight == within[-1]
    assert choice.tried[-1].ndcg < least or chosen.weight == WEIGHTS[-1]
    lists = diverse_lists(small_catalogue(), items, relevance, weight=chosen.weight)
    assert chosen.ndcg == mean_ndcg(lists, relevant)
    vectors = small_catalogue().vectors
    assert chosen.diversity == pytest.approx(
        np.mean([list_diversity(one, vectors) for one in lists])
    )


def test_without_any_hit_there_is_no_diversity() -> None:
    items, relevance, _ = requests()
    nobody = [np.array([99], np.int32)] * USERS
    choice = choose_diversity(small_catalogue(), items, relevance, nobody)
    assert choice.chosen.weight == 0.0


def test_the_weight_is_the_last_that_leaves_the_order() -> None:
    """(1 - w) 0.5 - w is below 0 from w = 1/3 on: then the third item comes second."""
    catalogue = msgspec.structs.replace(
        small_catalogue(),
        vectors=np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [0, 1]], np.float32),
    )
    choice = choose_diversity(
        catalogue,
        np.array([[0, 1, 2]], np.int32),
        np.array([[1.0, 0.5, 0.0]]),
        [np.array([0, 1], np.int32)],
    )
    assert (choice.chosen.weight, choice.chosen.ndcg) == (0.32, 1.0)
    last = choice.tried[-1]
    assert last.weight == 0.34
    assert last.ndcg == pytest.approx(1.5 / (1 + 1 / math.log2(3)))
