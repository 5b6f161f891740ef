"""Lists follow stock, history, rules, diversity and exploration, as defined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from tollgate.errors import JournalError
from tollgate.policy.decision_tables import ConditionTable
from tollgate.policy.ranking_rules import (
    Exploration,
    RankingRule,
    RankingRules,
)
from tollgate.ranking.catalogue import EVERYONE, Catalogue
from tollgate.ranking.draws import seed_of
from tollgate.ranking.rank import RankedList, RankingInput, bind_rules, rank_row
from tollgate.ranking.ranking_record import (
    RankingRecord,
    decode_ranking,
    encode_ranking,
    replay_input,
)

ITEMS = 40
RNG = np.random.default_rng(11)
VECTORS = RNG.normal(size=(ITEMS, 5))
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
PURCHASE = 2


def catalogue() -> Catalogue:
    """Forty items in four categories."""
    at = np.arange(ITEMS, dtype=np.int32)
    none = np.full((ITEMS, 1), -1, np.int32)
    share = np.full(ITEMS, 1 / ITEMS, np.float32)
    return Catalogue(
        item_ids=[b"i%d" % one for one in at],
        categories=at % 4,
        category_names=["a", "b", "c", "d"],
        popularity=share,
        recent_popularity=share,
        vectors=VECTORS.astype(np.float32),
        neighbours=none,
        similarities=np.zeros((ITEMS, 1), np.float32),
        followers=none,
        follow_shares=np.zeros((ITEMS, 1), np.float32),
        factors=VECTORS.astype(np.float32),
        action_weights=np.ones(4, np.float32),
        half_life=10.0,
        similar_count=0,
        statics=np.zeros((ITEMS, 0), np.float32),
        static_names=[],
        segments=[EVERYONE],
        popular=at[None],
    )


def rules_of(
    *rules: RankingRule,
    diversity: float = 0.0,
    exploration: Exploration | None = None,
    bought_s: int = 0,
    seen_s: int = 0,
) -> RankingRules:
    """Compile a section without conditions."""
    return RankingRules(
        items=10,
        diversity=diversity,
        exploration=exploration,
        bought_s=bought_s,
        seen_s=seen_s,
        stock="out_of_stock",
        rules=rules,
        tables=ConditionTable([], []),
    )


def given_of(
    count: int = 5, *, seed: bytes = b"r-1", size: int = 20, number: int = 3
) -> RankingInput:
    """Make a request with candidates of random relevance."""
    rng = np.random.default_rng(number)
    return RankingInput(
        count=count,
        seed=seed_of(seed),
        in_force=2**64 - 1,
        candidates=np.append(rng.permutation(ITEMS)[:size], [-1, -1]).astype(np.int32),
        sources=np.zeros(size + 2, np.uint8),
        relevance=rng.normal(size=size + 2).astype(np.float32),
        history_items=np.array([-1], np.int32),
        history_actions=np.array([-1], np.int8),
        history_age_s=np.zeros(1),
        excluded=np.zeros(0, np.int32),
        available=np.ones(ITEMS, np.bool_),
        fill=np.arange(ITEMS, dtype=np.int32),
    )


def ranked(given: RankingInput, rules: RankingRules) -> RankedList:
    return rank_row(given, bind_rules(rules, catalogue()))


def best_first(given: RankingInput, *, without: Sequence[int] = ()) -> list[int]:
    """Sort the candidates by relevance, as plain Python does."""
    pairs = [
        (-float(score), item)
        for item, score in zip(
            given.candidates.tolist(), given.relevance.tolist(), strict=True
        )
        if item >= 0 and item not in without
    ]
    return [item for _, item in sorted(pairs, key=lambda pair: pair[0])]


def test_without_rules_the_list_is_in_the_order_of_relevance() -> None:
    given = given_of()
    found = ranked(given, rules_of())
    assert found.items.tolist() == best_first(given)[:5]
    assert found.propensities.tolist() == [1.0] * 5
    assert not found.explored.any()


def test_popular_candidates_stay_in_their_order_with_the_scores_of_the_model() -> None:
    """Of a user without events; one candidate from elsewhere makes it the model's."""
    given = given_of(count=20)
    order = given.candidates[:20].tolist()
    popular = replace(given, sources=np.full(22, 2, np.uint8))
    found = ranked(popular, rules_of())
    assert found.items.tolist() == order
    wanted = sorted(given.relevance[:20].tolist(), reverse=True)
    assert found.scores.tolist() == wanted
    last = RankingRule("up", "shop", "boost", offset=100.0, items=(b"i%d" % order[-1],))
    boosted = ranked(popular, rules_of(last))
    assert boosted.items.tolist() == [order[-1], *order[:-1]]
    one_similar = np.full(22, 2, np.uint8)
    one_similar[7] = 1
    found = ranked(replace(given, sources=one_similar), rules_of())
    assert found.items.tolist() == best_first(given)


def test_items_out_of_stock_excluded_or_just_bought_are_not_shown() -> None:
    given = given_of(count=8)
    order = best_first(given)
    available = given.available.copy()
    available[order[0]] = False
    changed = replace(
        given,
        available=available,
        excluded=np.array([order[2]], np.int32),
        history_items=np.array([order[1], order[3], order[4]], np.int32),
        history_actions=np.array([PURCHASE, PURCHASE, 0], np.int8),
        history_age_s=np.array([86_399.0, 86_400.0, 10.0]),
    )
    found = ranked(changed, rules_of(bought_s=86_400))
    # A purchase as old as the limit, and a view, hide nothing.
    gone = [order[0], order[1], order[2]]
    assert found.items.tolist() == best_first(given, without=gone)[:8]
    assert found.unavailable.tolist() == [order[0]]
    seen = ranked(changed, rules_of(bought_s=86_400, seen_s=60))
    assert order[4] not in seen.items.tolist()


def test_too_few_candidates_are_filled_up_with_popular_items() -> None:
    given = given_of(count=6, size=3)
    found = ranked(given, rules_of())
    popular = [one for one in range(ITEMS) if one not in given.candidates.tolist()]
    assert found.items.tolist() == best_first(given) + popular[:3]
    assert found.sources.tolist() == [0, 0, 0, 2, 2, 2]
    assert np.isnan(found.scores[3:]).all()


def test_boosts_pins_and_caps_have_their_stated_effect() -> None:
    given = given_of(count=6)
    order = best_first(given)
    last, pinned = order[-1], order[10]
    boost = RankingRule("up", "shop", "boost", offset=100.0, items=(b"i%d" % last,))
    pin = RankingRule("pin", "shop", "pin", number=2, items=(b"i%d" % pinned,))
    found = ranked(given, rules_of(boost, pin))
    assert found.items.tolist()[:3] == [last, pinned, order[0]]
    cap = RankingRule("cap", "shop", "cap", number=1)
    capped = ranked(replace(given, count=4), rules_of(cap))
    first_of_each: list[int] = []
    for item in order:
        if item % 4 not in {one % 4 for one in first_of_each}:
            first_of_each.append(item)
    assert capped.items.tolist() == first_of_each
    off = ranked(replace(given, in_force=0), rules_of(boost, pin, cap))
    assert off.items.tolist() == order[:6]


@pytest.mark.parametrize("most", [10, 3])
def test_diversity_is_the_maximal_marginal_relevance_of_plain_python(
    most: int,
) -> None:
    """With at most so many items of each of the four categories."""
    weight = 0.4
    given = given_of(count=10)
    cap = RankingRule("cap", "shop", "cap", number=most)
    found = ranked(given, rules_of(*[cap] * (most < 10), diversity=weight))
    scores = dict(
        zip(given.candidates.tolist(), given.relevance.astype(float), strict=True)
    )
    del scores[-1]
    low, high = min(scores.values()), max(scores.values())
    picks: list[int] = []
    while len(picks) < 10:
        values = {
            item: (1 - weight) * (score - low) / (high - low)
            - weight
            * max([0.0, *(float(VECTORS[item] @ VECTORS[one]) for one in picks)])
            for item, score in scores.items()
            if item not in picks and sum(one % 4 == item % 4 for one in picks) < most
        }
        picks.append(max(values, key=lambda item: values[item]))
    assert found.items.tolist() == picks
    assert picks != best_first(given)[:10]


def test_exploration_shows_items_as_often_as_its_propensities_say() -> None:
    exploration = Exploration(share=0.5, pool=4, first=2, salt="")
    rules, given = rules_of(exploration=exploration), given_of(count=4)
    shown: Counter[tuple[int, int]] = Counter()
    stated: dict[tuple[int, int], float] = {}
    requests = 6_000
    for number in range(requests):
        found = ranked(replace(given, seed=seed_of(b"r-%d" % number)), rules)
        for position, item in enumerate(found.items.tolist()):
            shown[position, item] += 1
            chance = stated.setdefault(
                (position, item), float(found.propensities[position])
            )
            assert chance == found.propensities[position]
    for place, chance in stated.items():
        error = 5 * np.sqrt(chance * (1 - chance) / requests)
        assert shown[place] / requests == pytest.approx(chance, abs=error + 1e-9)
    for position in range(4):
        total = sum(chance for (at, _), chance in stated.items() if at == position)
        assert total == pytest.approx(1, abs=1e-5)
    assert stated[0, best_first(given)[0]] == 1.0
    again = ranked(given, rules), ranked(given, rules)
    assert again[0].items.tolist() == again[1].items.tolist()


def test_a_relevance_that_is_no_number_leaves_the_order_of_retrieval() -> None:
    given = given_of()
    relevance = given.relevance.copy()
    relevance[7] = np.nan
    found = ranked(replace(given, relevance=relevance), rules_of(diversity=0.5))
    assert not found.by_relevance
    assert found.items.tolist() == given.candidates.tolist()[:5]
    assert np.isnan(found.scores).all()


def test_a_record_repeats_the_list_and_damage_is_refused() -> None:
    exploration = Exploration(share=0.3, pool=5, first=1, salt="s")
    rules = rules_of(diversity=0.3, exploration=exploration, bought_s=86_400)
    for number in range(20):
        given = given_of(count=8, seed=b"r-%d" % number, number=number)
        available = given.available.copy()
        available[given.candidates[:3]] = False
        given = replace(given, available=available)
        first = ranked(given, rules)
        raw = encode_ranking(RankingRecord(7, given, first))
        record = decode_ranking(raw)
        assert record.catalogue_hash == 7
        again = ranked(replay_input(record, items=ITEMS), rules)
        for name in ("items", "scores", "sources", "propensities", "explored"):
            left, right = getattr(first, name), getattr(again, name)
            assert left.tobytes() == right.tobytes(), name
    with pytest.raises(JournalError):
        decode_ranking(raw[:-3])


def team_draft(
    champion: Sequence[int], challenger: Sequence[int], turns: Sequence[int], count: int
) -> tuple[list[int], list[int]]:
    """Draft as the paper says: each side takes its best item that is not taken."""
    items: list[int] = []
    for turn in turns[:count]:
        order = (champion, challenger)[turn]
        items.append(next(one for one in order if one not in items))
    return items, [1 + turn for turn in turns[:count]]


def interleaved(given: RankingInput) -> RankingInput:
    """Add a challenger of random relevance."""
    rng = np.random.default_rng(77)
    rival = rng.normal(size=len(given.candidates)).astype(np.float32)
    return replace(given, rival=rival)


def test_an_interleaved_list_is_the_team_draft_of_plain_python() -> None:
    """Each round both pick; the request id says who begins, half of the time each."""
    begins = Counter()
    for number in range(400):
        given = interleaved(given_of(7, seed=b"r-%d" % number, number=number))
        assert given.rival is not None
        theirs = best_first(replace(given, relevance=given.rival))
        found = ranked(given, rules_of(exploration=Exploration(1.0, 5, 1, "")))
        assert found.teams is not None
        teams = found.teams.tolist()
        rounds = [teams[at : at + 2] for at in range(0, 6, 2)]
        assert all(sorted(one) == [1, 2] for one in rounds)
        turns = [one - 1 for one in teams]
        items, sides = team_draft(best_first(given), theirs, turns, 7)
        assert (found.items.tolist(), teams) == (items, sides)
        assert not found.explored.any()
        assert found.propensities.tolist() == [1.0] * 7
        begins[teams[0], teams[2]] += 1
        again = ranked(given, rules_of())
        assert again.items.tolist() == items
    # 100 of each are expected; this far away is less likely than 1 in 10,000.
    assert all(65 < begins[one] < 135 for one in [(1, 1), (1, 2), (2, 1), (2, 2)])


def test_pins_caps_and_diversity_hold_in_an_interleaved_list() -> None:
    pin = RankingRule("pin", "shop", "pin", number=2, items=(b"i3",))
    cap = RankingRule("cap", "shop", "cap", number=2)
    given = interleaved(given_of(6, size=40))
    found = ranked(given, rules_of(pin, cap, diversity=0.5))
    assert found.teams is not None
    assert (found.items[1], found.teams[1]) == (3, 0)
    assert set(found.teams.tolist()) == {0, 1, 2}
    assert max(Counter(found.items % 4).values()) <= 2
    # With equal relevance both sides pick the same: the list is that of one ranker.
    alone = replace(given, rival=None)
    both = ranked(
        replace(given, rival=given.relevance), rules_of(pin, cap, diversity=0.5)
    )
    assert (
        both.items.tolist()
        == ranked(alone, rules_of(pin, cap, diversity=0.5)).items.tolist()
    )


def test_a_challenger_without_numbers_is_not_interleaved() -> None:
    given = interleaved(given_of())
    assert given.rival is not None
    given.rival[0] = np.nan
    found = ranked(given, rules_of())
    assert found.teams is None
    assert found.items.tolist() == best_first(given)[:5]


def test_the_record_of_an_interleaved_list_repeats_it() -> None:
    given = interleaved(given_of())
    found = ranked(given, rules_of())
    record = RankingRecord(7, given, found, challenger="shop-2")
    read = decode_ranking(encode_ranking(record))
    assert read.challenger == "shop-2"
    assert read.ranked.teams is not None
    assert found.teams is not None
    assert read.ranked.teams.tolist() == found.teams.tolist()
    again = ranked(replay_input(read, items=ITEMS), rules_of())
    assert again.items.tolist() == found.items.tolist()
    assert again.teams is not None
    assert again.teams.tolist() == found.teams.tolist()
