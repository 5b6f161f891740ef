"""
Judge the ranking that `train_shop` learns, and its rivals, on users' newest events.

All settings are chosen within the training part. The test part is read once, for the
figures.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from converters.ranking.diversity import diverse_lists, policy_lists
from converters.ranking.interactions import Interactions
from converters.ranking.item_statistics import user_item_matrix
from converters.ranking.metrics import Estimate, judge_lists, resample
from converters.ranking.rivals import (
    Scorer,
    als_scorer,
    best_items,
    choose_als,
    choose_knn,
    knn_scorer,
    popularity_scorer,
)
from converters.ranking.splits import Queries, Split, newest_fifth, queries_of
from converters.ranking.training import (
    HISTORY,
    TrainedShop,
    in_order,
    ranker_name,
    score_queries,
    train_shop,
)
from tollgate.engine.onnx_session import OnnxSession
from tollgate.errors import InputError
from tollgate.policy import Policy, RowFacts
from tollgate.schema import MISSING

MOST_USERS = 10_000  # users who are judged, and by whom the rivals' settings are chosen
INSTALL_ALS = "implicit is not installed, so ALS is left out: pip install implicit"

I32 = npt.NDArray[np.int32]


class JudgedRanking(msgspec.Struct, frozen=True):
    """
    A way to rank, and its measures on the test part.

    Attributes:
        name: Of the ranking.
        settings: That were chosen on the validation part.
        measures: By name of `metrics.MEASURES`.
        differences: These measures minus those of the first ranking, for the same
            users; empty for the first.
    """

    name: str
    settings: str
    measures: dict[str, Estimate]
    differences: dict[str, Estimate]


class ShopEvaluation(msgspec.Struct, frozen=True):
    """
    Rankings judged on the newest fifth of each user's events.

    Attributes:
        source: Name of the table.
        events, users, items: Numbers of the whole table.
        judged: Number of users whose lists are judged.
        repeats: Items that a user has met before may be shown once more, and count.
        rankings: The learnt ranking comes first.
        notes: Rankings that are left out, and the reason.
    """

    source: str
    events: int
    users: int
    items: int
    judged: int
    repeats: bool
    rankings: tuple[JudgedRanking, ...]
    notes: tuple[str, ...]


def evaluate_interactions(
    interactions: Interactions,
    *,
    policy: Policy | None = None,
    fields: Sequence[str] = (),
    history: int = HISTORY,
    seed: int = 0,
    report: Callable[[str], None] = lambda text: None,
) -> ShopEvaluation:
    """
    Train and judge.

    Args:
        interactions: The whole table.
        policy: Policy whose section `ranking` is judged in addition, without
            exploration, with all items in stock, and with no field of a request known.
        fields: Names of the fields that its conditions may name.
        history: Newest events of a user that a request sees.
        seed: Of everything random.
        report: Called with a line for each step.

    Raises:
        InputError: There are too few users or events, or too many items.
    """
    split = newest_fifth(interactions)
    report("train, with settings chosen on a validation part")
    shop = train_shop(split.before, history=history, seed=seed)
    repeats = shop.choice.repeats
    queries = queries_of(split, repeats=repeats).sample(MOST_USERS, seed=seed)
    if not len(queries.users):
        problem = "no user has a new item among the newest fifth of the events"
        raise InputError(interactions.source, problem)
    with_als = importlib.util.find_spec("implicit") is not None
    rankings = (
        *_own(shop, split, queries, policy=policy, fields=fields),
        *_rivals(split, queries, als=with_als, repeats=repeats, seed=seed, say=report),
    )
    # An item that nobody met before counts as met by one user.
    met = np.asarray(user_item_matrix(split.before).sum(axis=0)).ravel()
    user_share = np.maximum(met, 1) / len(interactions.user_ids)
    measured = [
        resample(
            judge_lists(
                one.lists,
                queries.relevant,
                vectors=shop.catalogue.vectors,
                user_share=user_share,
            ),
            seed=seed,
        )
        for one in rankings
    ]
    return ShopEvaluation(
        source=interactions.source,
        events=len(interactions),
        users=len(interactions.user_ids),
        items=len(interactions.item_ids),
        judged=len(queries.users),
        repeats=repeats,
        rankings=tuple(
            JudgedRanking(
                name=one.name,
                settings=one.settings,
                measures=own.estimates(),
                differences=own.differences(measured[0]) if place else {},
            )
            for place, (one, own) in enumerate(zip(rankings, measured, strict=True))
        ),
        notes=() if with_als else (INSTALL_ALS,),
    )


class _Ranking(msgspec.Struct, frozen=True, eq=False):
    """A way to rank, and its lists of up to 200 items; int32 [Q, C]."""

    name: str
    settings: str
    lists: I32


def _own(
    shop: TrainedShop,
    split: Split,
    queries: Queries,
    *,
    policy: Policy | None,
    fields: Sequence[str],
) -> Iterator[_Ranking]:
    """Rank by relevance, then with diversity, then by a policy."""
    catalogue, choice = shop.catalogue, shop.choice
    scored = score_queries(
        catalogue,
        OnnxSession(shop.retrieval, intra_op_threads=1),
        split.before,
        queries,
        history=choice.history,
        repeats=choice.repeats,
    )
    items, relevance = scored.retrieved.items, scored.relevance(shop.ranker)
    lists = in_order(items, relevance)
    yield _Ranking("tollgate", ranker_name(choice.ranker), lists)
    weight = choice.diversity.chosen.weight
    diverse = diverse_lists(catalogue, items, relevance, weight=weight)
    settings = f"tollgate, diversity weight {weight:g}"
    yield _Ranking("diverse", settings, _with_rest(diverse, lists))
    if policy is None or policy.ranking is None:
        return
    rules = policy.ranking
    rows = len(queries.users)
    facts = RowFacts(
        probabilities=np.zeros((rows, len(policy.labels)), np.float32),
        features=np.zeros((rows, 0), np.float32),
        cents=np.zeros(rows, np.int64),
        degraded=np.zeros(rows, np.uint32),
        event_time_us=queries.now_us,
        list_hits=np.zeros(rows, np.uint32),
        fields={name: np.full(rows, MISSING) for name in fields},
    )
    by_policy = policy_lists(
        catalogue,
        rules,
        items,
        relevance,
        events=scored.events,
        in_force=rules.in_force(facts).tolist(),
    )
    settings = (
        f"tollgate by the released policy, diversity weight {rules.diversity:g}, "
        f"rules {len(rules.rules)}"
    )
    yield _Ranking("policy", settings, _with_rest(by_policy, lists))


def _with_rest(shown: I32, lists: I32) -> I32:
    """Put the first items before the other candidates; int32 [Q, C + 10]."""
    found = np.full((len(lists), lists.shape[1] + shown.shape[1]), -1, np.int32)
    for row, (first, own) in enumerate(zip(shown, lists, strict=True)):
        rest = own[~np.isin(own, first)]
        found[row, : len(first)] = first
        found[row, len(first) : len(first) + len(rest)] = rest
    return found


def _rivals(
    split: Split,
    queries: Queries,
    *,
    als: bool,
    repeats: bool,
    seed: int,
    say: Callable[[str], None],
) -> Iterator[_Ranking]:
    """Choose settings of the rivals within the training part, and rank by them."""
    past = split.before
    inner = newest_fifth(past)
    chosen_by = queries_of(inner, repeats=repeats).sample(MOST_USERS, seed=seed)

    def ranking(name: str, settings: object, scorer: Scorer) -> _Ranking:
        return _Ranking(
            name, str(settings), best_items(scorer, queries, repeats=repeats)
        )

    yield ranking("popularity", "events of an item", popularity_scorer(past))
    say("choose settings of item-kNN")
    knn = choose_knn(inner, chosen_by, repeats=repeats)
    yield ranking("item-kNN", knn, knn_scorer(past, knn, repeats=repeats))
    if als:
        say("choose settings of ALS")
        chosen = choose_als(inner, chosen_by, repeats=repeats, seed=seed)
        yield ranking("ALS", chosen, als_scorer(past, chosen, seed=seed))
