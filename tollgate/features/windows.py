"""
Window sums as of a moment: the arithmetic that offline and online share.

A window ends at a row's own event, or `delay` before it. Its sums are integers, so
their order does not matter and online equals offline to the last bit.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.entries import Entries

I64 = npt.NDArray[np.int64]

_NEVER_US = np.iinfo(np.int64).max


class Rows(msgspec.Struct, frozen=True):
    """
    Where R rows read, and how far back they look.

    Rows of one entity look equally far; delay and widths are given once for every
    row, or once for all.

    Attributes:
        entity: Index into the entries' `starts`; int64 [R].
        time_us: int64 [R].
        order: The row's own place in its instant, like the entries' `order`; [R].
        delay_us: How long before `time_us` the windows end; int64 [R] or [1].
        windows_us: Their widths; int64 [W, R] or [W, 1].
    """

    entity: I64
    time_us: I64
    order: npt.NDArray[Any]
    delay_us: I64
    windows_us: I64


class Sums(msgspec.Struct, frozen=True):
    """
    What the windows of R rows hold.

    Attributes:
        count: Purchases; int64 [R, W].
        cents: Their amounts; int64 [R, W].
        fraud: Those known as fraud at the row's time; int64 [R, W].
        upto: Purchases of any age up to the row's own, it included; int64 [R].
    """

    count: I64
    cents: I64
    fraud: I64
    upto: I64

    def part(self, rows: slice) -> Sums:
        """Take some of the rows."""
        return Sums(
            count=self.count[rows],
            cents=self.cents[rows],
            fraud=self.fraud[rows],
            upto=self.upto[rows],
        )


class _Places(msgspec.Struct, frozen=True):
    """
    Where rows and their windows lie among the entries.

    Attributes:
        entry_key: Entity and time of each entry in one integer, ascending; [E].
        row_key: The same of each row; [R].
        own: One past the last entry up to the row's own (time, id); [R].
        end: One past the windows' last entry; [R].
        begin: Their first; [W, R].
    """

    entry_key: I64
    row_key: I64
    own: I64
    end: I64
    begin: I64


def window_sums(entries: Entries, rows: Rows) -> Sums:
    """
    Sum each row's windows, as of the row's time and id.

    A purchase counts in a window w when t - delay - w < time <= t - delay; without
    a delay, at time t itself only ids up to the row's own count. It counts as fraud
    when its label was known at t.

    Args:
        entries: Events of the entities the rows name.
        rows: Where to read, and which windows.

    Returns:
        Sums over the rows' windows.
    """
    places = _find(entries, rows)
    # Running sums: a window's is the difference between its ends.
    running = np.zeros((3, len(entries.time_us) + 1), np.int64)
    running[0, 1:] = entries.purchase
    running[1, 1:] = entries.cents
    running[2, 1:] = entries.fraud
    running.cumsum(axis=1, out=running)
    sums = running[:, None, places.end] - running[:, places.begin]
    count, cents, fraud = sums.transpose(0, 2, 1)
    first = entries.starts[rows.entity]
    return Sums(
        count=count,
        cents=cents,
        fraud=fraud - _not_yet_known(entries, rows, places).T,
        upto=running[0, places.own] - running[0, first],
    )


def _find(entries: Entries, rows: Rows) -> _Places:
    """Find all places with one binary search over (entity, time)."""
    back_us = np.zeros((3 + len(rows.windows_us), rows.windows_us.shape[1]), np.int64)
    back_us[1] = 1
    back_us[2:] = rows.delay_us
    back_us[3:] += rows.windows_us
    times = [time for time in (entries.time_us, rows.time_us) if len(time)]
    low = min((int(time.min()) for time in times), default=0)
    low -= int(back_us.max(initial=0))
    span = max((int(time.max()) for time in times), default=0) - low + 2
    if span * len(entries.starts) >= 2**63:
        raise OverflowError("too many entities over too long a time for one call")
    counts = entries.starts[1:] - entries.starts[:-1]
    origin = np.arange(len(counts)) * span - low
    entry_key = origin.repeat(counts) + entries.time_us
    row_key = origin[rows.entity] + rows.time_us
    found = entry_key.searchsorted(row_key - back_us, "right")
    own = _own_ends(entries, rows, low=found[1], high=found[0])
    end = np.where(rows.delay_us == 0, own, found[2])
    return _Places(
        entry_key=entry_key,
        row_key=row_key,
        own=own,
        end=end,
        begin=np.minimum(found[3:], end),
    )


def _own_ends(entries: Entries, rows: Rows, *, low: I64, high: I64) -> I64:
    """
    Find, per row, where the events up to its own (time, id) end.

    Args:
        entries: All events.
        rows: All rows.
        low: The first event of each row's instant; overwritten.
        high: One past the last; overwritten.
    """
    (open_,) = (low < high).nonzero()
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        upto = entries.order[middle] <= rows.order[open_]
        low[open_[upto]] = middle[upto] + 1
        high[open_[~upto]] = middle[~upto]
        open_ = open_[low[open_] < high[open_]]
    return low


def _not_yet_known(entries: Entries, rows: Rows, places: _Places) -> I64:
    """
    Count the frauds of each window whose label came after the row's time; [W, R].

    In the order of (entity, time, id), the rows whose window holds a fraud follow
    each other, and so do those among them to which it is not known. So each fraud
    adds one where that run begins and takes it back where it ends.
    """
    hidden = np.zeros(places.begin.shape, np.int64)
    (late,) = entries.fraud.nonzero()
    label_time_us = entries.label_time_us[late]
    unknown = label_time_us > rows.time_us.min(initial=_NEVER_US)
    late, label_time_us = late[unknown], label_time_us[unknown]
    if not len(late):
        return hidden
    order = np.lexsort((places.own, places.row_key))
    # Known after the last row or never is the same; this stays within the entity.
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
