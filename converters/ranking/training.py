"""Choose settings on a validation part, and train the parts of a release."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.ranking.catalogue_building import (
    MOST_SIZE,
    Learnt,
    RetrievalSettings,
    build_catalogue,
    ease_factors,
    learn_items,
)
from converters.ranking.diversity import DiversityChoice, choose_diversity
from converters.ranking.interactions import Interactions
from converters.ranking.metrics import mean_ndcg, mean_recall
from converters.ranking.ranker import (
    LinearRanker,
    RankingRows,
    TreeRanker,
    TreeSettings,
    retrieval_ranker,
    train_linear,
    train_trees,
)
from converters.ranking.retrieval import Factors, retrieval_graph
from converters.ranking.splits import (
    Queries,
    Split,
    later_cuts,
    newest_events,
    newest_fifth,
    queries_of,
    repeat_share,
)
from tollgate.engine.onnx_session import OnnxSession
from tollgate.errors import InputError
from tollgate.ranking.candidates import (
    CANDIDATES,
    Events,
    Retrieved,
    candidate_features,
    distinct_items,
    retrieve,
)
from tollgate.ranking.catalogue import RETRIEVAL_FILE, Catalogue

HISTORY = 200  # newest events of a user that a request sees, where nothing else is said
MOST_ITEMS = 10_000  # EASE inverts a matrix of this size
REPEATS_FROM = 0.05  # share of repeats from which items may be shown once more

# The grids. Each is searched in this order; the first of equals wins.
RIDGES = (1.0, 3.0, 10.0, 30.0)
SIZES = (32, 64, 128, 256)
HALF_LIVES = (2.0, 5.0, 10.0, 20.0, 50.0, math.inf)
ACTION_WEIGHTS = (
    (1.0, 1.0, 1.0, 1.0),
    (1.0, 2.0, 3.0, 1.0),
    (1.0, 3.0, 9.0, 1.0),
)
SIMILAR_COUNTS = (0, 20, 50)
LINEAR_PENALTIES = (0.01, 0.1)
TREES = (
    TreeSettings(objective="rank_xendcg", leaves=7, rounds=100),
    TreeSettings(objective="rank_xendcg", leaves=7, rounds=300),
    TreeSettings(objective="rank_xendcg", leaves=15, rounds=200),
    TreeSettings(objective="lambdarank", leaves=7, rounds=100),
)

_MOST_QUERIES = 1_000  # users by whom the retrieval is chosen
_MOST_JUDGED = 5_000  # users by whom the ranker is chosen
_MOST_DIVERSE = 1_000  # users by whom the diversity is chosen
_MOST_ROWS = 4_000  # requests that a ranker learns from
_CUTS = 3  # requests of one user among these, at most

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

Ranker = LinearRanker | TreeRanker
RankerSettings = TreeSettings | float | None  # trees, penalty of a sum, retrieval


class Choice(msgspec.Struct, frozen=True):
    """
    Settings chosen on the validation part.

    Attributes:
        retrieval: Of the retrieval.
        ranker: Of the ranker; a number is the penalty of a weighted sum, and None is
            the order of the retrieval.
        diversity: `diversity.weight` for the policy, with what was tried.
        history: Newest events of a user that a request sees.
        repeats: Items that the user has met before may be shown once more.
        seed: Of everything random.
        tried: What was tried: name, and its recall@200 and NDCG@10 on the validation
            part.
    """

    retrieval: RetrievalSettings
    ranker: RankerSettings
    diversity: DiversityChoice
    history: int
    repeats: bool
    seed: int
    tried: tuple[tuple[str, float, float], ...]


class TrainedShop(msgspec.Struct, frozen=True, eq=False):
    """
    The parts of a release.

    Attributes:
        catalogue: The items.
        retrieval: Bytes of `retrieval.onnx`.
        ranker: Scores candidates.
        choice: Settings of all of it.
    """

    catalogue: Catalogue
    retrieval: bytes
    ranker: Ranker
    choice: Choice

    def save(self, folder: Path) -> None:
        """Write `catalogue.npz` and `retrieval.onnx` into a folder."""
        self.catalogue.save(folder)
        (folder / RETRIEVAL_FILE).write_bytes(self.retrieval)


class Scored(msgspec.Struct, frozen=True, eq=False):
    """Candidates of Q requests, their histories and their features."""

    events: Events
    retrieved: Retrieved
    features: F32

    def ranked(self, ranker: Ranker) -> I32:
        """Return the candidates in the order of a ranker, -1 last; int32 [Q, C]."""
        return in_order(self.retrieved.items, self.relevance(ranker))

    def relevance(self, ranker: Ranker) -> npt.NDArray[np.float64]:
        """Score the candidates, -inf after the last; float64 [Q, C]."""
        relevance = ranker.relevance(self.features)
        return np.where(self.retrieved.items >= 0, relevance, -np.inf)


def in_order(items: I32, relevance: npt.NDArray[np.float64]) -> I32:
    """Sort each row's items by descending relevance; ties stay in their order."""
    order = np.argsort(-relevance, axis=1, kind="stable")
    return np.take_along_axis(items, order, axis=1)


def train_shop(
    interactions: Interactions, *, history: int = HISTORY, seed: int = 0
) -> TrainedShop:
    """
    Choose settings on the newest fifth of each user's events, then train on all.

    Args:
        interactions: The whole table.
        history: Newest events of a user that a request sees: `most` of `history` in
            features.yaml.
        seed: The same table and seed give the same release.

    Raises:
        InputError: There are too few users or events, or too many items.
    """
    choice = choose_settings(interactions, history=history, seed=seed)
    return fit_shop(interactions, choice)


def choose_settings(interactions: Interactions, *, history: int, seed: int) -> Choice:
    """
    Choose retrieval and ranker by the newest fifth of each user's events.

    The retrieval with the best sum of recall@200 and NDCG@10 is taken, then the number
    of neighbours with the best recall. Then rankers learn from the newest fifth of the
    rest, and the one with the best NDCG@10 is taken; of equals the simpler one, so it
    is never worse than the order of the retrieval. The weight of the diversity is the
    greatest one at which the NDCG@10 falls by at most 2 %.

    Raises:
        InputError: There are too few users or events, or too many items.
    """
    _check_size(interactions)
    split = newest_fifth(interactions)
    repeats = repeat_share(split) >= REPEATS_FROM
    queries = queries_of(split, repeats=repeats)
    if len(queries.users) < 2:
        problem = f"{len(queries.users)} users have 5 events or more, so too few items"
        raise InputError(
            interactions.source, f"{problem} can be held out; at least 2 are needed"
        )
    learnt = learn_items(split.before, seed=seed)
    some = queries.sample(_MOST_QUERIES, seed=seed)
    settings, factors, tried = _choose_retrieval(
        split, some, learnt, history=history, repeats=repeats, seed=seed
    )
    ranker, diversity, more = _choose_ranker(
        split,
        queries.sample(_MOST_JUDGED, seed=seed),
        build_catalogue(learnt, factors, settings),
        factors,
        settings=settings,
        history=history,
        repeats=repeats,
        seed=seed,
    )
    return Choice(
        retrieval=settings,
        ranker=ranker,
        diversity=diversity,
        history=history,
        repeats=repeats,
        seed=seed,
        tried=(*tried, *more),
    )


def fit_shop(interactions: Interactions, choice: Choice) -> TrainedShop:
    """
    Train a release with chosen settings.

    The catalogue is of all interactions. The ranker learns from the newest fifth of
    each user's events, with a catalogue of the older ones.
    """
    _check_size(interactions)
    ranker = fit_ranker(
        interactions,
        choice.ranker,
        settings=choice.retrieval,
        history=choice.history,
        repeats=choice.repeats,
        seed=choice.seed,
    )
    catalogue, factors = _fit_catalogue(
        interactions, choice.retrieval, seed=choice.seed
    )
    return TrainedShop(
        catalogue=msgspec.structs.replace(catalogue, repeats=choice.repeats),
        retrieval=retrieval_graph(factors.candidates),
        ranker=ranker,
        choice=choice,
    )


def fit_ranker(
    interactions: Interactions,
    ranker: RankerSettings,
    *,
    settings: RetrievalSettings,
    history: int,
    repeats: bool,
    seed: int,
) -> Ranker:
    """Train one ranker on the newest fifth of each user's events."""
    if ranker is None:
        return retrieval_ranker()
    rows = _training_rows(
        interactions, settings, history=history, repeats=repeats, seed=seed
    )
    return _train(rows, ranker, seed=seed)


def score_queries(
    catalogue: Catalogue,
    session: OnnxSession,
    past: Interactions,
    queries: Queries,
    *,
    history: int,
    repeats: bool,
) -> Scored:
    """
    Find candidates and features as a server would, from a user's newest events.

    Args:
        past: The events before the requests.
        repeats: Items of these newest events may be candidates.
    """
    events = newest_events(past, queries.users, queries.now_us, most=history)
    nothing = np.zeros(0, np.int32)
    skip = [nothing if repeats else own[own >= 0] for own in events.items]
    available = np.ones(catalogue.size, np.bool_)
    retrieved = retrieve(catalogue, session, events, available=available, skip=skip)
    return Scored(
        events=events,
        retrieved=retrieved,
        features=candidate_features(catalogue, events, retrieved),
    )


def _check_size(interactions: Interactions) -> None:
    items = len(interactions.item_ids)
    if items > MOST_ITEMS:
        problem = (
            f"has {items:,} items; the most is {MOST_ITEMS:,}: leave rare ones out"
        )
        raise InputError(interactions.source, problem)
    if items < 2:
        raise InputError(interactions.source, "has one item; at least 2 are needed")


def _fit_catalogue(
    interactions: Interactions, settings: RetrievalSettings, *, seed: int
) -> tuple[Catalogue, Factors]:
    learnt = learn_items(interactions, seed=seed)
    factors = ease_factors(learnt, ridge=settings.ridge, size=MOST_SIZE, seed=seed)
    factors = factors.first(settings.size)
    return build_catalogue(learnt, factors, settings), factors


def _choose_retrieval(
    split: Split,
    queries: Queries,
    learnt: Learnt,
    *,
    history: int,
    repeats: bool,
    seed: int,
) -> tuple[RetrievalSettings, Factors, list[tuple[str, float, float]]]:
    """Search the grids of the retrieval; return its settings, factors and figures."""
    past = split.before
    events = newest_events(past, queries.users, queries.now_us, most=history)
    tried: list[tuple[str, float, float]] = []
    best, found, fitted = -1.0, RetrievalSettings(1.0, 1, math.inf), None

    def judge(candidate: RetrievalSettings, factors: Factors, users: Any) -> None:
        nonlocal best, found, fitted
        lists = _retrieved_lists(factors, users, events, repeats=repeats)
        recall = mean_recall(lists, queries.relevant)
        ndcg = mean_ndcg(lists, queries.relevant)
        tried.append((retrieval_name(candidate), recall, ndcg))
        if recall + ndcg > best:
            best, found, fitted = recall + ndcg, candidate, factors

    users = {one: _user_matrix(events, past, one) for one in HALF_LIVES}
    for ridge in RIDGES:
        every = ease_factors(learnt, ridge=ridge, size=MOST_SIZE, seed=seed)
        for size, half_life in itertools.product(SIZES, HALF_LIVES):
            if size > len(past.item_ids):
                continue
            candidate = RetrievalSettings(ridge=ridge, size=size, half_life=half_life)
            judge(candidate, every.first(size), users[half_life])
    if fitted is None:
        size = len(past.item_ids)
        found = RetrievalSettings(ridge=RIDGES[0], size=size, half_life=math.inf)
        fitted = ease_factors(learnt, ridge=RIDGES[0], size=size, seed=seed)
    if (past.actions >= 0).any():
        for weights in ACTION_WEIGHTS[1:]:
            candidate = msgspec.structs.replace(found, action_weights=weights)
            own = _user_matrix(events, past, found.half_life, weights=weights)
            judge(candidate, fitted, own)
    session = OnnxSession(retrieval_graph(fitted.candidates), intra_op_threads=1)
    most = -1.0
    for count in SIMILAR_COUNTS:
        candidate = msgspec.structs.replace(found, similar_count=count)
        catalogue = build_catalogue(learnt, fitted, candidate)
        scored = score_queries(
            catalogue, session, past, queries, history=history, repeats=repeats
        )
        recall = mean_recall(scored.retrieved.items, queries.relevant)
        ndcg = mean_ndcg(scored.retrieved.items, queries.relevant)
        tried.append((f"{retrieval_name(candidate)}, {count} similar", recall, ndcg))
        if recall > most:
            most, chosen = recall, candidate
    return chosen, fitted, tried


def retrieval_name(settings: RetrievalSettings) -> str:
    """Describe the settings of a retrieval in a few words."""
    name = (
        f"EASE, ridge {settings.ridge:g}, {settings.size} factors, "
        f"half-life {settings.half_life:g}"
    )
    if len(set(settings.action_weights)) > 1:
        name += ", actions " + "/".join(f"{one:g}" for one in settings.action_weights)
    return name


def _user_matrix(
    events: Events,
    past: Interactions,
    half_life: float,
    *,
    weights: Sequence[float] = ACTION_WEIGHTS[0],
) -> Any:
    """Return the weights of each user's items, as the catalogue has them; CSR."""
    from scipy import sparse

    by_action = np.asarray(weights, np.float32)
    rows, columns, values = [], [], []
    for row in range(len(events.items)):
        items, weight = distinct_items(
            events, row, action_weights=by_action, half_life=half_life
        )
        rows.append(np.full(len(items), row))
        columns.append(items)
        values.append(weight / max(float(np.sqrt(weight @ weight)), 1e-12))
    place = (np.concatenate(rows), np.concatenate(columns))
    shape = (len(events.items), len(past.item_ids))
    return sparse.csr_matrix((np.concatenate(values).astype(np.float32), place), shape)


def _retrieved_lists(
    factors: Factors, users: Any, events: Events, *, repeats: bool
) -> I32:
    """Return the best items of each user, as the graph would; int32 [Q, C]."""
    scores = (users @ factors.history) @ factors.candidates
    if not repeats:
        for row, own in enumerate(events.items):
            scores[row, own[own >= 0]] = -np.inf
    count = min(CANDIDATES, scores.shape[1])
    best = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
    return np.take_along_axis(best, order, axis=1).astype(np.int32)


def _choose_ranker(
    split: Split,
    queries: Queries,
    catalogue: Catalogue,
    factors: Factors,
    *,
    settings: RetrievalSettings,
    history: int,
    repeats: bool,
    seed: int,
) -> tuple[RankerSettings, DiversityChoice, list[tuple[str, float, float]]]:
    """Search the grid of rankers; return the best, its diversity and the figures."""
    session = OnnxSession(retrieval_graph(factors.candidates), intra_op_threads=1)
    judged = score_queries(
        catalogue, session, split.before, queries, history=history, repeats=repeats
    )
    rows = _training_rows(
        split.before, settings, history=history, repeats=repeats, seed=seed
    )
    tried: list[tuple[str, float, float]] = []
    best, found = -1.0, None
    items = judged.retrieved.items
    for one in (None, *LINEAR_PENALTIES, *TREES):
        if one is None:
            ranker: Ranker = retrieval_ranker()
        elif len(rows.with_both().labels) == 0:
            break
        else:
            ranker = _train(rows, one, seed=seed)
        relevance = judged.relevance(ranker)
        lists = in_order(items, relevance)
        ndcg = mean_ndcg(lists, queries.relevant)
        recall = mean_recall(lists, queries.relevant)
        tried.append((ranker_name(one), recall, ndcg))
        if ndcg > best:
            best, found, found_relevance = ndcg, one, relevance
    some = np.random.default_rng(seed).permutation(len(items))[:_MOST_DIVERSE]
    relevant = [queries.relevant[row] for row in some]
    diversity = choose_diversity(
        catalogue, items[some], found_relevance[some], relevant
    )
    return found, diversity, tried


def ranker_name(settings: RankerSettings) -> str:
    """Describe the settings of a ranker in a few words."""
    if settings is None:
        return "order of the retrieval"
    if isinstance(settings, float):
        return f"weighted sum, penalty {settings:g}"
    return (
        f"trees, {settings.objective}, {settings.leaves} leaves, "
        f"{settings.rounds} rounds"
    )


def _train(rows: RankingRows, settings: TreeSettings | float, *, seed: int) -> Ranker:
    if isinstance(settings, TreeSettings):
        return train_trees(rows, settings, seed=seed)
    return train_linear(rows, penalty=settings)


def _training_rows(
    interactions: Interactions,
    settings: RetrievalSettings,
    *,
    history: int,
    repeats: bool,
    seed: int,
) -> RankingRows:
    """
    Make requests within the newest fifth of each user's events, with their labels.

    The catalogue is of the older events. A request is at the beginning of this fifth, a
    third into it, or two thirds; the events up to there are in its history.
    """
    split = newest_fifth(interactions)
    catalogue, factors = _fit_catalogue(split.before, settings, seed=seed)
    session = OnnxSession(retrieval_graph(factors.candidates), intra_op_threads=1)
    parts = []
    for cut in later_cuts(split, _CUTS):
        queries = queries_of(cut, repeats=repeats)
        queries = queries.sample(_MOST_ROWS // _CUTS, seed=seed)
        scored = score_queries(
            catalogue, session, cut.before, queries, history=history, repeats=repeats
        )
        items = scored.retrieved.items
        labels = [
            np.isin(own, wanted)
            for own, wanted in zip(items, queries.relevant, strict=True)
        ]
        parts.append(
            RankingRows(
                features=scored.features,
                present=items >= 0,
                labels=np.asarray(labels, np.float32).reshape(items.shape),
            )
        )
    return RankingRows(
        features=np.concatenate([one.features for one in parts]),
        present=np.concatenate([one.present for one in parts]),
        labels=np.concatenate([one.labels for one in parts]),
    )
