"""Choose the diversity of the lists on the validation part."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from converters.ranking.metrics import SHOWN, list_diversity, mean_ndcg
from tollgate.policy.decision_tables import ConditionTable
from tollgate.policy.ranking_rules import RankingRules
from tollgate.ranking.catalogue import Catalogue
from tollgate.ranking.rank import RankingInput, bind_rules, rank_row

MOST_LOST = 0.02  # share of the NDCG@10 that diversity may cost
# The grid, searched in this order.
WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
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
        weight: `diversity.weight` for the policy.
        tried: The grid up to the first weight that costs too much.
    """

    weight: float
    tried: tuple[WeightQuality, ...]


def choose_diversity(
    catalogue: Catalogue,
    candidates: I32,
    relevance: F64,
    relevant: Sequence[I32],
    *,
    most_lost: float = MOST_LOST,
) -> DiversityChoice:
    """
    Choose the greatest weight up to which the NDCG@10 falls by at most a share.

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
            return DiversityChoice(weight=0.0, tried=tuple(tried))
        if quality.ndcg < (1 - most_lost) * tried[0].ndcg:
            return DiversityChoice(weight=tried[-2].weight, tried=tuple(tried))
    return DiversityChoice(weight=tried[-1].weight, tried=tuple(tried))


def diverse_lists(
    catalogue: Catalogue,
    candidates: I32,
    relevance: F64,
    *,
    weight: float,
    count: int = SHOWN,
) -> I32:
    """
    Rank candidates as a server does, by a policy that has nothing but diversity.

    Args:
        candidates: -1 after the last; int32 [Q, C].
        relevance: Of the candidates; float [Q, C].
        weight: Of the diversity.
        count: Length of the lists.

    Returns:
        Items, -1 after the last; int32 [Q, count].
    """
    rules = RankingRules(
        items=count,
        diversity=weight,
        exploration=None,
        bought_s=0,
        seen_s=0,
        stock="",
        rules=(),
        tables=ConditionTable([], []),
    )
    bound = bind_rules(rules, catalogue)
    available = np.ones(catalogue.size, np.bool_)
    none = np.zeros(0, np.int32)
    lists = np.full((len(candidates), count), -1, np.int32)
    for row, (own, scores) in enumerate(zip(candidates, relevance, strict=True)):
        present = own >= 0
        given = RankingInput(
            count=count,
            seed=b"",
            in_force=0,
            candidates=own[present],
            sources=np.zeros(int(present.sum()), np.uint8),
            relevance=scores[present].astype(np.float32),
            history_items=none,
            history_actions=none.astype(np.int8),
            history_age_s=none.astype(np.float64),
            excluded=none,
            available=available,
            fill=none,
        )
        lists[row] = rank_row(given, bound).items
    return lists
