"""The rivals score as in plain Python, and have the best settings of their grids."""

from __future__ import annotations

import math

import numpy as np
import pytest
from implicit.als import AlternatingLeastSquares
from threadpoolctl import threadpool_limits

from converters.ranking import rivals
from converters.ranking.interactions import Interactions, interactions_of
from converters.ranking.metrics import mean_ndcg
from converters.ranking.rivals import (
    AlsSettings,
    KnnSettings,
    als_scorer,
    best_items,
    choose_als,
    choose_knn,
    knn_scorer,
    popularity_scorer,
)
from converters.ranking.splits import newest_fifth, queries_of

# Events of each user with each item: three users, four items.
COUNTS = [[2, 1, 0, 0], [1, 1, 1, 0], [0, 0, 3, 1]]


def small() -> Interactions:
    events = [
        (user, item)
        for user, row in enumerate(COUNTS)
        for item, times in enumerate(row)
        for _ in range(times)
    ]
    return interactions_of(
        users=[f"u{user}" for user, _ in events],
        items=[b"i%d" % item for _, item in events],
        time_us=np.arange(len(events)),
    )


def groups(seed: int = 5) -> Interactions:
    """Sixty users who mostly meet items of one of three groups."""
    rng = np.random.default_rng(seed)
    users, items = [], []
    for user in range(60):
        own = rng.choice(np.arange(user % 3, 45, 3), 10, replace=False)
        for item in rng.permutation([*own, *rng.integers(0, 45, 3)]):
            users.append(f"u{user}")
            items.append(b"i%02d" % item)
    return interactions_of(users=users, items=items, time_us=np.arange(len(users)))


@pytest.mark.parametrize("repeats", [False, True])
def test_cosine_scores_are_sums_of_similarities(repeats: bool) -> None:
    scores = knn_scorer(small(), KnnSettings("cosine", 10.0, 4), repeats=repeats)
    met = [[min(one, 1) for one in row] for row in COUNTS]
    users = [sum(row[item] for row in met) for item in range(4)]

    def similarity(one: int, other: int) -> float:
        if one == other and not repeats:
            return 0.0
        both = sum(row[one] * row[other] for row in met)
        return both / math.sqrt(users[one] * users[other]) * both / (both + 10)

    wanted = [
        [sum(row[one] * similarity(one, item) for one in range(4)) for item in range(4)]
        for row in met
    ]
    found = scores(np.arange(3, dtype=np.int32))
    assert found == pytest.approx(np.array(wanted), abs=1e-6)


def test_bm25_weights_events_by_rarity_and_length() -> None:
    scores = knn_scorer(small(), KnnSettings("BM25", 0.0, 4), repeats=False)
    users = [sum(row[item] > 0 for row in COUNTS) for item in range(4)]
    mean = sum(map(sum, COUNTS)) / 3

    def weight(row: list[int], item: int) -> float:
        length = 0.25 + 0.75 * sum(row) / mean
        saturated = row[item] * 2.2 / (row[item] + 1.2 * length)
        return saturated * math.log((1 + 3) / (1 + users[item]))

    weights = [[weight(row, item) for item in range(4)] for row in COUNTS]

    def similarity(one: int, other: int) -> float:
        dot = sum(row[one] * row[other] for row in weights)
        sizes = [math.hypot(*(row[item] for row in weights)) for item in (one, other)]
        return 0.0 if one == other else dot / (sizes[0] * sizes[1])

    wanted = [
        [sum(row[one] * similarity(one, item) for one in range(4)) for item in range(4)]
        for row in weights
    ]
    found = scores(np.arange(3, dtype=np.int32))
    assert found == pytest.approx(np.array(wanted), abs=1e-5)


def test_only_the_nearest_neighbours_count() -> None:
    past = groups()
    users = np.arange(60, dtype=np.int32)
    few = knn_scorer(past, KnnSettings("cosine", 0.0, 2), repeats=False)(users)
    every = knn_scorer(past, KnnSettings("cosine", 0.0, 45), repeats=False)(users)
    assert (few <= every + 1e-6).all()
    assert (few < every - 1e-3).any()


def test_als_recommends_what_implicit_does() -> None:
    past = groups()
    settings = AlsSettings(8, 0.1, 5.0, 10)
    split = newest_fifth(past)
    queries = queries_of(split, repeats=False)
    lists = best_items(
        als_scorer(split.before, settings, seed=3), queries, repeats=False
    )
    with threadpool_limits(1, "blas"):
        model = AlternatingLeastSquares(
            factors=8, regularization=0.1, alpha=5.0, iterations=10, random_state=3
        )
        events = rivals._events(split.before)
        model.fit(events, show_progress=False)
        wanted, _ = model.recommend(
            queries.users, events[queries.users], N=10, filter_already_liked_items=True
        )
    assert (lists[:, :10] == wanted).all()


def test_popular_items_that_a_user_met_are_left_out() -> None:
    split = newest_fifth(groups())
    queries = queries_of(split, repeats=False)
    lists = best_items(popularity_scorer(split.before), queries, repeats=False)
    events = np.bincount(split.before.items, minlength=45).tolist()
    for own, seen in zip(lists, queries.seen, strict=True):
        left = [one for one in range(45) if one not in seen.tolist()]
        wanted = sorted(left, key=lambda one: (-events[one], one))
        assert own[own >= 0].tolist() == wanted


def test_the_best_settings_of_the_grid_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = newest_fifth(groups())
    queries = queries_of(split, repeats=False)

    def ndcg(scorer: rivals.Scorer) -> float:
        return mean_ndcg(best_items(scorer, queries, repeats=False), queries.relevant)

    monkeypatch.setattr(rivals, "NEIGHBOUR_COUNTS", (1, 5, 20))
    chosen = choose_knn(split, queries, repeats=False)
    by_settings = {
        one: ndcg(knn_scorer(split.before, one, repeats=False))
        for weighting in rivals.WEIGHTINGS
        for shrinkage in rivals.SHRINKAGES
        for count in (1, 5, 20)
        for one in [KnnSettings(weighting, shrinkage, count)]
    }
    assert by_settings[chosen] == max(by_settings.values()) > min(by_settings.values())
    monkeypatch.setattr(rivals, "ALS_FACTORS", (2, 8))
    monkeypatch.setattr(rivals, "ALS_ITERATIONS", (5,))
    found = choose_als(split, queries, repeats=False, seed=0)
    als = {
        one: ndcg(als_scorer(split.before, one, seed=0))
        for factors in (2, 8)
        for regularization in rivals.ALS_REGULARIZATIONS
        for alpha in rivals.ALS_ALPHAS
        for one in [AlsSettings(factors, regularization, alpha, 5)]
    }
    assert als[found] == max(als.values()) > min(als.values())
