"""
Compute the window values that features need beyond the sums that all of them share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tollgate.features.spec.spec_definition import Feature, FeatureSpec
from tollgate.features.windows.entity_entries import MISSING, Entries
from tollgate.features.windows.positions import Places, Rows
from tollgate.schema import AMOUNT

# List what features need from an entity's windows beyond counts, amounts and frauds.

# `known` counts the purchases that have the number at all.
Kind = Literal["sum", "known", "min", "max", "last", "distinct", "time_since_last"]


class Demand(NamedTuple):
    """One number of one window: its kind, its source, and the index of the window."""

    kind: Kind
    of: str
    window: int


def demands_of(feature: Feature) -> tuple[Demand, ...]:
    """Return the demands of a feature; empty if the common sums are enough."""
    kind, of = feature.aggregate, feature.of or AMOUNT
    if kind in ("sum", "mean") and feature.of is not None:
        total = Demand("sum", of, feature.window)
        if kind == "sum":
            return (total,)
        return (total, Demand("known", of, feature.window))
    if kind in ("min", "max", "last", "distinct", "time_since_last"):
        return (Demand(kind, of, feature.window),)
    return ()


def entity_demands(spec: FeatureSpec) -> tuple[tuple[Demand, ...], ...]:
    """Collect the demands per entity, each once, in a fixed order."""
    found: list[set[Demand]] = [set() for _ in spec.entities]
    for feature in spec.features:
        for demand in demands_of(feature):
            found[feature.entity].add(demand)
    return tuple(tuple(sorted(demands)) for demands in found)


# Count the distinct values of windows, exactly.

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def previous(values: I64, known: Bool, *, entity: I64) -> I64:
    """
    Find the previous entry with the same value among the entries of an entity.

    Args:
        values: int64 [E].
        known: True for the entries that count; bool [E].
        entity: Entity of each entry, ascending; int64 [E].

    Returns:
        Position of the previous entry with the same value; -1 if there is none, or the
        value does not count; int64 [E].
    """
    found = np.full(len(values), -1, np.int64)
    (at,) = known.nonzero()
    # Stable: among equal values positions ascend, and with them the entities.
    order = at[np.argsort(values[at], kind="stable")]
    later, earlier = order[1:], order[:-1]
    same = (values[later] == values[earlier]) & (entity[later] == entity[earlier])
    found[later[same]] = earlier[same]
    return found


def row_order(row_key: I64, own: I64) -> I64 | slice:
    """
    Sort rows so that the ends of their windows ascend.

    Args:
        row_key: Entity and time of each row; int64 [R].
        own: One past the last entry up to each row's own; int64 [R].

    Returns:
        Their positions in that order; a slice of all rows if they are already sorted.
    """
    ascending = (row_key[1:] >= row_key[:-1]) & (own[1:] >= own[:-1])
    return slice(None) if ascending.all() else np.lexsort((own, row_key))


def distinct(
    before: I64, known: Bool, *, begin: I64, end: I64, order: I64 | slice
) -> I64:
    """
    Count the distinct values of each window.

    A value counts at its first entry in the window: at an entry i whose value occurred
    before at p, for windows with p < begin <= i < end. In the order of (entity, time,
    id) begins and ends ascend, so these windows follow each other: from the first with
    end > i and begin > p to the last with begin <= i. Each entry adds one where that
    run begins and subtracts it where the run ends.

    Args:
        before: Position p of the previous entry with the same value, or -1; int64 [E].
        known: True for the entries that count; bool [E].
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].
        order: The order of rows in which both ascend.

    Returns:
        int64 [R].
    """
    rows = len(begin)
    # ended[i]: windows with end <= i; started[i]: with begin < i. As rows ascend, these
    # are also the first window with end > i, and with begin >= i.
    ended = np.bincount(end, minlength=len(known) + 1).cumsum()
    started = np.zeros(len(known) + 2, np.int64)
    np.bincount(begin, minlength=len(known) + 1).cumsum(out=started[1:])
    (at,) = known.nonzero()
    first = np.maximum(ended[at], started[before[at] + 1])
    stop = np.maximum(first, started[at + 1])
    steps = np.bincount(first, minlength=rows + 1)
    steps -= np.bincount(stop, minlength=rows + 1)
    count = np.empty(rows, np.int64)
    count[order] = steps.cumsum()[:-1]
    return count


# Find the smallest, largest and newest values of windows.


_NOTHING = {True: np.iinfo(np.int64).min, False: np.iinfo(np.int64).max}


def extremes(values: I64, known: Bool, *, begin: I64, end: I64, largest: bool) -> I64:
    """
    Find the smallest or the largest known value of each window.

    Every window is covered by two runs of a power of two of entries. Runs are doubled
    from one length to the next, and each window is computed at its own length: with E
    entries, R windows and the longest of L entries that is E · log L + R steps.

    Args:
        values: int64 [E].
        known: True for the entries that count; bool [E].
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].
        largest: True to find the largest value, False the smallest.

    Returns:
        int64 [R]; for an empty window the smallest int64 if `largest`, else the largest
        int64.
    """
    fold = np.maximum if largest else np.minimum
    runs = np.where(known, values, _NOTHING[largest])
    found = np.full(begin.shape, _NOTHING[largest])
    length = end - begin
    # frexp(n) is (f, e) with n = f * 2^e and 0.5 <= f < 1; exact, and 0 for nothing.
    level = np.frexp(length.astype(np.float64))[1] - 1
    for at in range(int(level.max(initial=-1)) + 1):
        step = 1 << at
        if at:
            half = step >> 1
            runs = fold(runs[:-half], runs[half:])
        (rows,) = (level == at).nonzero()
        found[rows] = fold(runs[begin[rows]], runs[end[rows] - step])
    return found


def latest(known: Bool, *, begin: I64, end: I64) -> I64:
    """
    Find the newest known entry of each window.

    Args:
        known: True for the entries that count; bool [E].
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].

    Returns:
        Its position; -1 where a window has none; int64 [R].
    """
    newest = np.full(len(known) + 1, -1, np.int64)
    newest[1:] = np.where(known, np.arange(len(known)), -1)
    np.maximum.accumulate(newest, out=newest)
    at = newest[end]
    return np.where(at >= begin, at, -1)


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
