"""Make lists as a server does, and choose the weight of their diversity by them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from converters.ranking.metrics import list_diversity, mean_ndcg
from converters.ranking.splits import Queries
from converters.ranking.training import Scored
from tollgate.policy.ranking_rules import RankingRules
from tollgate.ranking.catalogue import Catalogue
from tollgate.ranking.draws import SEED_BYTES
from tollgate.ranking.rank import RankedList, RankingInput, bind_rules, rank_row

WEIGHTS = tuple(step / 50 for step in range(26))  # the grid: 0, 0.02 … 0.5
# Of the NDCG@10 without diversity. Events that come later lose a little more than those
# of the choice: 2.1 % where these lost 2.0 %, and 2 % is the most that lists should lose.
MOST_LOST = 0.015

F32 = npt.NDArray[np.float32]


class DiversityFigures(msgspec.Struct, frozen=True):
    """
    Quality of the lists of one weight.

    Attributes:
        weight: Weight of the diversity.
        ndcg: Mean NDCG@10.
        diversity: Mean over lists of 1 - the mean cosine of two of the first 10 items,
            by the catalogue's vectors.
    """

    weight: float
    ndcg: float
    diversity: float


class DiversityChoice(msgspec.Struct, frozen=True):
    """
    A chosen weight.

    Attributes:
        chosen: Its figures.
        tried: Those of the weights of the grid up to the first that loses too much; the
            first is without diversity.
        lists: Number of lists that they come from.
    """

    chosen: DiversityFigures
    tried: tuple[DiversityFigures, ...]
    lists: int


def make_lists(
    catalogue: Catalogue, scored: Scored, relevance: F32, rules: RankingRules
) -> list[RankedList]:
    """
    Rank the candidates of Q requests by a policy; all items are in stock.

    Args:
        relevance: Of the candidates; float32 [Q, C].
        rules: Section of a policy without rules on conditions and without exploration.
    """
    bound = bind_rules(rules, catalogue)
    popular = catalogue.popular[0]
    nothing, available = np.zeros(0, np.int32), np.ones(catalogue.size, np.bool_)
    events, retrieved = scored.events, scored.retrieved
    return [
        rank_row(
            RankingInput(
                count=rules.items,
                seed=bytes(SEED_BYTES),
                in_force=0,
                candidates=retrieved.items[row],
                sources=retrieved.sources[row],
                relevance=relevance[row],
                history_items=events.items[row],
                history_actions=events.actions[row],
                history_age_s=events.age_s[row],
                excluded=nothing,
                available=available,
                fill=popular[popular >= 0],
            ),
            bound,
        )
        for row in range(len(relevance))
    ]


def choose_diversity(
    catalogue: Catalogue,
    scored: Scored,
    relevance: F32,
    *,
    queries: Queries,
    rules: RankingRules,
    weights: Sequence[float] = WEIGHTS,
) -> DiversityChoice:
    """
    Choose the last weight before the first one that loses over 1.5 % of the NDCG@10.

    Args:
        catalogue: Items, learnt without the events that are held out.
        scored: Candidates of the requests.
        relevance: Their relevance; float32 [Q, C].
        queries: The requests, and the items that the users met later.
        rules: Section of a policy; its weight has no effect.
        weights: The grid, ascending from 0.
    """
    tried: list[DiversityFigures] = []
    for weight in weights:
        changed = msgspec.structs.replace(rules, diversity=weight)
        lists = np.stack(
            [one.items for one in make_lists(catalogue, scored, relevance, changed)]
        )
        tried.append(
            DiversityFigures(
                weight=weight,
                ndcg=mean_ndcg(lists, queries.relevant),
                diversity=float(
                    np.mean([list_diversity(one, catalogue.vectors) for one in lists])
                ),
            )
        )
        if tried[-1].ndcg < (1 - MOST_LOST) * tried[0].ndcg:
            chosen = tried[-2]
            break
    else:
        chosen = tried[-1]
    return DiversityChoice(chosen=chosen, tried=tuple(tried), lists=len(relevance))
