"""Choose how many rows a request holds, so that few of them are of one id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tollgate.schema import MAX_BATCH_ROWS

MOST_OF_ONE_ID = 16  # rows in a request, if a request has many


def request_rows(ids: Sequence[str]) -> int:
    """
    Return how many rows a request may hold, so that few are of one id.

    A server applies all rows of a request before it reads the first. A reading with 24
    newer ones of its machine is later than the lateness of such products.

    Args:
        ids: Id of each row, in the order of sending.
    """
    for start in range(0, len(ids), MAX_BATCH_ROWS):
        counts = Counter(ids[start : start + MAX_BATCH_ROWS])
        if max(counts.values()) > MOST_OF_ONE_ID:
            return MOST_OF_ONE_ID
    return MAX_BATCH_ROWS
