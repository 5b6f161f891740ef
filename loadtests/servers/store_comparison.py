"""Check that features are right after a fault: compare two stores, value by value."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.load.store_contents import values_of
from tollgate.repair.spool_segments import segments
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases

MOST_DRAIN_S = 120.0
_LOOK_EVERY_S = 0.02
_SETTLE_S = 0.5  # a step writes its rows to disk within a tenth of that
_DEADLINE_S = 30.0


class StoreComparison(msgspec.Struct, frozen=True):
    """
    Comparison of the store after a fault, once the spool is empty.

    Attributes:
        drained: True if the spool is empty.
        values: Entities in either store.
        different: Entities with other bytes in the two, or in one store only.
    """

    drained: bool
    values: int
    different: int

    @property
    def words(self) -> str:
        """Describe the comparison for the table."""
        if not self.drained:
            return "no: the spool does not empty"
        if self.different or not self.values:
            return f"no: {self.different:,} of {self.values:,} differ"
        return f"yes: {self.values:,} values"


class ReferenceStore:
    """
    A store that has no faults and gets the same purchases.

    Args:
        spec: Feature spec of the product.
        url: URL of the store; it holds the same history.
    """

    def __init__(self, spec: FeatureSpec, url: str) -> None:
        self._spec = spec
        self._url = url
        self._writer = EventWriter(spec, RedisStore(url, deadline_s=_DEADLINE_S))

    def compare(
        self,
        columns: Mapping[str, npt.NDArray[np.generic]],
        *,
        store_url: str,
        spool: Path,
    ) -> StoreComparison:
        """
        Wait until the product's spool is empty, then compare all values.

        Args:
            columns: The purchases that were sent.
            store_url: URL of the store that had the fault.
            spool: The product's spool, which the product drains.
        """
        self._writer.purchases(_purchases(self._spec, columns))
        drained = _stays_empty(spool)
        wanted, found = values_of(self._url), values_of(store_url)
        names = wanted.keys() | found.keys()
        different = sum(wanted.get(name) != found.get(name) for name in names)
        return StoreComparison(drained, values=len(names), different=different)


def _stays_empty(spool: Path) -> bool:
    """Wait until the spool is empty, and for rows that a step has yet to put there."""
    until_s = time.monotonic() + MOST_DRAIN_S
    empty_since_s = time.monotonic()
    while time.monotonic() < until_s:
        if segments(spool):
            empty_since_s = time.monotonic()
        elif time.monotonic() > empty_since_s + _SETTLE_S:
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


def _purchases(
    spec: FeatureSpec, columns: Mapping[str, npt.NDArray[np.generic]]
) -> Purchases:
    return Purchases(
        transaction_id=columns[TRANSACTION_ID].tolist(),
        entity_id=[columns[one.key].tolist() for one in spec.entities],
        event_time_us=columns[EVENT_TIME].astype(np.int64),
        cents=np.rint(columns[AMOUNT].astype(np.float64) * 100).astype(np.int64),
    )
