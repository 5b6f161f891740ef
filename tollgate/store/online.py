"""
The online path of the features: apply a batch's events, read its vectors.

The feature step and the replay of a history both use this code, so a proof about one is
a proof about the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tollgate.features.entries import ENTRY
from tollgate.features.spec import FeatureSpec
from tollgate.store.events import (
    NO_CALL,
    Labels,
    Packer,
    Purchases,
    label_entries,
    purchase_entries,
)
from tollgate.store.last_known import LastKnown
from tollgate.store.reading import Packed, Reader, Vectors, statuses, worst
from tollgate.store.redis import NO_ANSWER, Answer, Mode, RedisStore
from tollgate.store.tables import Tables

__all__ = ["OnlineFeatures", "Packed", "Vectors"]

_NO_ENTRIES = np.zeros(0, ENTRY)


class OnlineFeatures:
    """Compute the features of one product over one store."""

    def __init__(self, spec: FeatureSpec, store: RedisStore) -> None:
        self.spec = spec
        # It caches nothing: every value is read when it is needed.
        self._tables = Tables(spec, LastKnown(0, 0.0, clock=time.monotonic))
        self._store = store
        self._packer = Packer(spec)
        self._reader = Reader(spec)
        self.guard = self._reader.guard

    def score(
        self, batches: Sequence[Purchases], *, write: Sequence[bool]
    ) -> list[Vectors]:
        """
        Apply batches of purchases and read their vectors, in one round trip.

        Args:
            batches: Each is applied completely, then read; a dry one sees itself and
                the events written before it, and no other batch sees a dry one.
            write: Per batch, False for a dry run.

        Raises:
            StoreError: The store did not reply; nothing is known of any row.
        """
        packed = [self.pack(batch) for batch in batches]
        if not self.spec.entities:
            return [self.read(one, NO_ANSWER) for one in packed]
        query = self._tables.plan(batches)
        modes = [Mode.WRITE if one else Mode.DRY for one in write]
        calls = [one.call for one in packed]
        answers, replies = self._store.flush(
            list(zip(calls, modes, strict=True)), extra_commands=query.commands()
        )
        self._tables.take_replies(query, replies)
        lookups = self._tables.read(query)
        read = []
        for one, answer, tables in zip(packed, answers, lookups, strict=True):
            vectors = self.read(replace(one, tables=tables.columns), answer)
            vectors.degraded[:] |= tables.degraded
            read.append(vectors)
        return read

    def pack(self, purchases: Purchases) -> Packed:
        """
        Pack a batch for the store; for a product without entities the call is empty.
        """
        if not self.spec.entities:
            return Packed(purchases=purchases, entries=_NO_ENTRIES, call=NO_CALL)
        entries = purchase_entries(purchases)
        call = self._packer.pack(
            entries, purchases.entity_id, columns=self._packer.columns(purchases)
        )
        return Packed(purchases=purchases, entries=entries, call=call)

    def load(self, purchases: Purchases) -> npt.NDArray[np.uint8]:
        """
        Apply purchases of a history without reading anything; no caller waits for them.

        Returns:
            Applied, the worst of the entities; uint8 [N].

        Raises:
            StoreError: The store did not reply.
        """
        if not self.spec.entities:
            return np.zeros(len(purchases), np.uint8)
        call = self.pack(purchases).call
        (answer,) = self._store.apply([(call, Mode.WRITE_ONLY)])
        return worst(statuses(call, answer))

    def label(self, labels: Labels) -> npt.NDArray[np.uint8]:
        """
        Apply label events.

        Returns:
            Applied, the worst of the entities; uint8 [N].

        Raises:
            StoreError: The store did not reply.
        """
        if not self.spec.entities:
            return np.zeros(len(labels), np.uint8)
        call = self._packer.pack(label_entries(labels), labels.entity_id)
        (answer,) = self._store.apply([(call, Mode.WRITE_ONLY)])
        return worst(statuses(call, answer))

    def read(self, packed: Packed, answer: Answer) -> Vectors:
        """Read the vectors of a packed batch from the store's reply."""
        return self._reader.read(packed, answer)
