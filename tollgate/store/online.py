"""
The online path of the features: apply a batch's events, read its vectors.

The feature step and the replay of a history both go through here, so what one
proves of the other is proved of the same code.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features import assemble
from tollgate.features.spec import Entity, FeatureSpec
from tollgate.features.windows import Sums, unpack_values, window_sums
from tollgate.schema import Applied, Degraded
from tollgate.store.events import (
    Call,
    Labels,
    Packer,
    Purchases,
    label_entries,
    purchase_entries,
    rows_of,
)
from tollgate.store.redis import Answer, Mode, RedisStore

_TOO_LATE = 3
_FOREIGN = 4
# Status of the Lua function -> what is known of the event.
_APPLIED = np.array(
    [Applied.NO, Applied.YES, Applied.DUPLICATE, Applied.NO, Applied.NO], np.uint8
)


class Vectors(msgspec.Struct, frozen=True):
    """
    What a batch of purchases read.

    Attributes:
        features: float64 [N, F].
        degraded: Degraded bits; uint32 [N].
        applied: Applied; uint8 [N], the worst of the entities.
    """

    features: npt.NDArray[np.float64]
    degraded: npt.NDArray[np.uint32]
    applied: npt.NDArray[np.uint8]


class OnlineFeatures:
    """Features of one product over one store."""

    def __init__(self, spec: FeatureSpec, store: RedisStore) -> None:
        self.spec = spec
        self._store = store
        self._packer = Packer(spec)

    def score(
        self, batches: Sequence[Purchases], *, write: Sequence[bool]
    ) -> list[Vectors]:
        """
        Apply batches of purchases and read their vectors, in one round trip.

        Args:
            batches: Each is applied whole, then read; a dry one sees itself and
                what was written before it, and no one sees a dry one.
            write: Per batch, False for a dry run.

        Raises:
            StoreError: The store has no answer; nothing is known of any row.
        """
        packed = [purchase_entries(batch) for batch in batches]
        calls = [
            self._packer.pack(entries, batch.entity_id)
            for entries, batch in zip(packed, batches, strict=True)
        ]
        modes = [Mode.WRITE if one else Mode.DRY for one in write]
        answers = self._store.apply(list(zip(calls, modes, strict=True)))
        return [
            self._vectors(entries, batch, call, answer)
            for entries, batch, call, answer in zip(
                packed, batches, calls, answers, strict=True
            )
        ]

    def load(self, purchases: Purchases) -> npt.NDArray[np.uint8]:
        """
        Apply purchases without reading anything: for history, which no one waits for.

        Returns:
            Applied, the worst of the entities; uint8 [N].

        Raises:
            StoreError: The store has no answer.
        """
        call = self._packer.pack(purchase_entries(purchases), purchases.entity_id)
        (answer,) = self._store.apply([(call, Mode.WRITE_ONLY)])
        return _worst(_statuses(call, answer))

    def label(self, labels: Labels) -> npt.NDArray[np.uint8]:
        """
        Apply label events.

        Returns:
            Applied, the worst of the entities; uint8 [N].

        Raises:
            StoreError: The store has no answer.
        """
        call = self._packer.pack(label_entries(labels), labels.entity_id)
        (answer,) = self._store.apply([(call, Mode.WRITE_ONLY)])
        return _worst(_statuses(call, answer))

    def _vectors(
        self,
        entries: npt.NDArray[np.void],
        batch: Purchases,
        call: Call,
        answer: Answer,
    ) -> Vectors:
        status = _statuses(call, answer)
        degraded = np.zeros(len(batch), np.uint32)
        sums: list[Sums] = []
        for position, entity in enumerate(self.spec.entities):
            first, last = call.first_key[position], call.first_key[position + 1]
            part, bits = _read(
                entity, entries, call.code[position], answer[0][first:last]
            )
            sums.append(part)
            degraded |= bits
        degraded[(status == _TOO_LATE).any(axis=0)] |= Degraded.EVENT_TOO_LATE
        features = assemble.assemble(
            self.spec, cents=batch.cents, time_us=batch.event_time_us, sums=sums
        )
        corrupt = (degraded & Degraded.STATE_CORRUPT) != 0
        if corrupt.any():
            fallback = assemble.defaults(
                self.spec, cents=batch.cents, time_us=batch.event_time_us
            )
            features[corrupt] = fallback[corrupt]
        return Vectors(
            features=features,
            degraded=degraded,
            applied=_worst(status),
        )


def _read(
    entity: Entity,
    entries: npt.NDArray[np.void],
    code: npt.NDArray[np.int64],
    packed: Sequence[bytes],
) -> tuple[Sums, npt.NDArray[np.uint32]]:
    """Read one entity's windows for each row, and what is wrong with them."""
    values = unpack_values(packed)
    rows = rows_of(entries, code)
    sums = window_sums(values.entries, rows, entity=entity)
    reach_us = entity.delay_us + entity.windows_us[-1]
    truncated = rows.time_us - reach_us < values.watermark_us[code] - entity.horizon_us
    bits = np.where(sums.upto <= 1, int(Degraded.COLD_START), 0)
    bits |= np.where(truncated, int(Degraded.EVENT_TOO_LATE), 0)
    # A value that was full once is whole again when its windows end before then.
    dropped = values.overflow[code] > 0
    dropped &= rows.time_us - reach_us < values.dropped_us[code]
    bits |= np.where(dropped, int(Degraded.WINDOW_OVERFLOW), 0)
    bits |= np.where(values.corrupt[code], int(Degraded.STATE_CORRUPT), 0)
    return sums, bits.astype(np.uint32)


def _worst(status: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    applied: npt.NDArray[np.uint8] = _APPLIED[status].min(axis=0)
    return applied


def _statuses(call: Call, answer: Answer) -> npt.NDArray[np.uint8]:
    """Put the status bytes back into the order of the batch; [entities, N]."""
    grouped = np.frombuffer(answer[1], np.uint8).reshape(len(call.order), -1)
    status = np.empty_like(grouped)
    for position, order in enumerate(call.order):
        status[position, order] = grouped[position]
    return status
