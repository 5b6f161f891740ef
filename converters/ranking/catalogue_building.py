"""Build the catalogue of a release from interactions."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from converters.ranking.interactions import Interactions
from converters.ranking.item_statistics import (
    NEIGHBOURS,
    co_occurrence,
    cosine_similarity,
    follow_strength,
    item_vectors,
    popularity,
    recent_popularity,
    top_of_rows,
    user_item_matrix,
)
from converters.ranking.retrieval import Factors, ease_weights, factorize
from tollgate.ranking.catalogue import Catalogue

POPULAR = 1_000  # items in the list of a segment
MOST_SIZE = 256  # factors of an item
SHRINK = 10.0  # of the similarity of neighbours

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


class RetrievalSettings(msgspec.Struct, frozen=True):
    """
    Settings of the retrieval, chosen on the validation part.

    Attributes:
        ridge: Of EASE, by the mean number of users of an item.
        size: Factors of an item.
        half_life: Newer items after which an item of the history weighs half.
        action_weights: Weight of a view, a cart, a purchase and an event without one.
        similar_count: Candidates that are neighbours of the newest items.
    """

    ridge: float
    size: int
    half_life: float
    action_weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    similar_count: int = 20


class Learnt(msgspec.Struct, frozen=True, eq=False):
    """
    Everything that is learnt of items from some interactions, for any settings.

    Attributes:
        interactions: Source of it all.
        gram: Users who met both items; float32 [I, I].
        neighbours, similarities, followers, follow_shares, vectors: See `Catalogue`.
    """

    interactions: Interactions
    gram: F32
    neighbours: I32
    similarities: F32
    followers: I32
    follow_shares: F32
    vectors: F32


def learn_items(interactions: Interactions, *, seed: int) -> Learnt:
    """Learn what items have in common."""
    gram = co_occurrence(user_item_matrix(interactions))
    near, similarity = top_of_rows(cosine_similarity(gram, shrink=SHRINK), NEIGHBOURS)
    after, share = top_of_rows(follow_strength(interactions), NEIGHBOURS)
    return Learnt(
        interactions=interactions,
        gram=gram,
        neighbours=near,
        similarities=similarity,
        followers=after,
        follow_shares=share,
        vectors=item_vectors(gram, seed=seed),
    )


def ease_factors(learnt: Learnt, *, ridge: float, size: int, seed: int) -> Factors:
    """Return the factors of EASE; those of a smaller size are the first of these."""
    users = np.diag(learnt.gram)
    weights = ease_weights(learnt.gram, ridge=ridge * float(users[users > 0].mean()))
    return factorize(weights, size=size, seed=seed)


def build_catalogue(
    learnt: Learnt, factors: Factors, settings: RetrievalSettings
) -> Catalogue:
    """Put a catalogue together from what was learnt, and chosen settings."""
    interactions = learnt.interactions
    return Catalogue(
        item_ids=interactions.item_ids,
        categories=interactions.categories,
        category_names=interactions.category_names,
        popularity=popularity(interactions),
        recent_popularity=recent_popularity(interactions),
        vectors=learnt.vectors,
        neighbours=learnt.neighbours,
        similarities=learnt.similarities,
        followers=learnt.followers,
        follow_shares=learnt.follow_shares,
        factors=np.ascontiguousarray(factors.history[:, : settings.size]),
        action_weights=np.asarray(settings.action_weights, np.float32),
        half_life=settings.half_life,
        similar_count=settings.similar_count,
        statics=np.zeros((len(interactions.item_ids), 0), np.float32),
        static_names=[],
        segments=interactions.segment_names,
        popular=_popular_by_segment(interactions),
        segment_field=interactions.segment_field,
    )


def _popular_by_segment(interactions: Interactions) -> I32:
    """Return the items of each segment, the most popular first, -1 after the last."""
    size = len(interactions.item_ids)
    count = min(POPULAR, size)
    found = np.full((len(interactions.segment_names), count), -1, np.int32)
    overall = np.bincount(interactions.items, minlength=size)
    segments = interactions.segments[interactions.users]
    for place in range(len(found)):
        own = interactions.items[segments == place] if place else interactions.items
        events = np.bincount(own, minlength=size)
        # Ties, and items that the segment never met, in the order of all users.
        found[place] = np.lexsort((np.arange(size), -overall, -events))[:count]
    return found
