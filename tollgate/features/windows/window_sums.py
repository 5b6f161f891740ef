"""
Compute window sums as of a moment: the arithmetic that offline and online share.

A window ends at a row's own event, or `delay` before it. Its sums are integers, so
their order does not matter and online equals offline to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.windows.entity_entries import Entries
from tollgate.features.windows.positions import Places, Rows, find_places
from tollgate.features.windows.window_values import Demand

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_NEVER_US = np.iinfo(np.int64).max


NO_ANSWERS: Mapping[Demand, I64] = MappingProxyType({})


class Sums(msgspec.Struct, frozen=True):
    """
    Hold the sums over the windows of R rows.

    Attributes:
        count: Purchases; int64 [R, W].
        cents: Their amounts; int64 [R, W].
        fraud: Purchases known as fraud at the row's time; int64 [R, W].
        upto: Purchases of any age up to the row's own, it included; int64 [R].
        others: Other values of the windows that features need; int64 [R] each.
    """

    count: I64
    cents: I64
    fraud: I64
    upto: I64
    others: Mapping[Demand, I64] = NO_ANSWERS

    def part(self, rows: slice) -> Sums:
        """Select some of the rows."""
        return Sums(
            count=self.count[rows],
            cents=self.cents[rows],
            fraud=self.fraud[rows],
            upto=self.upto[rows],
            others={demand: one[rows] for demand, one in self.others.items()}
            if self.others
            else NO_ANSWERS,
        )


def window_sums(entries: Entries, rows: Rows, *, places: Places | None = None) -> Sums:
    """
    Sum each row's windows, as of the row's time and id.

    A purchase counts in a window w when t - delay - w < time <= t - delay; without a
    delay, at time t itself only ids up to the row's own count. It counts as fraud when
    its label was known at t.

    Args:
        entries: Events of the entities the rows name.
        rows: The rows and their windows.
        places: Their positions, if they are already known.

    Returns:
        Sums over the rows' windows.
    """
    places = places or find_places(entries, rows)
    # Running sums: a window's is the difference between its ends.
    running = np.zeros((3, len(entries.time_us) + 1), np.int64)
    running[0, 1:] = entries.purchase
    running[1, 1:] = entries.cents
    running[2, 1:] = entries.fraud
    running.cumsum(axis=1, out=running)
    upto_end = running.take(places.end, axis=1)
    sums = upto_end[:, None] - running.take(places.begin, axis=1)
    count, cents, fraud = sums.transpose(0, 2, 1)
    first = entries.starts[rows.entity]
    return Sums(
        count=count,
        cents=cents,
        fraud=fraud - _not_yet_known(entries, rows, places).T,
        upto=running[0, places.own] - running[0, first],
    )


def _not_yet_known(entries: Entries, rows: Rows, places: Places) -> I64:
    """
    Count the frauds of each window whose label came after the row's time; [W, R].

    In the order of (entity, time, id), the rows whose window holds a fraud follow each
    other, and so do those among them that do not know it yet. So each fraud adds one
    where that run begins and subtracts it where the run ends.
    """
    hidden = np.zeros(places.begin.shape, np.int64)
    (late,) = entries.fraud.nonzero()
    label_time_us = entries.label_time_us[late]
    unknown = label_time_us > rows.time_us.min(initial=_NEVER_US)
    late, label_time_us = late[unknown], label_time_us[unknown]
    if not len(late):
        return hidden
    order = np.lexsort((places.own, places.row_key))
    # A label known after the last row is the same as none; this stays within the
    # entity.
    wait_us = np.minimum(label_time_us, rows.time_us.max() + 1) - entries.time_us[late]
    known = places.row_key[order].searchsorted(places.entry_key[late] + wait_us)
    first = places.end[order].searchsorted(late, "right")
    for window, begin in enumerate(places.begin):
        left = begin[order].searchsorted(late, "right")
        stop = np.maximum(first, np.minimum(known, left))
        steps = np.bincount(first, minlength=len(order) + 1)
        steps -= np.bincount(stop, minlength=len(order) + 1)
        hidden[window, order] = np.cumsum(steps)[:-1]
    return hidden


def over_windows(aggregate: str, sums: Sums) -> F64 | I64:
    """Compute one aggregate over all windows of an entity; [N, W]."""
    if aggregate == "count":
        return sums.count
    if aggregate == "sum":
        return sums.cents / 100.0
    if aggregate == "flagged":
        return sums.fraud
    # The sums of an empty window are 0, and so are the values computed from them.
    whole = np.maximum(sums.count, 1)
    # One division: cents and counts are exact, so the ratio is rounded once.
    ratio: F64 = (
        sums.cents / (whole * 100) if aggregate == "mean" else sums.fraud / whole
    )
    return ratio
