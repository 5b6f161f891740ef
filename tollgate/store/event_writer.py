"""Apply events of feeds and histories, for which no caller waits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.store.redis.redis_store import Mode, RedisStore
from tollgate.store.store_events import (
    Call,
    Labels,
    Packer,
    Purchases,
    label_entries,
    purchase_entries,
)

# Redis runs one call at a time, and a decision may wait behind it: 64 events of two
# entities take less than a millisecond.
EVENTS_PER_CALL = 64

_APPLIED, _DUPLICATE, _TOO_LATE, _INCOMPATIBLE = 1, 2, 3, 4  # status bytes of apply.lua

TOO_LATE = (
    "is older than the longest window, the delay and the lateness together, "
    "or than events of its id in tiles, which may count it already"
)
INCOMPATIBLE = "the entity's value in the store is damaged or of another version"

Bool = npt.NDArray[np.bool_]


class WriteOutcome(msgspec.Struct, frozen=True):
    """
    Hold the outcome of N events, over all of their entities; bool [N] each.

    Attributes:
        applied: It changed at least one entity, and no other refused it.
        duplicate: Every entity had it already.
        too_late: It is older than the events that some entity still retains one by one.
        foreign: Some entity's value is damaged or of another version.
    """

    applied: Bool
    duplicate: Bool
    too_late: Bool
    foreign: Bool

    def refused(self) -> list[tuple[int, str]]:
        """List the events that can never be applied, with the reason."""
        return [
            (row, reason)
            for rows, reason in (
                (self.too_late, TOO_LATE),
                (self.foreign, INCOMPATIBLE),
            )
            for row in np.flatnonzero(rows).tolist()
        ]


class EventWriter:
    """
    Write events of one product into one store.

    Args:
        spec: The product's features.
        store: The store to write to.
        events_per_call: Most events that one call of the store carries.
        history: True for a whole history in the order of (time, id): values with tiles
            then take purchases that are older than all they had when it began.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        store: RedisStore,
        *,
        events_per_call: int = EVENTS_PER_CALL,
        history: bool = False,
    ) -> None:
        self._mode = Mode.LOAD if history else Mode.WRITE_ONLY
        self.spec = spec
        self._store = store
        self._packer = Packer(spec)
        self._events_per_call = events_per_call

    def purchases(self, purchases: Purchases) -> WriteOutcome:
        """
        Apply purchase events.

        Raises:
            StoreError: The store did not reply; some events may be applied, and it is
                safe to apply all of them again.
        """
        columns = self._packer.columns(purchases)
        return self._write(purchase_entries(purchases), purchases, columns=columns)

    def labels(self, labels: Labels) -> WriteOutcome:
        """
        Apply label events.

        Raises:
            StoreError: As with purchases.
        """
        return self._write(label_entries(labels), labels, columns=None)

    def _write(
        self,
        entries: npt.NDArray[np.void],
        events: Purchases | Labels,
        *,
        columns: Sequence[npt.NDArray[np.int64]] | None,
    ) -> WriteOutcome:
        order = np.arange(len(entries))
        if any(entity.tiles for entity in self.spec.entities):
            # Tiles take purchases in the order of (time, id), and labels in that of
            # (label time, id hash); a purchase has no label time.
            by = ["order_lo", "order_hi", "time_us"]
            if np.any(entries["label_time_us"]):
                by = ["label_time_us"]
            order = np.lexsort([entries[name] for name in ("id_hash", *by)])
        status = np.empty((len(self.spec.entities), len(entries)), np.uint8)
        for start in range(0, len(entries), self._events_per_call):
            part = order[start : start + self._events_per_call]
            rows = part.tolist()
            call = self._packer.pack(
                entries[part],
                [[column[row] for row in rows] for column in events.entity_id],
                columns=columns and [column[part] for column in columns],
            )
            ((_, answer),) = self._store.apply([(call, self._mode)])
            status[:, part] = _in_order(call, answer)
        too_late = (status == _TOO_LATE).any(axis=0)
        foreign = (status == _INCOMPATIBLE).any(axis=0)
        return WriteOutcome(
            applied=(status == _APPLIED).any(axis=0) & ~too_late & ~foreign,
            duplicate=(status == _DUPLICATE).all(axis=0),
            too_late=too_late,
            foreign=foreign,
        )


def _in_order(call: Call, answer: bytes) -> npt.NDArray[np.uint8]:
    """Return the status bytes in the order of the events; [entities, N]."""
    grouped = np.frombuffer(answer, np.uint8).reshape(len(call.order), -1)
    status = np.empty_like(grouped)
    for position, order in enumerate(call.order):
        status[position, order] = grouped[position]
    return status
