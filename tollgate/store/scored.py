"""What the ladder gives, what it counts, and where it leaves what was not applied."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import OutcomeUnknown, StoreError, StorePartial, StoreTimeout
from tollgate.store.events import Purchases
from tollgate.store.lookups import NOTHING, Looked


class Spool(Protocol):
    """Where purchases wait that the store did not apply, or maybe not."""

    def append(self, purchases: Purchases) -> bool:
        """Keep them, without waiting; False when there is no room."""
        ...


class Scored(msgspec.Struct, frozen=True):
    """
    What a batch of purchases is scored on.

    Attributes:
        features: float64 [N, F].
        degraded: Degraded bits; uint32 [N].
        applied: Applied; uint8 [N].
        age_us: Age of the oldest last known value in the row; int64 [N], 0 where
            the store answered.
        looked: Lists and earlier decisions.
    """

    features: npt.NDArray[np.float64]
    degraded: npt.NDArray[np.uint32]
    applied: npt.NDArray[np.uint8]
    age_us: npt.NDArray[np.int64]
    looked: Looked = NOTHING


class Counts:
    """
    What happened since the start; read by the metrics.

    Attributes:
        call_s: How long the batch's call of the store took; None without one.
        calls: Calls by outcome: answered, partial, late, unknown, failed; and not_made
            while the breaker is open.
        known: Entity values found among the last known ones while the store was away.
        unknown: And those not found.
        spooled: Rows kept for later because the store did not apply them.
        spool_full: And those that found no room.
        earlier: Earlier decisions found, by what they are: same, conflict, corrupt.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.call_s: float | None = None
        self.calls: Counter[str] = Counter()
        self.known = 0
        self.unknown = 0
        self.spooled = 0
        self.spool_full = 0
        self.earlier: Counter[str] = Counter()

    def looked_up(self, known: npt.NDArray[np.bool_]) -> None:
        """Count look-ups of last known values: found or not; [K]."""
        found = int(known.sum())
        self.known += found
        self.unknown += len(known) - found


def outcome_of(error: StoreError) -> str:
    """Name a failed call as the counts do."""
    if isinstance(error, StorePartial):
        return "partial"
    if isinstance(error, StoreTimeout):
        return "late"
    return "unknown" if isinstance(error, OutcomeUnknown) else "failed"
