"""The results and counters of the fallback chain, and its interface to the spool."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import OutcomeUnknown, StoreError, StorePartial, StoreTimeout
from tollgate.store.lookups import NO_LOOKUPS, LookupResult
from tollgate.store.store_events import Purchases


class Spool(Protocol):
    """Store purchases that the store did not apply, or maybe not."""

    def append(self, purchases: Purchases) -> bool:
        """Queue them, without waiting; return False when there is no room."""
        ...


class Scored(msgspec.Struct, frozen=True):
    """
    Hold the features of a batch of purchases, and their quality.

    Attributes:
        features: float64 [N, F].
        degraded: Degraded bits; uint32 [N].
        applied: Applied; uint8 [N].
        age_us: Age of the oldest last known value in the row; int64 [N], 0 where the
            store replied.
        lookups: Lists and stored decisions.
    """

    features: npt.NDArray[np.float64]
    degraded: npt.NDArray[np.uint32]
    applied: npt.NDArray[np.uint8]
    age_us: npt.NDArray[np.int64]
    lookups: LookupResult = NO_LOOKUPS


class StoreCounts:
    """
    Count events since the start, for the metrics.

    Attributes:
        call_s: Duration of the batch's call of the store; None without one.
        calls: Calls by outcome: answered, partial, late, unknown, failed; and not_made
            while the circuit breaker is open.
        known: Entity values found in the cache while the store was unavailable.
        unknown: Entity values not found there.
        spooled: Rows that went to the spool because the store did not apply them.
        spool_full: Rows for which the spool had no room.
        earlier: Stored decisions by kind: same, conflict, corrupt.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset all counts."""
        self.call_s: float | None = None
        self.calls: Counter[str] = Counter()
        self.known = 0
        self.unknown = 0
        self.spooled = 0
        self.spool_full = 0
        self.earlier: Counter[str] = Counter()

    def count_last_known(self, known: npt.NDArray[np.bool_]) -> None:
        """Count look-ups of last known values: found or not; [K]."""
        found = int(known.sum())
        self.known += found
        self.unknown += len(known) - found


def outcome_of(error: StoreError) -> str:
    """Return the outcome of a failed call, as named in `Counts.calls`."""
    if isinstance(error, StorePartial):
        return "partial"
    if isinstance(error, StoreTimeout):
        return "late"
    return "unknown" if isinstance(error, OutcomeUnknown) else "failed"
