"""Apply events of feeds and histories, for which no caller waits."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import ENTRY, MISSING
from tollgate.store.dual_writes import Events, TargetStates
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
            then take purchases that are older than all they had when it began. It goes
            to the state of `spec` alone; other events go to all states that the store
            lists (dual_writes.py).
    """

    def __init__(
        self,
        spec: FeatureSpec,
        store: RedisStore,
        *,
        events_per_call: int = EVENTS_PER_CALL,
        history: bool = False,
    ) -> None:
        self.spec = spec
        self._store = store
        self._own = _StateWriter(
            spec,
            store,
            mode=Mode.LOAD if history else Mode.WRITE_ONLY,
            events_per_call=events_per_call,
        )
        self._targets = None if history else TargetStates(spec)
        self._writers: dict[int, _StateWriter] = {}

    def purchases(self, purchases: Purchases) -> WriteOutcome:
        """
        Apply purchase events; return the outcome in the state of the writer's features.

        Raises:
            StoreError: The store did not reply; some events may be applied, and it is
                safe to apply all of them again.
        """
        return self._write(purchases)

    def labelled_purchases(self, purchases: Purchases, labels: Labels) -> WriteOutcome:
        """
        Apply purchases of a history, each in one call with its label.

        The label of a purchase that a value with tiles did not have is never too late.

        Args:
            purchases: Purchases; with the labels as many as one call carries.
            labels: Labels of some of them.

        Returns:
            The outcome of the purchases, then of the labels.

        Raises:
            StoreError: As with purchases.
        """
        return self._own.write(purchases, labels)

    def labels(self, labels: Labels) -> WriteOutcome:
        """
        Apply label events; return the outcome in the state of the writer's features.

        Raises:
            StoreError: As with purchases.
        """
        return self._write(labels)

    def _write(self, events: Events) -> WriteOutcome:
        outcome = self._own.write(events)
        if self._targets is not None and len(events):
            command = self._targets.command
            _, (reply,) = self._store.flush([], extra_commands=[command])
            self._targets.update(reply)
            for target in self._targets.targets:
                self._writer(target.spec).write(target.events(events))
        return outcome

    def _writer(self, spec: FeatureSpec) -> _StateWriter:
        if spec.state_hash not in self._writers:
            self._writers[spec.state_hash] = _StateWriter(
                spec,
                self._store,
                mode=Mode.WRITE_ONLY,
                events_per_call=self._own.events_per_call,
            )
        return self._writers[spec.state_hash]


class _StateWriter:
    """Write events into one state."""

    def __init__(
        self,
        spec: FeatureSpec,
        store: RedisStore,
        *,
        mode: Mode,
        events_per_call: int,
    ) -> None:
        self.events_per_call = events_per_call
        self._mode = mode
        self._store = store
        self._packer = Packer(spec)
        self._entities = len(spec.entities)
        self._is_tiled = any(entity.tiles for entity in spec.entities)

    def write(
        self, events: Purchases | Labels, labels: Labels | None = None
    ) -> WriteOutcome:
        """
        Apply events, and after them labels of some of them.

        Raises:
            StoreError: The store did not reply.
        """
        columns = None
        if isinstance(events, Purchases):
            entries = purchase_entries(events)
            columns = self._packer.columns(events)
        else:
            entries = label_entries(events)
        order = np.arange(len(entries))
        if self._is_tiled:
            # Tiles take purchases in the order of (time, id), and labels in that of
            # (label time, id hash); a purchase has no label time.
            by = ["order_lo", "order_hi", "time_us"]
            if np.any(entries["label_time_us"]):
                by = ["label_time_us"]
            order = np.lexsort([entries[name] for name in ("id_hash", *by)])
        entity_id = events.entity_id
        if labels is not None and len(labels):
            own = label_entries(labels)
            order = np.append(order, len(entries) + np.arange(len(own)))
            entries = np.frombuffer(entries.tobytes() + own.tobytes(), ENTRY)
            entity_id = [
                [*ids, *more]
                for ids, more in zip(entity_id, labels.entity_id, strict=True)
            ]
            columns = columns and [
                np.append(one, np.full((len(own), one.shape[1]), MISSING), axis=0)
                for one in columns
            ]
        status = np.empty((self._entities, len(entries)), np.uint8)
        for start in range(0, len(entries), self.events_per_call):
            part = order[start : start + self.events_per_call]
            rows = part.tolist()
            call = self._packer.pack(
                entries[part],
                [[column[row] for row in rows] for column in entity_id],
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
