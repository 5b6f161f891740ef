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
from tollgate.features.entries import Values, order_of, unpack_values
from tollgate.features.spec import FeatureSpec
from tollgate.features.windows import Rows, window_sums
from tollgate.schema import Applied, Degraded
from tollgate.store.events import (
    Call,
    Labels,
    Packer,
    Purchases,
    label_entries,
    purchase_entries,
)
from tollgate.store.redis import Answer, Mode, RedisStore

I64 = npt.NDArray[np.int64]

_TOO_LATE = 3
# NumPy reads an enum member several times slower than a number of its own.
_COLD_START = np.uint32(Degraded.COLD_START)
_EVENT_TOO_LATE = np.uint32(Degraded.EVENT_TOO_LATE)
_WINDOW_OVERFLOW = np.uint32(Degraded.WINDOW_OVERFLOW)
_STATE_CORRUPT = np.uint32(Degraded.STATE_CORRUPT)
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
        self._reach = _reach_of(spec)

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
        """Read all entities' windows in one go: row n of entity e is e * N + n."""
        values = unpack_values(answer[0])
        entities, count = len(call.code), len(batch)
        reach = _repeated(self._reach, count)
        rows = Rows(
            entity=np.concatenate(
                [
                    code + first
                    for code, first in zip(call.code, call.first_key[:-1], strict=True)
                ]
            ),
            time_us=np.concatenate([batch.event_time_us] * entities),
            order=np.concatenate([order_of(entries)] * entities),
            delay_us=reach.delay_us,
            windows_us=reach.windows_us,
        )
        sums = window_sums(values.entries, rows)
        status = _statuses(call, answer)
        bits = _degraded(values, rows, reach, upto=sums.upto).reshape(entities, count)
        bits |= (status == _TOO_LATE) * _EVENT_TOO_LATE
        degraded = np.bitwise_or.reduce(bits, axis=0)
        features = assemble.assemble(
            self.spec,
            cents=batch.cents,
            time_us=batch.event_time_us,
            sums=[
                sums.part(slice(at * count, (at + 1) * count)) for at in range(entities)
            ],
        )
        corrupt = (degraded & _STATE_CORRUPT) != 0
        if corrupt.any():
            features[corrupt] = assemble.defaults(
                self.spec,
                cents=batch.cents[corrupt],
                time_us=batch.event_time_us[corrupt],
            )
        return Vectors(features=features, degraded=degraded, applied=_worst(status))


class _Reach(msgspec.Struct, frozen=True):
    """How far back entities, or rows of them, look; int64 [R], widths [W, R]."""

    delay_us: I64
    windows_us: I64
    longest_us: I64
    horizon_us: I64


def _reach_of(spec: FeatureSpec) -> _Reach:
    """Gather it of a spec's entities; those with fewer windows get empty ones."""
    entities = spec.entities
    windows_us = np.zeros(
        (max(len(one.windows_us) for one in entities), len(entities)), np.int64
    )
    for column, one in enumerate(entities):
        windows_us[: len(one.windows_us), column] = one.windows_us
    delay_us = np.array([one.delay_us for one in entities], np.int64)
    return _Reach(
        delay_us=delay_us,
        windows_us=windows_us,
        longest_us=delay_us + windows_us.max(axis=0),
        horizon_us=np.array([one.horizon_us for one in entities], np.int64),
    )


def _repeated(reach: _Reach, count: int) -> _Reach:
    return _Reach(
        delay_us=reach.delay_us.repeat(count),
        windows_us=reach.windows_us.repeat(count, axis=1),
        longest_us=reach.longest_us.repeat(count),
        horizon_us=reach.horizon_us.repeat(count),
    )


def _degraded(
    values: Values, rows: Rows, reach: _Reach, *, upto: I64
) -> npt.NDArray[np.uint32]:
    """Tell, by Degraded bits, what is wrong with the windows of each row; [R]."""
    begin_us = rows.time_us - reach.longest_us
    truncated = begin_us < values.watermark_us[rows.entity] - reach.horizon_us
    # A value that was full once is whole again when its windows end before then.
    dropped = values.overflow[rows.entity] > 0
    dropped &= begin_us < values.dropped_us[rows.entity]
    bits: npt.NDArray[np.uint32] = (
        (upto <= 1) * _COLD_START
        | truncated * _EVENT_TOO_LATE
        | dropped * _WINDOW_OVERFLOW
        | values.corrupt[rows.entity] * _STATE_CORRUPT
    )
    return bits


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
