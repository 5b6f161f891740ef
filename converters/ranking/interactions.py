"""Read tables of interactions: which user met which item, and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.history import columns
from tollgate.history.table import read_table
from tollgate.ranking.catalogue import EVERYONE, item_id_problem
from tollgate.schema import ACTIONS

if TYPE_CHECKING:
    import polars as pl

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

# The unit of a time that is a number follows from its size: each border is the year
# 5138 in the smaller unit and 1973 in the greater one.
_UNITS_US = ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0), (np.inf, 1e-3))
_LEAST_EVENTS = 10


class Interactions(msgspec.Struct, frozen=True, eq=False):
    """
    Events of users with items, sorted by user, time, item and action; N rows.

    Attributes:
        source: The table's name, for messages.
        user_ids: Ids of the users, sorted.
        item_ids: Ids of the items in UTF-8, sorted.
        users: Index in `user_ids`; int32 [N].
        items: Index in `item_ids`; int32 [N].
        time_us: µs since 1970; int64 [N].
        actions: Index in `schema.ACTIONS`, -1 for none; int8 [N].
        categories: Index in `category_names` by item, -1 for none; int32 [I].
        category_names: Names of the categories, sorted.
        segments: Index in `segment_names` by user, 0 for none; int32 [U].
        segment_names: EVERYONE, and the other ones sorted.
        segment_field: Name of the field of a request that names its user's segment, as
            of the table's column; empty for none.
    """

    source: str
    user_ids: list[str]
    item_ids: list[bytes]
    users: I32
    items: I32
    time_us: I64
    actions: npt.NDArray[np.int8]
    categories: I32
    category_names: list[str]
    segments: I32
    segment_names: list[str]
    segment_field: str = ""

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.users)

    def only(self, rows: npt.NDArray[np.bool_]) -> Interactions:
        """Return some of the events, with the indices of users and items unchanged."""
        return msgspec.structs.replace(
            self,
            users=self.users[rows],
            items=self.items[rows],
            time_us=self.time_us[rows],
            actions=self.actions[rows],
        )


def read_interactions(
    path: Path,
    *,
    user: str,
    item: str,
    time: str,
    action: str | None = None,
    category: str | None = None,
    segment: str | None = None,
) -> Interactions:
    """
    Read a table of interactions: Parquet, CSV or JSON lines.

    Args:
        path: The file.
        user: Column with the ids of users.
        item: Column with the ids of items.
        time: Column with datetimes, ISO texts, or numbers: seconds, ms, µs or ns since
            1970, by their size.
        action: Column with words of `schema.ACTIONS`; a null is an event without one.
        category: Column with an item's category; the newest of an item's events counts.
        segment: Column with a user's segment; the newest of a user's events counts. A
            request has a field of the same name.

    Raises:
        InputError: A column is missing or named twice, a value is invalid, or there are
            too few rows.
    """
    frame, source = read_table(path), str(path)
    named = [one for one in (user, item, time, action, category, segment) if one]
    for at, name in enumerate(named):
        if name not in frame.columns:
            problem = f"column missing; the file has {', '.join(frame.columns)}"
            raise InputError(source, problem, where=name)
        if name in named[:at]:
            problem = "is named for two of user, item, time and the others"
            raise InputError(source, problem, where=name)
    if len(frame) < _LEAST_EVENTS:
        problem = f"has {len(frame)} rows; at least {_LEAST_EVENTS} are needed"
        raise InputError(source, problem)
    for name in (user, item, time):
        columns.refuse(frame[name].is_null(), frame[name], "is null", source)
    return interactions_of(
        users=columns.ids(frame[user], source=source).to_list(),
        items=_item_ids(frame[item], source=source),
        time_us=_times_us(frame[time], source=source),
        actions=None if action is None else _actions(frame[action], source=source),
        categories=None if category is None else _texts(frame[category]),
        segments=None if segment is None else _segments(frame[segment], source=source),
        segment_field=segment or "",
        source=source,
    )


def interactions_of(
    *,
    users: Sequence[str],
    items: Sequence[bytes],
    time_us: I64,
    actions: npt.NDArray[np.int8] | None = None,
    categories: Sequence[str | None] | None = None,
    segments: Sequence[str | None] | None = None,
    segment_field: str = "",
    source: str = "interactions",
) -> Interactions:
    """
    Index and sort the columns of a table of N events.

    Args:
        users: Ids of users.
        items: Ids of items.
        time_us: Times, µs; int64 [N].
        actions: Index in `schema.ACTIONS`, -1 for none; int8 [N].
        categories: Category of each event's item; None for none.
        segments: Segment of each event's user; None for none.
        segment_field: See `Interactions`.
        source: Name of the table, for messages.
    """
    user_ids, user_index = np.unique(np.asarray(users, object), return_inverse=True)
    item_ids, item_index = np.unique(np.asarray(items, object), return_inverse=True)
    if actions is None:
        actions = np.full(len(time_us), -1, np.int8)
    # By these four, so that the order of the rows in a file does not matter.
    order = np.lexsort((actions, item_index, time_us, user_index))
    newest_last = np.argsort(time_us, kind="stable")
    category, category_names = _newest(
        categories, item_index, newest_last, count=len(item_ids)
    )
    segment, segment_names = _newest(
        segments, user_index, newest_last, count=len(user_ids)
    )
    return Interactions(
        source=source,
        user_ids=user_ids.tolist(),
        item_ids=item_ids.tolist(),
        users=user_index[order].astype(np.int32),
        items=item_index[order].astype(np.int32),
        time_us=time_us[order],
        actions=actions[order],
        categories=category,
        category_names=category_names,
        segments=segment + np.int32(1),
        segment_names=[EVERYONE, *segment_names],
        segment_field=segment_field,
    )


def _newest(
    words: Sequence[str | None] | None,
    owners: npt.NDArray[np.int64],
    newest_last: npt.NDArray[np.int64],
    *,
    count: int,
) -> tuple[I32, list[str]]:
    """Return the index of the newest word of each owner, -1 for none, and the words."""
    found = np.full(count, -1, np.int32)
    if words is None:
        return found, []
    names = sorted({one for one in words if one})
    places = {name: place for place, name in enumerate(names)}
    index = np.asarray([places.get(one or "", -1) for one in words], np.int32)
    rows = newest_last[index[newest_last] >= 0]
    found[owners[rows]] = index[rows]
    return found, names


def _item_ids(column: pl.Series, *, source: str) -> list[bytes]:
    text = columns.ids(column, source=source)
    for one in text.unique().to_list():
        if problem := item_id_problem(one.encode()):
            row = text.to_list().index(one)
            raise InputError(
                source, f"row {row}: {one[:80]!r} {problem}", where=column.name
            )
    return [one.encode() for one in text.to_list()]


def _texts(column: pl.Series) -> list[str | None]:
    import polars as pl

    texts: list[str | None] = column.cast(pl.String).to_list()
    return texts


def _segments(column: pl.Series, *, source: str) -> list[str | None]:
    texts = _texts(column)
    if EVERYONE in texts:
        problem = f"row {texts.index(EVERYONE)}: {EVERYONE!r} is no name of a segment"
        raise InputError(source, problem, where=column.name)
    return texts


def _times_us(column: pl.Series, *, source: str) -> I64:
    """Convert times to µs since 1970; unlike purchases, they may be of any year."""
    import polars as pl

    if isinstance(column.dtype, pl.Datetime):
        if column.dtype.time_zone:
            column = column.dt.convert_time_zone("UTC")
        return np.asarray(column.dt.epoch("us").to_numpy(), np.int64)
    if column.dtype == pl.Date:
        return np.asarray(column.cast(pl.Datetime("us")).dt.epoch("us").to_numpy())
    number = column.cast(pl.Float64, strict=False)
    if column.dtype == pl.String and number.null_count() == len(column):
        try:
            parsed = column.str.to_datetime(time_unit="us", strict=False)
        except pl.exceptions.ComputeError:  # no text looks like a time
            parsed = pl.Series(column.name, [None] * len(column), pl.Datetime("us"))
        columns.refuse(parsed.is_null(), column, "is not a time", source)
        if parsed.dtype.time_zone:  # type: ignore[attr-defined]
            parsed = parsed.dt.convert_time_zone("UTC")
        return np.asarray(parsed.dt.epoch("us").to_numpy(), np.int64)
    wrong = number.is_null() | ~number.is_finite()
    columns.refuse(wrong.fill_null(True), column, "is not a time", source)
    columns.refuse(number < 0, column, "is a time before 1970", source)
    values = number.to_numpy()
    largest = float(values.max())
    scale = next(unit for border, unit in _UNITS_US if largest < border)
    if column.dtype.is_integer() and scale >= 1:
        return np.asarray(column.cast(pl.Int64).to_numpy() * int(scale), np.int64)
    return np.asarray(np.rint(values * scale), np.int64)


def _actions(column: pl.Series, *, source: str) -> npt.NDArray[np.int8]:
    words = _texts(column)
    places = {word: place for place, word in enumerate(ACTIONS)}
    found = np.full(len(words), -1, np.int8)
    for row, word in enumerate(words):
        if word in (None, ""):
            continue
        if word not in places:
            problem = f"row {row}: {word!r:.80} is none of {', '.join(ACTIONS)}"
            raise InputError(source, problem, where=column.name)
        found[row] = places[word]
    return found
