"""Learn what items have in common from the histories of users."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from converters.ranking.interactions import Interactions

NEIGHBOURS = 64  # items in the list of an item
VECTOR_SIZE = 32
_AHEAD = 3  # a follower comes at most this many items later
_SHRINK = 10.0  # users that a pair lacks count as users without it
RECENT_SHARE = 0.1  # of the events, the newest, for recent popularity

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


def user_item_matrix(interactions: Interactions) -> Any:
    """Return which user met which item; a scipy CSR matrix of 0 and 1 [U, I]."""
    from scipy import sparse

    shape = (len(interactions.user_ids), len(interactions.item_ids))
    size = shape[1]
    pairs = np.unique(interactions.users.astype(np.int64) * size + interactions.items)
    ones = np.ones(len(pairs), np.float32)
    return sparse.csr_matrix((ones, (pairs // size, pairs % size)), shape)


def co_occurrence(matrix: Any) -> F32:
    """Count the users who met both items; dense float32 [I, I]."""
    found: F32 = (matrix.T @ matrix).toarray()
    return found


def cosine_similarity(together: F32, *, shrink: float) -> F32:
    """
    Return users of both items / (root of the product of their users + shrink) [I, I].

    The diagonal is 0.
    """
    users = np.sqrt(np.diag(together).astype(np.float64)).astype(np.float32)
    scale = users[:, None] * users[None, :] + np.float32(shrink)
    similar: F32 = np.divide(
        together, scale, out=np.zeros_like(together), where=scale > 0
    )
    np.fill_diagonal(similar, 0.0)
    return similar


def follow_strength(interactions: Interactions) -> F32:
    """
    Return how often an item (column) came shortly after another one (row) [I, I].

    It is the number of times that the column's item was among the next 3 events of a
    user, 1 for the next, 1/2 and 1/3 after that, by the root of the product of both
    items' events plus 10. The diagonal is 0.
    """
    from scipy import sparse

    size = len(interactions.item_ids)
    total = np.zeros((size, size), np.float32)
    for ahead in range(1, _AHEAD + 1):
        same = interactions.users[:-ahead] == interactions.users[ahead:]
        first = interactions.items[:-ahead][same]
        later = interactions.items[ahead:][same]
        weight = np.full(len(first), 1.0 / ahead, np.float32)
        total += sparse.csr_matrix((weight, (first, later)), (size, size)).toarray()
    events = np.bincount(interactions.items, minlength=size).astype(np.float64)
    scale = np.sqrt(np.outer(events, events)).astype(np.float32) + np.float32(_SHRINK)
    total /= scale
    np.fill_diagonal(total, 0.0)
    return total


def top_of_rows(strengths: F32, count: int) -> tuple[I32, F32]:
    """
    Return the strongest columns of each row, the strongest first.

    Ties go to the lower index. A strength of 0 or less is left out.

    Returns:
        Columns, -1 after the last, int32 [I, count], and strengths, float32 [I, count].
    """
    size = len(strengths)
    count = min(count, size)
    columns = np.full((size, count), -1, np.int32)
    values = np.zeros((size, count), np.float32)
    for row in range(size):
        own = strengths[row]
        border = np.partition(own, size - count)[size - count]
        above = np.flatnonzero((own >= border) & (own > 0))
        order = above[np.argsort(-own[above], kind="stable")][:count]
        columns[row, : len(order)] = order
        values[row, : len(order)] = own[order]
    return columns, values


def item_vectors(together: F32, *, seed: int) -> F32:
    """
    Return unit vectors of items: the best factors of their co-occurrence cosine.

    The cosine counts a pair of an item with itself as 1. An item without events has
    zeros.

    Returns:
        float32 [I, at most VECTOR_SIZE].
    """
    from sklearn.utils.extmath import randomized_svd

    similar = cosine_similarity(together, shrink=0.0)
    met = np.diag(together) > 0
    np.fill_diagonal(similar, met.astype(np.float32))
    size = min(VECTOR_SIZE, len(similar))
    left, strength, _ = randomized_svd(
        similar, n_components=size, n_iter=4, random_state=seed
    )
    factors = (left * np.sqrt(strength)).astype(np.float32)
    factors[~met] = 0.0
    length = np.linalg.norm(factors, axis=1, keepdims=True)
    vectors: F32 = np.divide(
        factors, length, out=np.zeros_like(factors), where=length > 0
    )
    return vectors


def popularity(interactions: Interactions) -> F32:
    """Return each item's share of the events; float32 [I]."""
    counts = np.bincount(interactions.items, minlength=len(interactions.item_ids))
    return (counts / max(len(interactions), 1)).astype(np.float32)


def recent_popularity(interactions: Interactions) -> F32:
    """Return each item's share of the newest tenth of the events; float32 [I]."""
    count = max(1, round(len(interactions) * RECENT_SHARE))
    newest = np.zeros(len(interactions), np.bool_)
    newest[np.argsort(interactions.time_us, kind="stable")[-count:]] = True
    return popularity(interactions.only(newest))
