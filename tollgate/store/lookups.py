"""
Look up lists and stored decisions for each row, in the flush that reads its windows.

One command reads all ids of a batch, and one command reads each list. They travel in
the flush that the windows need anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import LISTS_PARAMETER, TRANSACTION_ID, Degraded
from tollgate.store.id_lists import LookupList
from tollgate.store.redis.connection import Command
from tollgate.store.store_events import Purchases
from tollgate.store.stored_decisions import stored_decision_key

MOST_LISTS = 32  # bits of `list_hits`
_UNREAD = np.uint32(Degraded.LOOKUPS_UNREAD)


class LookupResult(msgspec.Struct, frozen=True, eq=False):
    """
    Hold the results of the look-ups for N rows.

    Attributes:
        earlier: Per row its stored decision, as packed; empty without one.
        list_hits: Bit i: the i-th list contains an id of the row; uint32 [N].
        degraded: LOOKUPS_UNREAD where any of it could not be read; uint32 [N].
    """

    earlier: list[bytes]
    list_hits: npt.NDArray[np.uint32]
    degraded: npt.NDArray[np.uint32]


NO_LOOKUPS = LookupResult([], np.zeros(0, np.uint32), np.zeros(0, np.uint32))  # no rows


class Lookups:
    """
    Build the look-up commands of one product, and read their replies.

    Args:
        spec: Names the ids of a row.
        lists: In the order of their bits.

    Raises:
        InputError: A list is of ids that rows do not have, or there are too many.
    """

    def __init__(self, spec: FeatureSpec, lists: Sequence[LookupList] = ()) -> None:
        columns = [TRANSACTION_ID, *(entity.key for entity in spec.entities)]
        if len(lists) > MOST_LISTS:
            problem = f"{len(lists)} of them, {MOST_LISTS} are allowed"
            raise InputError(LISTS_PARAMETER, problem)
        for one in lists:
            if one.of not in columns:
                problem = f"{one.of!r} is none of {', '.join(columns)}"
                raise InputError(LISTS_PARAMETER, problem, where=one.name)
        self._prefix = stored_decision_key(spec.product, b"")
        self._lists = [(one.key, columns.index(one.of)) for one in lists]

    def commands(self, batches: Sequence[Purchases]) -> list[Command]:
        """Return the look-up commands for batches of purchases, all for one flush."""
        prefix = self._prefix
        keys = [prefix + one for batch in batches for one in batch.transaction_id]
        return [
            (b"MGET", *keys),
            *((b"SMISMEMBER", key, *_column(batches, at)) for key, at in self._lists),
        ]

    def read(
        self, batches: Sequence[Purchases], replies: Sequence[Any]
    ) -> list[LookupResult]:
        """
        Read the replies, batch by batch.

        Args:
            batches: The same as for `commands`.
            replies: To these commands, exceptions among them; empty when there was no
                call, or it failed.
        """
        rows = sum(map(len, batches))
        degraded, hits = np.zeros((2, rows), np.uint32)
        values = [b""] * rows
        if not replies:
            degraded[:] = _UNREAD
        for place, reply in enumerate(replies):
            if not isinstance(reply, list):  # refused, or its node is unavailable
                degraded[:] = _UNREAD
            elif place:
                hits |= np.array(reply, np.uint32) << np.uint32(place - 1)
            elif reply.count(None) < rows:  # mostly there is no stored decision at all
                values = [one if isinstance(one, bytes) else b"" for one in reply]
                lost = [isinstance(one, Exception) for one in reply]
                degraded |= np.array(lost) * _UNREAD
        results, start = [], 0
        for batch in batches:
            part = slice(start, start + len(batch))
            results.append(LookupResult(values[part], hits[part], degraded[part]))
            start = part.stop
        return results


def _column(batches: Sequence[Purchases], at: int) -> list[bytes]:
    """Return the ids of all batches: 0 is the transaction's, then the entities'."""
    return [
        one
        for batch in batches
        for one in (batch.entity_id[at - 1] if at else batch.transaction_id)
    ]
