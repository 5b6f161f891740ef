"""Nothing is learnt or chosen from the test part, and the learnt ranking is good."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from converters.ranking.evaluation import (
    INSTALL_ALS,
    ShopEvaluation,
    evaluate_interactions,
)
from converters.ranking.interactions import Interactions, interactions_of
from converters.ranking.metrics import MEASURES
from converters.ranking.splits import newest_fifth
from tests.support.small_grids import search_less
from tollgate.errors import InputError

USERS, ITEMS, GROUPS = 80, 60, 4


@pytest.fixture(scope="module")
def interactions() -> Interactions:
    """Users who mostly meet items of one of four groups, each item at most once."""
    rng = np.random.default_rng(7)
    users, items = [], []
    for user in range(USERS):
        near = np.arange(user % GROUPS, ITEMS, GROUPS)
        others = np.setdiff1d(np.arange(ITEMS), near)
        chosen = [*rng.permutation(near)[:11], *rng.permutation(others)[:4]]
        for item in rng.permutation(chosen):
            users.append(f"u{user:02d}")
            items.append(b"i%02d" % item)
    return interactions_of(
        users=users, items=items, time_us=np.arange(len(users)) * 3_600_000_000
    )


@pytest.fixture(scope="module", autouse=True)
def _small_grids() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        search_less(patch)
        yield


@pytest.fixture(scope="module")
def found(interactions: Interactions) -> ShopEvaluation:
    return evaluate_interactions(interactions)


def test_the_test_part_changes_the_figures_of_hits_alone(
    interactions: Interactions, found: ShopEvaluation
) -> None:
    # Each event of the test part is with another item, which the user never met.
    split = newest_fifth(interactions)
    assert len(np.unique(split.before.items)) == ITEMS
    rng = np.random.default_rng(1)
    items = interactions.items.copy()
    for user in range(USERS):
        own = np.flatnonzero(interactions.users == user)
        new = np.setdiff1d(np.arange(ITEMS), interactions.items[own])
        held_out = own[-(len(own) // 5) :]
        items[held_out] = rng.permutation(new)[: len(held_out)]
    other = evaluate_interactions(replace(interactions, items=items))
    for one, two in zip(found.rankings, other.rankings, strict=True):
        assert (one.name, one.settings) == (two.name, two.settings)
        for name in ("coverage", "diversity", "novelty"):
            assert one.measures[name] == two.measures[name]
        assert one.measures["ndcg"] != two.measures["ndcg"]


def test_the_rankings_are_judged_for_the_same_users(found: ShopEvaluation) -> None:
    names = ["tollgate", "diverse", "popularity", "item-kNN", "ALS"]
    assert [one.name for one in found.rankings] == names
    assert found.judged == USERS
    assert not found.repeats
    assert found.notes == ()
    first, *others = found.rankings
    assert first.differences == {}
    for one in others:
        for name in MEASURES:
            difference = one.measures[name].value - first.measures[name].value
            assert one.differences[name].value == pytest.approx(difference, abs=1e-12)
            assert one.differences[name].low <= one.differences[name].high


def test_the_learnt_ranking_beats_popularity(found: ShopEvaluation) -> None:
    by_name = {one.name: one for one in found.rankings}
    assert by_name["popularity"].differences["ndcg"].high < 0
    ours, popular = by_name["tollgate"].measures, by_name["popularity"].measures
    assert ours["ndcg"].value > 1.5 * popular["ndcg"].value
    assert ours["coverage"].value > popular["coverage"].value


def test_diversity_changes_the_order_of_the_candidates_alone(
    found: ShopEvaluation,
) -> None:
    plain, diverse = found.rankings[:2]
    assert diverse.measures["recall"] == plain.measures["recall"]
    assert diverse.measures["diversity"].value >= plain.measures["diversity"].value


def test_without_implicit_als_is_left_out(
    interactions: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "implicit", None)
    found = evaluate_interactions(interactions)
    assert [one.name for one in found.rankings][-1] == "item-kNN"
    assert found.notes == (INSTALL_ALS,)
    assert "pip install implicit" in INSTALL_ALS


def test_too_few_events_are_refused(interactions: Interactions) -> None:
    few = interactions.only(np.arange(len(interactions)) < 4)
    with pytest.raises(InputError, match="at least 2 are needed"):
        evaluate_interactions(few)
