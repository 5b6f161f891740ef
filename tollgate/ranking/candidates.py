"""
Find candidates for users and compute the features of each, in training and serving.

Every row is computed alone, on arrays of the same shapes whatever the batch, and sums
are taken in a fixed order. So a row has the same bits alone, in a batch and permuted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.ranking.catalogue import Catalogue
from tollgate.ranking.history import UserHistory
from tollgate.schema import ACTION, ACTIONS, ITEM, SOURCES, hash_words

CANDIDATES = 200  # of each row, C
RECENT = 5  # newest items of a user that count as recent

RETRIEVAL_INPUTS = ("user", "penalty")
RETRIEVAL_OUTPUTS = ("index", "score", "scores")

FEATURE_NAMES = (
    "retrieval_score",
    "retrieval_share",  # of the best candidate's score
    "retrieval_rank",  # 0 the best … 1 the last
    "similar_history",  # mean similarity to all items of the history
    "similar_recent",  # ... to the newest items
    "similar_last",  # similarity to the newest item
    "follows_history",  # strength as a follower of the history, the newest most
    "follows_last",
    "cosine_history",  # of the item's vector and the mean of the history's vectors
    "popularity",  # logarithm of the share of events
    "trend",  # recent popularity against popularity
    "popularity_gap",  # popularity against the mean of the user's items
    "category_share",  # share of the history in the item's category
    "category_recent",  # ... of the newest items
    "seen",  # events of the user with the item
    "seen_age_h",  # hours since the newest of them, -1 for none
    "carted",
    "purchased",
    "history_items",  # distinct items in the user's history
    "last_age_h",  # hours since the user's newest event, -1 for none
    "is_similar",  # came as a neighbour of the newest items
    "is_popular",  # came as a popular item
)

PERSONAL, SIMILAR, POPULAR = (SOURCES.index(one) for one in SOURCES[:3])
_CART, _PURCHASE = ACTIONS.index("cart"), ACTIONS.index("purchase")

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


class Session(Protocol):
    """A loaded `retrieval.onnx`, such as an `OnnxSession` of tollgate.engine."""

    def run(
        self, names: Sequence[str], feeds: Mapping[str, npt.NDArray[Any]]
    ) -> list[npt.NDArray[Any]]:
        """Compute outputs in one call: one array per name, in that order."""


class Events(msgspec.Struct, frozen=True, eq=False):
    """
    The newest events of the users of N rows, the newest first, as items of a catalogue.

    Attributes:
        items: Index in the catalogue, -1 for an unknown item or no event; int32
            [N, H].
        actions: Index in `schema.ACTIONS`, -1 for none; int8 [N, H].
        age_s: Age at the time of the request, at least 0, and 0 for no event; float64
            [N, H].
    """

    items: I32
    actions: npt.NDArray[np.int8]
    age_s: F64


class Retrieved(msgspec.Struct, frozen=True, eq=False):
    """
    Candidates of N rows.

    Attributes:
        items: Index in the catalogue, -1 after the last; int32 [N, C].
        scores: Score of the retrieval, or the share of all events of a popular item;
            0 after the last; float32 [N, C].
        sources: Index in `schema.SOURCES`; uint8 [N, C].
    """

    items: I32
    scores: F32
    sources: npt.NDArray[np.uint8]


def feature_names(catalogue: Catalogue) -> tuple[str, ...]:
    """Return the names of the features of a candidate: FEATURE_NAMES and statics."""
    return (*FEATURE_NAMES, *catalogue.static_names)


def events_of(
    catalogue: Catalogue,
    history: UserHistory,
    now_us: npt.NDArray[np.int64],
) -> Events:
    """
    Express histories in the indices of a catalogue.

    Args:
        catalogue: Items of the release.
        history: Has the column `item`, and optionally `action`.
        now_us: Time of each request, µs; int64 [N].
    """
    items = catalogue.index_of(history.columns[ITEM])
    actions = np.full(items.shape, -1, np.int8)
    hashes = history.columns.get(ACTION)
    if hashes is not None:
        words = hash_words([word.encode() for word in ACTIONS])
        for at, word in enumerate(words):
            actions[hashes == word] = at
    present = np.arange(items.shape[1]) < history.count[:, None]
    age_us = np.maximum(now_us[:, None] - history.time_us, 0)
    return Events(
        items=np.where(present, items, np.int32(-1)),
        actions=np.where(present, actions, np.int8(-1)),
        age_s=np.where(present, age_us / 1e6, 0.0),
    )


def retrieve(
    catalogue: Catalogue,
    session: Session,
    events: Events,
    *,
    available: npt.NDArray[np.bool_],
    skip: Sequence[npt.NDArray[np.integer[Any]]],
    segments: npt.NDArray[np.int32] | None = None,
) -> Retrieved:
    """
    Find the candidates of each row.

    A user without a known item gets the popular items of the segment. Otherwise
    `similar_count` candidates are the best neighbours of the newest items, and the
    other ones have the best scores of the retrieval.

    Args:
        catalogue: Items of the release.
        session: Its `retrieval.onnx`.
        events: Histories of N rows.
        available: Items that may be candidates; bool [I].
        skip: Indices of the items that a row must not have, by row.
        segments: Index in the catalogue's segments, by row; None for everyone.
    """
    rows = len(events.items)
    found = Retrieved(
        items=np.full((rows, CANDIDATES), -1, np.int32),
        scores=np.zeros((rows, CANDIDATES), np.float32),
        sources=np.zeros((rows, CANDIDATES), np.uint8),
    )
    barred = np.where(available, np.float32(0), np.float32(-np.inf))
    for row in range(rows):
        penalty = barred.copy()
        penalty[skip[row]] = -np.inf
        segment = 0 if segments is None else int(segments[row])
        items, weights = _distinct(catalogue, events, row)
        if len(items):
            _retrieve_personal(
                catalogue, session, found, row, items, weights, penalty=penalty
            )
        else:
            _retrieve_popular(catalogue, found, row, segment, penalty=penalty)
    return found


def distinct_items(
    events: Events, row: int, *, action_weights: F32, half_life: float
) -> tuple[I32, F64]:
    """
    Return the distinct items of a row's history, the newest first, and their weights.

    An item weighs as its weightiest action, and half after each half-life.

    Args:
        events: Histories.
        row: Row of them.
        action_weights: As in `Catalogue`.
        half_life: As in `Catalogue`.
    """
    present = events.items[row] >= 0
    actions = events.actions[row][present]
    heaviest: dict[int, float] = {}  # in the order of the events
    for item, weight in zip(
        events.items[row][present].tolist(),
        action_weights[actions].tolist(),
        strict=True,
    ):
        heaviest[item] = max(heaviest.get(item, 0.0), weight)
    decay = 0.5 ** (np.arange(len(heaviest)) / half_life)
    weights = np.array(list(heaviest.values()), np.float64)
    return np.array(list(heaviest), np.int32), weights * decay


def _distinct(catalogue: Catalogue, events: Events, row: int) -> tuple[I32, F64]:
    return distinct_items(
        events,
        row,
        action_weights=catalogue.action_weights,
        half_life=catalogue.half_life,
    )


def user_vector(catalogue: Catalogue, items: I32, weights: F64) -> F32:
    """
    Sum the factors of a user's items: the input `user` of the retrieval.

    Args:
        catalogue: Items of the release.
        items: Distinct items, the newest first.
        weights: Their weights; the sum of their squares becomes 1.

    Returns:
        float32 [D].
    """
    scaled = weights / max(float(np.sqrt(_sum(weights * weights))), 1e-12)
    # Adding row by row has the same bits on every machine; a matrix product has not.
    summed = np.add.reduce(scaled[:, None] * catalogue.factors[items], axis=0)
    found: F32 = summed.astype(np.float32)
    return found


def _retrieve_personal(
    catalogue: Catalogue,
    session: Session,
    found: Retrieved,
    row: int,
    items: I32,
    weights: F64,
    *,
    penalty: F32,
) -> None:
    user = user_vector(catalogue, items, weights)
    feeds = {"user": user[None], "penalty": penalty[None]}
    index, score, scores = session.run(RETRIEVAL_OUTPUTS, feeds)
    best = index[0][np.isfinite(score[0])]
    similar = best[:0]
    if catalogue.similar_count:
        near = _Near(catalogue.neighbours, catalogue.similarities, items[:RECENT]).mean(
            RECENT
        )
        (some,) = ((near > 0) & (penalty == 0)).nonzero()
        order = np.argsort(-near[some], kind="stable")[: catalogue.similar_count]
        similar = some[order]
    taken = np.zeros(catalogue.size, np.bool_)
    taken[similar] = True
    personal = best[~taken[best]][: CANDIDATES - len(similar)]
    both = np.concatenate((personal, similar))
    value = scores[0][both]
    order = np.lexsort((both, -value))
    count = len(both)
    found.items[row, :count] = both[order]
    found.scores[row, :count] = value[order]
    source = np.full(count, PERSONAL, np.uint8)
    source[len(personal) :] = SIMILAR
    found.sources[row, :count] = source[order]


def _retrieve_popular(
    catalogue: Catalogue, found: Retrieved, row: int, segment: int, *, penalty: F32
) -> None:
    popular = catalogue.popular[segment]
    popular = popular[popular >= 0]
    popular = popular[np.isfinite(penalty[popular])][:CANDIDATES]
    count = len(popular)
    found.items[row, :count] = popular
    found.scores[row, :count] = catalogue.popularity[popular]
    found.sources[row, :count] = POPULAR


def score_candidates(
    catalogue: Catalogue,
    session: Session,
    events: Events,
    *,
    items: I32,
    sources: npt.NDArray[np.uint8],
) -> Retrieved:
    """
    Score known candidates as `retrieve` did when it found them.

    Args:
        catalogue: Items of the release.
        session: Its `retrieval.onnx`.
        events: Histories of N rows.
        items: Candidates, -1 after the last; int32 [N, C].
        sources: Index in `schema.SOURCES`; uint8 [N, C].
    """
    scores = np.zeros(items.shape, np.float32)
    free = np.zeros((1, catalogue.size), np.float32)
    present = items >= 0
    for row in range(len(items)):
        popular = present[row] & (sources[row] == POPULAR)
        scores[row, popular] = catalogue.popularity[items[row, popular]]
        others = present[row] & ~popular
        known, weights = _distinct(catalogue, events, row)
        if others.any() and len(known):
            user = user_vector(catalogue, known, weights)
            feeds = {"user": user[None], "penalty": free}
            (_, _, found) = session.run(RETRIEVAL_OUTPUTS, feeds)
            scores[row, others] = found[0][items[row, others]]
    return Retrieved(items=items, scores=scores, sources=sources)


def candidate_features(
    catalogue: Catalogue, events: Events, retrieved: Retrieved
) -> F32:
    """
    Compute the features of candidates; float32 [N, C, F], zeros after the last one.

    Their names are those of `feature_names`.
    """
    rows, count = retrieved.items.shape
    features = np.zeros((rows, count, len(feature_names(catalogue))), np.float32)
    for row in range(rows):
        present = int(np.count_nonzero(retrieved.items[row] >= 0))
        if present:
            columns = _row_features(catalogue, events, retrieved, row, present)
            features[row, :present, : len(FEATURE_NAMES)] = columns.T
            candidates = retrieved.items[row, :present]
            features[row, :present, len(FEATURE_NAMES) :] = catalogue.statics[
                candidates
            ]
    return features


def _row_features(
    catalogue: Catalogue, events: Events, retrieved: Retrieved, row: int, present: int
) -> F64:
    """Compute one row's features; float64 [F, candidates]."""
    candidates = retrieved.items[row, :present]
    scores = retrieved.scores[row, :present].astype(np.float64)
    sources = retrieved.sources[row, :present]
    columns = np.zeros((len(FEATURE_NAMES), present))
    column = dict(zip(FEATURE_NAMES, columns, strict=True))

    column["retrieval_score"][:] = scores
    best = float(scores.max())
    if best > 0:
        column["retrieval_share"][:] = scores / best
    column["retrieval_rank"][:] = np.arange(present) / max(present - 1, 1)
    popularity = catalogue.log_popularity[candidates].astype(np.float64)
    column["popularity"][:] = popularity
    column["trend"][:] = catalogue.trend[candidates]
    column["is_similar"][:] = sources == SIMILAR
    column["is_popular"][:] = sources == POPULAR
    column["seen_age_h"][:] = -1.0
    column["last_age_h"][:] = -1.0

    items, _ = _distinct(catalogue, events, row)
    if not len(items):
        return columns
    count = len(items)
    column["history_items"][:] = count
    _fill_neighbour_columns(catalogue, column, candidates, items)
    mean = np.add.reduce(catalogue.vectors[items].astype(np.float64), axis=0)
    length = float(np.sqrt(_sum(mean * mean)))
    if length > 0:
        products = catalogue.vectors[candidates] * (mean / length)
        column["cosine_history"][:] = np.add.reduce(products, axis=1)
    own = catalogue.log_popularity[items].astype(np.float64)
    column["popularity_gap"][:] = popularity - _sum(own) / count
    category = catalogue.categories[candidates]
    for name, some in (("category_share", items), ("category_recent", items[:RECENT])):
        theirs = catalogue.categories[some]
        total = np.bincount(
            theirs[theirs >= 0], minlength=len(catalogue.category_names) + 1
        )
        column[name][:] = np.where(category >= 0, total[category], 0) / len(some)
    _fill_seen_columns(catalogue, column, candidates, events, row)
    return columns


def _fill_neighbour_columns(
    catalogue: Catalogue, column: Mapping[str, F64], candidates: I32, items: I32
) -> None:
    near = _Near(catalogue.neighbours, catalogue.similarities, items)
    column["similar_history"][:] = near.mean(len(items))[candidates]
    column["similar_recent"][:] = near.mean(RECENT)[candidates]
    column["similar_last"][:] = near.mean(1)[candidates]
    follows = _Near(catalogue.followers, catalogue.follow_shares, items)
    decay = 0.5 ** (np.arange(len(items)) / RECENT)
    column["follows_history"][:] = follows.weighted(decay)[candidates]
    column["follows_last"][:] = follows.mean(1)[candidates]


class _Near:
    """
    The items in the lists of some items, and the strengths of both together.

    Args:
        lists: Of all items, such as `neighbours`; int32 [I, M].
        strengths: float32 [I, M].
        items: The items, the newest first.
    """

    def __init__(self, lists: I32, strengths: F32, items: I32) -> None:
        near = lists[items]
        self._inside = near >= 0
        self._near = near[self._inside]
        self._strengths = strengths[items][self._inside].astype(np.float64)
        self._size = len(lists)
        self._count = len(items)

    def mean(self, first: int) -> F64:
        """Average the strengths of the first items; float64 [I]."""
        first = min(first, self._count)
        end = int(np.count_nonzero(self._inside[:first]))
        return self._summed(self._near[:end], self._strengths[:end]) / first

    def weighted(self, weights: F64) -> F64:
        """Average the strengths of all items by their weights; float64 [I]."""
        each = np.broadcast_to(weights[:, None], self._inside.shape)[self._inside]
        return self._summed(self._near, self._strengths * each) / _sum(weights)

    def _summed(self, near: I32, strengths: F64) -> F64:
        summed = np.bincount(near, strengths, minlength=self._size)
        return np.asarray(summed, np.float64)


def _fill_seen_columns(
    catalogue: Catalogue,
    column: Mapping[str, F64],
    candidates: I32,
    events: Events,
    row: int,
) -> None:
    known = events.items[row] >= 0
    items, actions = events.items[row][known], events.actions[row][known]
    hours = events.age_s[row][known] / 3600.0
    column["last_age_h"][:] = hours[0]
    for name, chosen in (
        ("seen", slice(None)),
        ("carted", actions == _CART),
        ("purchased", actions == _PURCHASE),
    ):
        total = np.bincount(items[chosen], minlength=catalogue.size)
        column[name][:] = total[candidates]
    newest = np.full(catalogue.size, -1.0)
    newest[items[::-1]] = hours[::-1]  # the newest event is written last
    column["seen_age_h"][:] = newest[candidates]


def _sum(values: F64) -> float:
    """Add numbers in their order, so that the bits are those of a plain loop."""
    return float(np.add.accumulate(values)[-1]) if len(values) else 0.0
