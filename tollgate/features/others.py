"""
Compute the window values that features need beyond the sums that all of them share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.features.demands import Demand
from tollgate.features.distinct import distinct, previous, row_order
from tollgate.features.entries import MISSING, Entries
from tollgate.features.extremes import extremes, latest
from tollgate.features.places import Places, Rows
from tollgate.schema import AMOUNT

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_LARGEST = np.iinfo(np.int64).max


def compute_demands(
    entries: Entries,
    rows: Rows,
    places: Places,
    *,
    columns: Sequence[str],
    demands: Sequence[Demand],
) -> dict[Demand, I64]:
    """
    Compute demands for rows of one kind of entity, as of each row's time and id.

    Args:
        entries: Events of the entities the rows name.
        rows: The rows.
        places: Positions of rows and windows among the entries.
        columns: Names of `entries.columns`.
        demands: The demands; nothing else is computed.

    Returns:
        int64 [R] per demand; MISSING where a window holds no value for it.
    """
    windows = _Windows(entries, rows, places, columns=columns)
    return {demand: windows.compute(demand) for demand in demands}


class _Windows:
    """Compute demands over the windows of some rows; share intermediate results."""

    def __init__(
        self, entries: Entries, rows: Rows, places: Places, *, columns: Sequence[str]
    ) -> None:
        self._entries = entries
        self._rows = rows
        self._places = places
        self._columns = columns
        self._numbers: dict[str, tuple[I64, Bool]] = {}
        self._running: dict[Demand, I64] = {}
        self._previous: dict[str, I64] = {}
        self._newest: dict[tuple[str, int], I64] = {}
        self._order: I64 | slice | None = None
        self._earlier: I64 | None = None

    def compute(self, demand: Demand) -> I64:
        """Compute one demand; int64 [R]."""
        kind = demand.kind
        if kind in ("sum", "known"):
            return self._sum(demand)
        if kind == "distinct":
            return self._distinct(demand)
        if kind in ("min", "max"):
            return self._extreme(demand)
        return self._latest(demand)

    def _number(self, of: str) -> tuple[I64, Bool]:
        """Return the values of a source, and which of them are known."""
        if of not in self._numbers:
            known = self._entries.purchase.astype(np.bool_)
            if of == AMOUNT:
                values = self._entries.cents.astype(np.int64)
            else:
                values = self._entries.columns[self._columns.index(of)]
                known &= values != MISSING
            self._numbers[of] = values, known
        return self._numbers[of]

    def _sum(self, demand: Demand) -> I64:
        key = demand._replace(window=0)
        if key not in self._running:
            values, known = self._number(demand.of)
            running = np.zeros(len(values) + 1, np.int64)
            parts = known if demand.kind == "known" else np.where(known, values, 0)
            parts.cumsum(out=running[1:])
            self._running[key] = running
        running = self._running[key]
        begin = self._places.begin[demand.window]
        total: I64 = running[self._places.end] - running[begin]
        return total

    def _extreme(self, demand: Demand) -> I64:
        values, known = self._number(demand.of)
        found = extremes(
            values,
            known,
            begin=self._places.begin[demand.window],
            end=self._places.end,
            largest=demand.kind == "max",
        )
        return (
            found
            if demand.kind == "max"
            else np.where(found == _LARGEST, MISSING, found)
        )

    def _distinct(self, demand: Demand) -> I64:
        values, known = self._number(demand.of)
        if self._order is None:
            self._order = row_order(self._places.row_key, self._places.own)
        if demand.of not in self._previous:
            starts = self._entries.starts
            entity = np.arange(len(starts) - 1).repeat(starts[1:] - starts[:-1])
            self._previous[demand.of] = previous(values, known, entity=entity)
        order = self._order
        return distinct(
            self._previous[demand.of],
            known,
            begin=self._places.begin[demand.window][order],
            end=self._places.end[order],
            order=order,
        )

    def _latest(self, demand: Demand) -> I64:
        """Read the newest entry before the row's own: its value, or its age in µs."""
        values, known = self._number(demand.of)
        at = latest(
            known, begin=self._places.begin[demand.window], end=self._before_own()
        )
        if not len(values):
            return np.full(len(at), MISSING)
        if demand.kind == "last":
            found = values[at]
        else:
            found = self._rows.time_us - self._entries.time_us[at]
        return np.where(at < 0, MISSING, found)

    def _before_own(self) -> I64:
        """End the windows before the row's own entry, if that is among the entries."""
        if self._earlier is None:
            places, order = self._places, self._entries.order
            own = places.own
            at = np.maximum(own - 1, 0)
            if len(order):
                # It is not there if the value was full or the event too late.
                there = (own > 0) & (places.entry_key[at] == places.row_key)
                there &= order[at] == self._rows.order
                own = own - there
            self._earlier = np.minimum(places.end, own)
        return self._earlier
