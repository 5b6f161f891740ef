"""Attribute events of users to the lists that showed them the items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.schema import ACTIONS

ANY = "any"  # in place of an action: an event of any kind

I8 = npt.NDArray[np.int8]
I64 = npt.NDArray[np.int64]


class ItemEvents(msgspec.Struct, frozen=True, eq=False):
    """
    Events of users with items; N rows.

    Attributes:
        users, items: Ids.
        time_us: µs since 1970; int64 [N].
        actions: Index in `schema.ACTIONS`, -1 for none; int8 [N].
    """

    users: Sequence[str]
    items: Sequence[str]
    time_us: I64
    actions: I8

    def renamed(self, names: Mapping[str, str]) -> ItemEvents:
        """Replace the ids of users; a user without a name gets an empty one."""
        users = [names.get(one, "") for one in self.users]
        return msgspec.structs.replace(self, users=users)


def responses_of(
    shown: pl.DataFrame, events: ItemEvents, *, within_s: float
) -> Iterator[tuple[str, pl.DataFrame]]:
    """
    Attribute each event to the user's newest list before it that has the item.

    Args:
        shown: Shown items: `user` as in the events, `item`, `time` in µs, and other
            columns.
        within_s: Time after a list in which an event is a response to it, s.

    Yields:
        ANY, then each action that the events have, and its responses: the columns of
        `shown`, with the time of the event, and `listed`, that of the list.
    """
    later = pl.DataFrame(
        {
            "user": pl.Series(events.users, dtype=pl.String),
            "item": pl.Series(events.items, dtype=pl.String),
            "time": events.time_us,
            "action": events.actions,
        }
    )
    # Both are sorted by time, so those of each user and item are.
    joined = later.sort("time", maintain_order=True).join_asof(
        shown.sort("time", maintain_order=True).with_columns(listed=pl.col("time")),
        on="time",
        by=["user", "item"],
        strategy="backward",
        check_sortedness=False,
    )
    within_us = round(within_s * 1e6)
    found = joined.filter(
        pl.col("listed").is_not_null() & (pl.col("time") - pl.col("listed") < within_us)
    )
    yield ANY, found
    for action in np.unique(events.actions[events.actions >= 0]).tolist():
        yield ACTIONS[action], found.filter(pl.col("action") == action)
