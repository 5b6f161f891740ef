"""Rank by a policy offline, and choose its diversity on the validation part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.ranking.metrics import SHOWN, list_diversity, mean_ndcg
from tollgate.policy.decision_tables import ConditionTable
from tollgate.policy.ranking_rules import RankingRules
from tollgate.ranking.candidates import Events
from tollgate.ranking.catalogue import Catalogue
from tollgate.ranking.rank import RankingInput, bind_rules, rank_row

# Of the NDCG@10 without diversity. Lists may lose 2 %, and later events lose a bit more
# than those of the choice: 2.1 % where these lost 2.0 %.
MOST_LOST = 0.015
WEIGHTS = tuple(step / 50 for step in range(26))  # the grid: 0, 0.02 … 0.5

F32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating[Any]]
I32 = npt.NDArray[np.int32]


class WeightQuality(msgspec.Struct, frozen=True):
    """
    Quality of the lists with one weight of the diversity.

    Attributes:
        weight: `diversity.weight` of the policy.
        ndcg: Mean NDCG@10.
        diversity: Mean over users of 1 - mean cosine of two items of the first 10.
    """

    weight: float
    ndcg: float
    diversity: float


class DiversityChoice(msgspec.Struct, frozen=True):
    """
    The weight of the diversity, and the qualities by which it was chosen.

    Attributes:
        chosen: Quality with the chosen weight, `diversity.weight` of the policy.
        tried: The grid up to the first weight that costs too much; weight 0 first.
    """

    chosen: WeightQuality
    tried: tuple[WeightQuality, ...]


def choose_diversity(
    catalogue: Catalogue,
    candidates: I32,
    relevance: Floats,
    relevant: Sequence[I32],
    *,
    most_lost: float = MOST_LOST,
) -> DiversityChoice:
    """
    Choose the last weight before the NDCG@10 falls by more than a share.

    Args:
        catalogue: The items.
        candidates: Candidates of Q users of the validation part, -1 after the last;
            int32 [Q, C].
        relevance: Their relevance; float [Q, C].
        relevant: Items that each user met later.
        most_lost: Largest share of the NDCG@10 without diversity that may be lost.

    Returns:
        The weight; 0 if no list has an item that its user met later.
    """
    tried: list[WeightQuality] = []
    for weight in WEIGHTS:
        lists = diverse_lists(catalogue, candidates, relevance, weight=weight)
        diversity = [list_diversity(one, catalogue.vectors) for one in lists]
        quality = WeightQuality(
            weight=weight,
            ndcg=mean_ndcg(lists, relevant),
            diversity=float(np.mean(diversity)),
        )
        tried.append(quality)
        if quality.ndcg == 0:  # no list has an item that a user met later
            return DiversityChoice(chosen=quality, tried=tuple(tried))
        if quality.ndcg < (1 - most_lost) * tried[0].ndcg:
            return DiversityChoice(chosen=tried[-2], tried=tuple(tried))
    return DiversityChoice(chosen=tried[-1], tried=tuple(tried))


def diverse_lists(
    catalogue: Catalogue, candidates: I32, relevance: Floats, *, weight: float
) -> I32:
    """
    Rank candidates as a server does, by a policy that has nothing but diversity.

    Args:
        candidates: -1 after the last; int32 [Q, C].
        relevance: Of the candidates; float [Q, C].
        weight: Of the diversity.

    Returns:
        The first 10 items, -1 after the last; int32 [Q, 10].
    """
    rules = RankingRules(
        items=SHOWN,
        diversity=weight,
        exploration=None,
        bought_s=0,
        seen_s=0,
        stock="",
        rules=(),
        tables=ConditionTable([], []),
    )
    nothing = np.zeros((len(candidates), 0))
    events = Events(
        items=nothing.astype(np.int32), actions=nothing.astype(np.int8), age_s=nothing
    )
    in_force = [0] * len(candidates)
    return policy_lists(
        catalogue, rules, candidates, relevance, events=events, in_force=in_force
    )


def policy_lists(
    catalogue: Catalogue,
    rules: RankingRules,
    candidates: I32,
    relevance: Floats,
    *,
    events: Events,
    in_force: Sequence[int],
) -> I32:
    """
    Rank candidates as a server does, with all items in stock and no exploration.

    Args:
        rules: Section `ranking` of a policy.
        candidates: -1 after the last; int32 [Q, C].
        relevance: Of the candidates; float [Q, C].
        events: The users' newest events.
        in_force: Bit i: the conditions of the i-th ranking rule hold; by user.

    Returns:
        The first 10 items, -1 after the last; int32 [Q, 10].
    """
    bound = bind_rules(msgspec.structs.replace(rules, exploration=None), catalogue)
    popular = catalogue.popular[0]
    available = np.ones(catalogue.size, np.bool_)
    lists = np.full((len(candidates), SHOWN), -1, np.int32)
    for row, (own, scores) in enumerate(zip(candidates, relevance, strict=True)):
        present = own >= 0
        known = events.items[row] >= 0
        given = RankingInput(
            count=SHOWN,
            seed=b"",
            in_force=in_force[row],
            candidates=own[present],
            sources=np.zeros(int(present.sum()), np.uint8),
            relevance=scores[present].astype(np.float32),
            history_items=events.items[row][known],
            history_actions=events.actions[row][known],
            history_age_s=events.age_s[row][known],
            excluded=np.zeros(0, np.int32),
            available=available,
            fill=popular[popular >= 0],
        )
        lists[row] = rank_row(given, bound).items
    return lists
