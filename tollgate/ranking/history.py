"""Hold the newest events of users, and find them among the events of a store value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.spec_definition import EntityHistory
from tollgate.features.windows.entity_entries import MISSING, Entries, running
from tollgate.features.windows.window_values import Rows, find_places

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class UserHistory(msgspec.Struct, frozen=True, eq=False):
    """
    The newest events of the users of N rows, the newest first.

    Attributes:
        time_us: Time of each event, µs; int64 [N, H], 0 after the last event.
        columns: Values of each event by field, as in the store: numbers in units of
            their last decimal, categories as hashes; int64 [N, H], MISSING (of
            tollgate.schema) after the last event and where the event has no value.
        count: Number of events of each row; int64 [N], at most H.
        known: False where the store did not answer and no earlier value was held: the
            user may have events; bool [N].
        prepared: Entry with candidates that were prepared for the user
            (tollgate/ranking/prepared.py): empty without one, None where it was not
            read; object [N].
    """

    time_us: I64
    columns: Mapping[str, I64]
    count: I64
    known: Bool
    prepared: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.count)

    def take(self, rows: I64 | Bool | slice) -> UserHistory:
        """Select rows, by position or by a mask."""
        return UserHistory(
            time_us=self.time_us[rows],
            columns={name: column[rows] for name, column in self.columns.items()},
            count=self.count[rows],
            known=self.known[rows],
            prepared=self.prepared[rows],
        )

    def fill(self, rows: I64 | Bool | slice, other: UserHistory) -> None:
        """Replace some rows by those of another history of the same form."""
        self.time_us[rows] = other.time_us
        for name, column in self.columns.items():
            column[rows] = other.columns[name]
        self.count[rows] = other.count
        self.known[rows] = other.known
        self.prepared[rows] = other.prepared


def no_history(form: EntityHistory, rows: int) -> UserHistory:
    """Return the histories of rows of which nothing is known."""
    return UserHistory(
        time_us=np.zeros((rows, form.most), np.int64),
        columns={name: np.full((rows, form.most), MISSING) for name in form.of},
        count=np.zeros(rows, np.int64),
        known=np.zeros(rows, np.bool_),
        prepared=np.full(rows, None, np.object_),
    )


def newest_events(
    entries: Entries,
    rows: Rows,
    *,
    columns: Sequence[str],
    form: EntityHistory,
    known: Bool,
) -> UserHistory:
    """
    Find the newest events up to each row's own time and id, without its own event.

    Args:
        entries: The events of users. Those without any of the values are left out.
        rows: N rows; their windows have no effect.
        columns: Names of the entries' columns.
        form: Names the columns to return, and the largest number of events.
        known: False for a row whose events are unknown: its history is empty; [N].
    """
    found = no_history(form, len(rows.time_us))
    found.known[:] = known
    if not len(entries.time_us):
        return found
    places = {name: at for at, name in enumerate(columns)}
    values = [entries.columns[places[name]] for name in form.of]
    has_value = values[0] != MISSING
    for one in values[1:]:
        has_value |= one != MISSING
    end = find_places(entries, rows).own
    last = np.maximum(end - 1, 0)
    start = entries.starts[rows.entity]
    own = (end > start) & (entries.time_us[last] == rows.time_us)
    own &= entries.order[last] == rows.order
    # From here on, positions count the events that have a value.
    (events,) = has_value.nonzero()
    if not len(events):
        return found
    before = running(has_value)
    stop = before[end - own]
    count = np.minimum(stop - before[start], form.most)
    count[~known] = 0
    back = np.arange(form.most)
    at = events.take(stop[:, None] - 1 - back, mode="clip")
    beyond = back >= count[:, None]
    found.count[:] = count
    for target, source, empty in (
        (found.time_us, entries.time_us, 0),
        *(
            (found.columns[name], one, MISSING)
            for name, one in zip(form.of, values, strict=True)
        ),
    ):
        source.take(at, out=target)
        target[beyond] = empty
    return found
