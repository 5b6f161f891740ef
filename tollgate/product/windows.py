"""Choose the windows of a new product: those whose events the store can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.spec_document import MAX_ENTRIES, duration_us
from tollgate.features.windows.capacity import dropped_us
from tollgate.product.table_reading import as_text

if TYPE_CHECKING:
    import polars as pl

I64 = npt.NDArray[np.int64]

USUAL_WINDOWS = ("1d", "7d", "30d")
# Windows for ids with more events than the store holds within the usual ones.
_SHORTER_WINDOWS = ("1m", "10m", "1h", "6h")
_ALL_WINDOWS = (*_SHORTER_WINDOWS, *USUAL_WINDOWS)
SHORTEST_WINDOW = _ALL_WINDOWS[0]


class EntityEvents(msgspec.Struct, frozen=True, eq=False):
    """
    Events of an entity, sorted by id and time.

    Attributes:
        order: Position of each event in the table; int64 [N].
        code: Number of its id; int64 [N].
        time_us: Its time; int64 [N].
    """

    order: I64
    code: I64
    time_us: I64


def entity_events(ids: pl.Series, times_us: I64) -> EntityEvents:
    """Sort the events of a column of ids."""
    ranks = as_text(ids).rank("dense").to_numpy()
    code = np.asarray(ranks, np.int64)
    order = np.lexsort((times_us, code))
    return EntityEvents(order=order, code=code[order], time_us=times_us[order])


def fitting_windows(events: EntityEvents) -> tuple[str, ...]:
    """
    Select the three longest windows with no more events than the store holds of an id.

    The store drops the event 1,024 places before a new one of the same id; a window
    fits if no event finds a dropped one within it.

    Returns:
        Up to three of 1m, 10m, 1h, 6h, 1d, 7d and 30d, the shortest first; empty if
        none fits.
    """
    dropped = dropped_us(events.code, events.time_us, MAX_ENTRIES)
    fitting = [
        one
        for one in _ALL_WINDOWS
        if not (dropped > events.time_us - duration_us(one)).any()
    ]
    return tuple(fitting[-len(USUAL_WINDOWS) :])


def overflow_text(ids: pl.Series, events: EntityEvents, *, window: str) -> str:
    """
    Describe the id that has the most events within a window that does not fit.

    Args:
        ids: The entity's column.
        events: Its events.
        window: The window; some id has more events within it than the store holds.
    """
    window_us = duration_us(window)
    dropped = dropped_us(events.code, events.time_us, MAX_ENTRIES)
    codes = np.unique(events.code[dropped > events.time_us - window_us])
    most, busiest = 0, 0
    for code in codes.tolist():
        start, stop = events.code.searchsorted([code, code + 1]).tolist()
        own = events.time_us[start:stop]
        held = np.arange(1, len(own) + 1) - own.searchsorted(own - window_us, "right")
        if held.max() > most:
            most, busiest = int(held.max()), int(events.order[start])
    others = f", {len(codes) - 1:,} more ids too many" if len(codes) > 1 else ""
    return (
        f"{as_text(ids)[busiest]!r:.60} has {most:,} rows within {window}{others}; the "
        f"store holds {MAX_ENTRIES:,} events of an id"
    )
