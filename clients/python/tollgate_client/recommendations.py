"""Represent requests for items, the lists that answer them, and the client's lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from tollgate_client.contract import (
    EVENT_TIME,
    EXCLUDE,
    ITEM_SEPARATOR,
    LIST_SIZE,
    MAX_ID_BYTES,
    MAX_LIST_SIZE,
    REQUEST_ID,
)
from tollgate_client.errors import ClientError, InputError, InvalidRequest, refusal
from tollgate_client.inputs import encode_purchase

ListSource = Literal["server", "client"]
CLIENT: ListSource = "client"  # also the source of an item of the client's own list

_SOURCE = "fallback"
_NOTHING: Mapping[str, object] = MappingProxyType({})
_NO_LISTS: Mapping[str, tuple[str, ...]] = MappingProxyType({})
_SHOWN = 40  # characters of a bad value that a message shows


@dataclass(frozen=True, slots=True)
class RecommendationRequest:
    """
    Ask for items for one user.

    Attributes:
        request_id: Id of the request; the same one gives the same list.
        user_id: Id of the user.
        slot: Place where the items are shown, such as `home`; None for none.
        device: Device of the user, such as `app`; None for none.
        exclude: Ids of items that the list must not have.
        event_time: Time of the request: µs since 1970, or a datetime with a time zone.
        fields: Values of other declared inputs of the product: name -> value.
        fallback: Name of the client's own list to use if no server answers; None for
            the one of the slot.
    """

    request_id: str
    user_id: str
    event_time: int | datetime
    slot: str | None = None
    device: str | None = None
    exclude: Sequence[str] = ()
    fields: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class Recommendations:
    """
    The list of items for one user, the best first.

    Attributes:
        items: Ids of items, each once, and none that the request excludes.
        scores: Relevance of each item; NaN for an item of the client's own list.
        sources: Origin of each item: `personal`, `similar`, `popular` or `fallback`, of
            a list that was prepared ahead with `prepared:` in front; `client` for an
            item of the client's own list.
        source_of_list: `server`: a server made the list just now. `client`: no server
            did in time, and all items are of the client's own list.
        degraded: Bits of `Degraded`; 0 for a list of the client.
        release: Release that ranked; empty for a list of the client.
        latency_s: Seconds from the call to the answer.
        why: Reason why the client had to add items; empty if it did not.
    """

    items: tuple[str, ...]
    scores: tuple[float, ...]
    sources: tuple[str, ...]
    source_of_list: ListSource
    degraded: int = 0
    release: str = ""
    latency_s: float = 0.0
    why: str = ""

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.items)


# Outcome of a request: a list, or the reason why it can have none.
RecommendationOutcome = Recommendations | InvalidRequest


@dataclass(frozen=True, slots=True)
class FallbackItems:
    """
    Lists of items for when no server answers, such as the best sellers.

        FallbackItems(("i-7", "i-3", …), lists={"cart": ("i-1", …)})

    A list should be as long as the largest `count` and the most items that a request
    excludes: a list that is too short then gives fewer items.

    Attributes:
        items: Items for any request, the best first.
        lists: Name -> items, such as those of a slot or of a group of users.

    Raises:
        InputError: A list is empty or has an item twice, or an id is no id.
    """

    items: tuple[str, ...]
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NO_LISTS)

    def __post_init__(self) -> None:
        _check_list(self.items, where="items")
        for name, items in self.lists.items():
            _check_list(items, where=f"lists.{name}")

    def of(self, name: str | None) -> tuple[str, ...]:
        """Return the list of a name; the one for any request if there is none."""
        return self.items if name is None else self.lists.get(name, self.items)


def fallback_items_from(document: Mapping[str, object]) -> FallbackItems:
    """
    Read lists from a configuration, such as a section of a YAML file.

        {"items": ["i-7", "i-3"], "lists": {"cart": ["i-1", "i-7"]}}

    Raises:
        InputError: See `FallbackItems`; also if a key is missing, unknown or of a wrong
            type.
    """
    for key in document:
        if key not in ("items", "lists"):
            problem = "is unknown; known are items, lists"
            raise InputError(_SOURCE, problem, where=key)
    if "items" not in document:
        raise InputError(_SOURCE, "is missing", where="items")
    lists = document.get("lists", {})
    if not isinstance(lists, Mapping):
        raise InputError(_SOURCE, f"{lists!r:.{_SHOWN}} is no mapping", where="lists")
    return FallbackItems(
        _texts(document["items"], where="items"),
        {str(name): _texts(one, where=f"lists.{name}") for name, one in lists.items()},
    )


def _texts(value: object, *, where: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise InputError(_SOURCE, f"{value!r:.{_SHOWN}} is not a list", where=where)
    return tuple(value)


def _check_list(items: Sequence[str], *, where: str) -> None:
    if isinstance(items, str) or not items:
        raise InputError(_SOURCE, f"{items!r} is no list with items", where=where)
    for place, item in enumerate(items):
        if problem := _item_problem(item):
            raise InputError(_SOURCE, problem, where=f"{where}[{place}]")
    if len(set(items)) < len(items):
        twice = next(one for one in items if list(items).count(one) > 1)
        raise InputError(_SOURCE, f"{twice!r} stands there twice", where=where)


def _item_problem(item: object) -> str:
    """Describe why a value cannot be the id of an item; empty if it can."""
    if not isinstance(item, str):
        return f"{item!r:.{_SHOWN}} is not text"
    try:
        size = len(item.encode())
    except UnicodeEncodeError:
        return f"{item!r:.{_SHOWN}} is not valid Unicode"
    if not size:
        return "an item is empty"
    if size > MAX_ID_BYTES:
        return f"{item!r:.{_SHOWN}} has {size} bytes, {MAX_ID_BYTES} are allowed"
    if ITEM_SEPARATOR in item:
        return f"{item!r:.{_SHOWN}} has a {ITEM_SEPARATOR}"
    return ""


# Requests.


@dataclass(frozen=True, slots=True, eq=False)
class RankingRow:
    """
    A checked and encoded request for items.

    Attributes:
        count: Number of items.
        excluded: Ids that the list must not have.
        fallback: Name of the client's own list; None for the one of any request.
        parts: Bytes in a raw tensor, for each input and then for each declared field.
    """

    count: int
    excluded: frozenset[str]
    fallback: str | None
    parts: tuple[bytes, ...]


def encode_ranking_row(
    request: RecommendationRequest,
    *,
    count: int,
    inputs: Mapping[str, str],
    fields: Mapping[str, str],
) -> RankingRow:
    """
    Check a request for items and encode it.

    Args:
        count: Number of items, 1 to 50.
        inputs: The product's inputs: name -> type on the wire.
        fields: Its optional inputs: name -> type on the wire.

    Raises:
        InvalidRequest: A value is of a wrong type, too long or empty, or an input is
            unknown; the error names it.
    """
    whole = isinstance(count, int) and not isinstance(count, bool)
    if not (whole and 1 <= count <= MAX_LIST_SIZE):
        problem = f"is not a number from 1 to {MAX_LIST_SIZE}"
        raise InvalidRequest(f"{LIST_SIZE}: {count!r:.{_SHOWN}}: {problem}")
    excluded = _excluded(request.exclude)
    row = {
        REQUEST_ID: request.request_id,
        "user_id": request.user_id,
        EVENT_TIME: request.event_time,
        **request.fields,
    }
    for name, value in (("slot", request.slot), ("device", request.device)):
        if value is not None:
            row[name] = value
    if excluded:
        row[EXCLUDE] = ITEM_SEPARATOR.join(excluded)
    encoded = encode_purchase(row, inputs=inputs, fields=fields)
    return RankingRow(
        count=count,
        excluded=frozenset(excluded),
        fallback=request.slot if request.fallback is None else request.fallback,
        parts=encoded.parts,
    )


def _excluded(items: Sequence[str]) -> Sequence[str]:
    if isinstance(items, (str, bytes)):
        problem = f"{items!r:.{_SHOWN}}: is one text, not a list of ids"
        raise InvalidRequest(f"{EXCLUDE}: {problem}")
    found = list(dict.fromkeys(items))
    for item in found:
        if problem := _item_problem(item):
            raise InvalidRequest(f"{EXCLUDE}: {problem}")
    return found


# Responses.


@dataclass(frozen=True, slots=True, eq=False)
class RankedRows:
    """
    Lists for N rows of K items each, as a server sent them.

    Attributes:
        items, source: Ids and their origins, row after row; N * K texts.
        scores: float32 [N * K].
        degraded: uint32 [N].
        error, release: N texts.
    """

    items: list[str]
    scores: npt.NDArray[np.float32]
    source: list[str]
    degraded: npt.NDArray[np.uint32]
    error: list[str]
    release: list[str]


def recommendations_of(
    ranked: RankedRows, rows: Sequence[RankingRow], fallback: FallbackItems
) -> list[Recommendations | ClientError]:
    """
    Split a response into the lists of its rows.

    Returns:
        For each row its list, which the client's own one completes if it is too short;
        an InvalidRequest if the row itself is invalid; another ClientError if the
        server had no time for it.

    Raises:
        ClientError: The number of rows differs.
    """
    if len(ranked.error) != len(rows):
        words = f"{len(rows)} rows were asked and {len(ranked.error)} are answered"
        raise ClientError(words)
    size = len(ranked.items) // len(rows)
    scores = ranked.scores.tolist()
    found: list[Recommendations | ClientError] = []
    for place, row in enumerate(rows):
        if ranked.error[place]:
            found.append(refusal(ranked.error[place]))
            continue
        part = slice(place * size, (place + 1) * size)
        found.append(
            _list_of(
                row,
                zip(ranked.items[part], scores[part], ranked.source[part], strict=True),
                fallback=fallback,
                degraded=int(ranked.degraded[place]),
                release=ranked.release[place],
            )
        )
    return found


def own_list(row: RankingRow, fallback: FallbackItems, *, why: str) -> Recommendations:
    """Answer a row with items of the client's own list."""
    return _list_of(row, (), fallback=fallback, source_of_list=CLIENT, why=why)


def _list_of(
    row: RankingRow,
    ranked: Iterable[tuple[str, float, str]],
    *,
    fallback: FallbackItems,
    source_of_list: ListSource = "server",
    degraded: int = 0,
    release: str = "",
    why: str = "",
) -> Recommendations:
    """Take items until there are enough: ranked ones, then those of the own list."""
    taken: dict[str, tuple[float, str]] = {}
    for item, score, source in ranked:
        if len(taken) == row.count:
            break
        if item and item not in row.excluded and item not in taken:
            taken[item] = score, source
    missing = row.count - len(taken)
    if missing:
        if not why:
            why = f"the server gave {len(taken)} of {row.count} items"
        for item in fallback.of(row.fallback):
            if len(taken) == row.count:
                break
            if item not in row.excluded and item not in taken:
                taken[item] = math.nan, CLIENT
        if len(taken) < row.count:
            why += f"; the client's own list has no {row.count} items for it"
    return Recommendations(
        items=tuple(taken),
        scores=tuple(score for score, _ in taken.values()),
        sources=tuple(source for _, source in taken.values()),
        source_of_list=source_of_list,
        degraded=degraded,
        release=release,
        why=why,
    )
