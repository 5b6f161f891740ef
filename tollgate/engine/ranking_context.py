"""
Pack what the ranking step must know of a request besides features and context.

One row of the `ranking_context` tensor has the user's newest events, the candidates and
the exclusions of the request, all by index of the release's catalogue, and the
relevance of candidates that were prepared.
"""

from __future__ import annotations

import numpy as np

from tollgate.schema import MAX_EXCLUDED

NO_ITEM = -1


def ranking_dtype(*, candidates: int, history: int) -> np.dtype[np.void]:
    """
    Describe one row of the `ranking_context` tensor.

    Args:
        candidates: C, candidates of a request.
        history: H, events of a user at most.

    Returns:
        A packed structured dtype; its itemsize is the R of `ranking_context` UINT8
        [N, R]. Item columns hold indices of the catalogue, NO_ITEM after the last.
    """
    return np.dtype(
        [
            ("catalogue", "<u8"),  # hash of the catalogue that the indices belong to
            ("count", "u1"),  # items of the answer; 0 for as many as the policy says
            ("history_known", "u1"),  # 0: the store did not answer, nothing was held
            ("items", "<i4", (candidates,)),
            ("sources", "u1", (candidates,)),  # index in tollgate.schema.SOURCES
            # Time at which candidates and relevance were prepared, µs; 0: they were
            # not, and the relevance is the model's
            ("prepared_us", "<i8"),
            ("relevance", "<f4", (candidates,)),
            ("event_items", "<i4", (history,)),
            ("event_actions", "i1", (history,)),
            ("event_times_us", "<i8", (history,)),
            ("excluded", "<i4", (MAX_EXCLUDED,)),
        ]
    )


def ranking_dtype_of(size: int, *, candidates: int) -> np.dtype[np.void]:
    """
    Return the dtype of ranking contexts of a size.

    Args:
        size: R, bytes of a row.
        candidates: C.

    Raises:
        ValueError: No number of events gives this size.
    """
    without = ranking_dtype(candidates=candidates, history=0).itemsize
    each = ranking_dtype(candidates=candidates, history=1).itemsize - without
    events, rest = divmod(size - without, each)
    if rest or events < 0:
        raise ValueError(f"{size} bytes do not fit {candidates} candidates")
    return ranking_dtype(candidates=candidates, history=events)
