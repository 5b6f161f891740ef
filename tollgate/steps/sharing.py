"""
Share one store look-up among identical dry-run requests of the same second.

A dry run changes nothing, so two identical dry runs within a second may get the same
vector. The cached vector is dropped as soon as this process writes for one of its
entities.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.schema import STORE_LOST
from tollgate.steps.request_batch import Group
from tollgate.store.fallback.scored_rows import Scored

MOST_ROWS = 4_096  # 2 MB of vectors and look-ups
_UNSHARED = np.uint32(STORE_LOST)

Entity = tuple[int, bytes]  # its index in the spec, and an id
LookUp = Callable[[Sequence[Group]], list[Scored]]


class _SharedResult(msgspec.Struct, frozen=True, eq=False):
    scored: Scored
    until_s: float
    entities: frozenset[Entity]


class DryShare:
    """
    Cache the vectors of the last second's dry requests.

    Args:
        life_s: Time for which one is shared; 0 shares nothing.
        most_rows: Rows to cache; the oldest request leaves first.
        clock: Monotonic, seconds.

    Attributes:
        rows: Rows that were answered without the store, since the start.
    """

    def __init__(
        self,
        life_s: float,
        *,
        most_rows: int = MOST_ROWS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows = 0
        self._life_s = life_s
        self._most_rows = most_rows
        self._clock = clock
        self._rows_held = 0
        self._results: OrderedDict[bytes, _SharedResult] = OrderedDict()
        self._users: dict[Entity, set[bytes]] = {}

    def score(
        self,
        groups: Sequence[Group],
        *,
        fingerprints: npt.NDArray[np.uint64],
        look_up: LookUp,
    ) -> list[Scored]:
        """
        Score groups of a batch; score identical dry groups only once per `life_s`.

        Args:
            groups: Those that write come first.
            fingerprints: Of all rows of the batch; uint64 [N].
            look_up: Scores groups by the store; not called when none is left to score.
        """
        if not self._life_s or not (self._results or any(one.dry for one in groups)):
            return look_up(groups)
        now_s = self._clock()
        self._expire(now_s)
        # Rows of a dry request see each other, so only whole requests are identical.
        keys = [fingerprints[one.rows].tobytes() if one.dry else b"" for one in groups]
        for one in groups:
            if not one.dry:
                self._drop_changed(_entities(one))
        found = {key: self._results[key].scored for key in keys if key in self._results}
        looked_up = [
            at
            for at, key in enumerate(keys)
            if not key or (key not in found and keys.index(key) == at)
        ]
        fresh = look_up([groups[at] for at in looked_up]) if looked_up else []
        results: dict[int, Scored] = dict(zip(looked_up, fresh, strict=True))
        for at in looked_up:
            if keys[at]:
                found[keys[at]] = results[at]
                self._store(keys[at], groups[at], results[at], now_s=now_s)
        self.rows += sum(
            len(one.rows) for at, one in enumerate(groups) if at not in results
        )
        return [
            results[at] if at in results else found[key] for at, key in enumerate(keys)
        ]

    def _store(self, key: bytes, group: Group, scored: Scored, *, now_s: float) -> None:
        rows = len(group.rows)
        if rows > self._most_rows or (scored.degraded & _UNSHARED).any():
            return
        entities = _entities(group)
        self._results[key] = _SharedResult(scored, now_s + self._life_s, entities)
        for one in entities:
            self._users.setdefault(one, set()).add(key)
        self._rows_held += rows
        while self._rows_held > self._most_rows:
            self._drop(next(iter(self._results)))

    def _expire(self, now_s: float) -> None:
        """Drop expired requests; they are in order of time."""
        while self._results:
            key, oldest = next(iter(self._results.items()))
            if oldest.until_s > now_s:
                return
            self._drop(key)

    def _drop_changed(self, entities: frozenset[Entity]) -> None:
        """Drop the results that were read from entities that are about to change."""
        for one in entities & self._users.keys():
            for key in tuple(self._users.get(one, ())):
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        dropped = self._results.pop(key)
        self._rows_held -= len(dropped.scored.degraded)
        for one in dropped.entities:
            users = self._users[one]
            users.discard(key)
            if not users:
                del self._users[one]


def _entities(group: Group) -> frozenset[Entity]:
    """
    Return the entities whose values a group's rows read or change.

    Rows without entities depend only on the stored decisions of their own ids.
    """
    purchases = group.purchases
    return frozenset(
        (place, one)
        for place, column in enumerate(
            purchases.entity_id or [purchases.transaction_id]
        )
        for one in column
    )
