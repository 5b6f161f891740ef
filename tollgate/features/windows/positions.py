"""
Find the positions of rows and of their windows among the entries of their entities.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.windows.entity_entries import Entries

I64 = npt.NDArray[np.int64]


class Rows(msgspec.Struct, frozen=True):
    """
    Hold the times and windows that R rows read.

    Rows of one entity look equally far; delay and widths are given once for every row,
    or once for all.

    Attributes:
        entity: Index into the entries' `starts`; int64 [R].
        time_us: int64 [R].
        order: The row's own position in its instant, like the entries' `order`; [R].
        delay_us: Time from the windows' end to `time_us`; int64 [R] or [1].
        windows_us: Their widths; int64 [W, R] or [W, 1].
    """

    entity: I64
    time_us: I64
    order: npt.NDArray[Any]
    delay_us: I64
    windows_us: I64

    def part(self, rows: slice, *, first: int) -> Rows:
        """
        Select some of the rows; each must have its own delay and widths.

        `first` is the entity at which the selected entries start.
        """
        return Rows(
            entity=self.entity[rows] - first,
            time_us=self.time_us[rows],
            order=self.order[rows],
            delay_us=self.delay_us[rows],
            windows_us=self.windows_us[:, rows],
        )


class Places(msgspec.Struct, frozen=True):
    """
    Hold the positions of rows and of their windows among the entries.

    Attributes:
        entry_key: Entity and time of each entry in one integer, ascending; [E].
        row_key: The same of each row; [R].
        own: One past the last entry up to the row's own (time, id); [R].
        end: One past the windows' last entry; [R].
        begin: First entry of each window; [W, R].
    """

    entry_key: I64
    row_key: I64
    own: I64
    end: I64
    begin: I64

    def part(self, rows: slice, entries: slice) -> Places:
        """Select the positions of some rows among the entries that they read."""
        first = entries.start
        return Places(
            entry_key=self.entry_key[entries],
            row_key=self.row_key[rows],
            own=self.own[rows] - first,
            end=self.end[rows] - first,
            begin=self.begin[:, rows] - first,
        )


def find_places(entries: Entries, rows: Rows) -> Places:
    """Find all positions with one binary search over (entity, time)."""
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
    return Places(
        entry_key=entry_key,
        row_key=row_key,
        own=own,
        end=end,
        begin=np.minimum(found[3:], end),
    )


def _own_ends(entries: Entries, rows: Rows, *, low: I64, high: I64) -> I64:
    """
    Find, per row, the end of the events up to its own (time, id).

    Args:
        entries: All events.
        rows: All rows.
        low: The first event of each row's instant; overwritten.
        high: One past the last; overwritten.
    """
    if (high - low == 1).all():  # mostly its own event, and no other at its instant
        alone: I64 = low + (entries.order[low] <= rows.order)
        return alone
    (open_,) = (low < high).nonzero()
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        upto = entries.order[middle] <= rows.order[open_]
        low[open_[upto]] = middle[upto] + 1
        high[open_[~upto]] = middle[~upto]
        open_ = open_[low[open_] < high[open_]]
    return low
