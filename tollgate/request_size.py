"""Choose how many rows a request holds, so that few of them are of one id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tollgate.schema import MAX_BATCH_ROWS

# Rows of one id in a request. With a hop, the store always knows the newest 4 of an id
# one by one: a request that is sent again finds its own rows, which are duplicates.
MOST_OF_ONE_ID = 4


def request_rows(ids: Sequence[str]) -> int:
    """
    Return how many rows a request may hold, so that few are of one id.

    It is the largest of 32, 16, 8 and 4 with which no request has over 4 of one id.

    Args:
        ids: Id of each row, in the order of sending.
    """
    size = MAX_BATCH_ROWS
    while size > MOST_OF_ONE_ID and _most_of_one(ids, size) > MOST_OF_ONE_ID:
        size //= 2
    return size


def _most_of_one(ids: Sequence[str], size: int) -> int:
    """Return the most rows of one id in a request of this size."""
    requests = (ids[start : start + size] for start in range(0, len(ids), size))
    return max((max(Counter(one).values()) for one in requests), default=0)
