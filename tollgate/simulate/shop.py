"""
Simulate the users of a shop: what they view, put into the cart and buy.

Each item belongs to a category, and a few items have most of the events. Each user has
tastes that change from week to week. In a session a user looks at some items, mostly
of one category; an item that suits the tastes goes into the cart more often, and some
purchases are followed by that of the complement, as a camera by its memory card. Some
items appear during the simulated time, and some users come only at its end.

`respond` says what the same users do with a list that is shown to them.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.errors import InputError
from tollgate.schema import ACTIONS

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SLOTS = ("home", "product", "cart")
DEVICES = ("web", "app")
MOST_USERS, MOST_ITEMS = 1_000_000, 100_000
MOST_EVENTS = 20_000_000
_START = datetime.datetime(2024, 3, 4)  # a Monday
_S_PER_DAY = 86_400
_S_PER_WEEK = 7 * _S_PER_DAY
_DIMENSIONS = 8  # of tastes and items
_ITEMS_PER_CATEGORY = 25
_TAIL = 0.8  # the n-th item of a category appeals in proportion to n ** -_TAIL
_DRIFT = 0.2  # of a taste in a week, as a share of a new one
_STICKY = 0.6  # share of the views that stay in the session's category
_NEW_ITEMS, _NEW_USERS = 0.1, 0.08
_COMPLEMENTED = 0.6  # share of items that have a complement
_FOLLOWED = 0.35  # share of the purchases of these that are followed by it
_LOOKED_AT = 6  # items from which a user chooses the next one to view
_TASTE = 3.0  # weight of the taste in a choice
_VIEWED_AGAIN = 0.05  # share of views of items that the user has bought before
_BLOCK = 200_000  # views at a time; bounds the memory
_CART_BIAS, _CART_TASTE = -2.4, 2.2
_BUY_BIAS, _BUY_TASTE = -0.3, 1.0
_CLICK_BIAS, _CLICK_TASTE = -2.2, 3.0


class Shop(msgspec.Struct, frozen=True, eq=False):
    """
    A simulated shop: its events, its items, and the tastes behind them.

    Attributes:
        events: In the order of time: event_id ("e0000001"), event_time (µs, UTC,
            without a zone), user_id, item, action (one of ACTIONS), device, slot.
        items: item, category, price (two decimals), stock (pieces), launch_time.
        user_ids: Id of each user; [U].
        item_ids: Id of each item; [I].
        tastes: float32 [U, W, D], of unit length in each week.
        vectors: float32 [I, D], of unit length: an item suits a taste by the product.
        appeal: Logarithm of an item's weight in its category; float32 [I].
        complement: Index of the item that is bought after it, or -1; int32 [I].
    """

    events: pl.DataFrame
    items: pl.DataFrame
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]
    tastes: F32
    vectors: F32
    appeal: F32
    complement: I32


class Response(msgspec.Struct, frozen=True, eq=False):
    """
    What users do with lists of items.

    Attributes:
        clicked: Items that they look at; bool [N, K].
        purchased: Items that they buy, all of them clicked; bool [N, K].
    """

    clicked: Flags
    purchased: Flags


def simulate_shop(
    *,
    users: int = 400,
    items: int = 300,
    weeks: int = 8,
    views_per_user: float = 40.0,
    seed: int = 0,
) -> Shop:
    """
    Simulate a shop; the same arguments give the same shop.

    Args:
        users: Number of users, at least 2.
        items: Number of items, at least 10.
        weeks: Length of the time.
        views_per_user: Items that a user views in the whole time, on average.
        seed: Seed of the whole simulation, at least 0.

    Raises:
        InputError: An argument is out of range.
    """
    _require("users", users, least=2, most=MOST_USERS)
    _require("items", items, least=10, most=MOST_ITEMS)
    _require("weeks", weeks, least=1, most=520)
    _require("views_per_user", views_per_user, least=1, most=10_000)
    _require("seed", seed, least=0, most=2**63 - 1)
    _require("events", int(users * views_per_user), least=1, most=MOST_EVENTS)
    random = np.random.default_rng([seed, 4])
    stock = _stock_room(random, items, weeks=weeks)
    tastes = _tastes(random, users, weeks=weeks, centres=stock.centres)
    views = _views(random, tastes, stock, weeks=weeks, views_per_user=views_per_user)
    frame = _actions(random, views, tastes=tastes, stock=stock)
    user_ids = tuple(f"u{number:0{len(str(users))}}" for number in range(1, users + 1))
    item_ids = tuple(f"i{number:0{len(str(items))}}" for number in range(1, items + 1))
    return Shop(
        events=_events(frame, user_ids=user_ids, item_ids=item_ids),
        items=_items(stock, item_ids),
        user_ids=user_ids,
        item_ids=item_ids,
        tastes=tastes,
        vectors=stock.vectors,
        appeal=stock.appeal,
        complement=stock.complement,
    )


def respond(
    shop: Shop, users: I32, items: I32, *, week: int = -1, seed: int = 0
) -> Response:
    """
    Decide what users do with the lists that are shown to them.

    An item further down is noticed less often: the k-th with probability 1 / (1 + 0.15
    (k - 1)). A noticed item is clicked, and a clicked one bought, the more often the
    better it suits the user. The same arguments give the same response.

    Args:
        users: Index of the user of each list; int [N].
        items: Indices of the items, the best first, -1 for none; int [N, K].
        week: Week of the tastes; by default the last.
        seed: Seed of the response.
    """
    random = np.random.default_rng([seed, 5])
    places = np.arange(items.shape[1])
    suits = _suits(shop.tastes[users, week][:, None, :], shop.vectors[items])
    noticed = random.random(items.shape) < 1 / (1 + 0.15 * places)
    wanted = random.random(items.shape) < _share(_CLICK_BIAS + _CLICK_TASTE * suits)
    bought = random.random(items.shape) < _share(_BUY_BIAS - 1 + _BUY_TASTE * suits)
    clicked = noticed & wanted & (items >= 0)
    return Response(clicked=clicked, purchased=clicked & bought)


class _StockRoom(msgspec.Struct, frozen=True, eq=False):
    """Items in the order of their categories, as arrays over items."""

    centres: F32  # of categories [C, D]
    vectors: F32
    category: I32
    first: I64  # first item of each category, and the number of items; [C + 1]
    appeal: F32
    cumulated: npt.NDArray[np.float64]  # weights up to and with each item
    complement: I32
    price: npt.NDArray[np.float64]
    pieces: I64
    launch_s: I64


def _require(name: str, value: float, *, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(name, f"{value:g} is not within {least} … {most:,}")


def _unit(vectors: npt.NDArray[Any]) -> F32:
    """Scale the last axis to the length 1."""
    lengths = np.sqrt((vectors * vectors).sum(axis=-1, keepdims=True))
    return np.asarray(vectors / lengths, np.float32)


def _suits(tastes: F32, vectors: F32) -> F32:
    """Multiply tastes with items along the last axis, with the same broadcast."""
    return np.asarray(np.einsum("...d,...d->...", tastes, vectors), np.float32)


def _share(score: F32) -> F32:
    return np.asarray(1 / (1 + np.exp(-score)))


def _stock_room(random: np.random.Generator, items: int, *, weeks: int) -> _StockRoom:
    """Draw the items: category, vector, weight, complement, price, stock, launch."""
    categories = int(np.clip(items // _ITEMS_PER_CATEGORY, 2, 40))
    centres = _unit(random.normal(size=(categories, _DIMENSIONS)))
    category = np.sort(random.integers(0, categories, items)).astype(np.int32)
    category[:categories] = np.arange(categories)  # each has an item
    category.sort()
    first = np.searchsorted(category, np.arange(categories + 1))
    vectors = _unit(centres[category] + random.normal(0, 0.25, (items, _DIMENSIONS)))
    rank = np.empty(items)
    for one in range(categories):
        own = slice(first[one], first[one + 1])
        rank[own] = random.permutation(first[one + 1] - first[one]) + 1
    weight = rank**-_TAIL * random.lognormal(0, 0.3, items)
    # A complement is an item of another category, the same for all users.
    complement = random.integers(0, items, items).astype(np.int32)
    has = (random.random(items) < _COMPLEMENTED) & (category[complement] != category)
    launched = random.random(items) < _NEW_ITEMS
    latest = weeks * _S_PER_WEEK
    launch_s = np.where(launched, random.integers(latest // 8, latest, items), 0)
    base = random.lognormal(3.0, 0.8, categories)
    price = np.round(base[category] * random.lognormal(0, 0.35, items), 2)
    pieces = random.integers(5, 200, items) * (random.random(items) > 0.04)
    return _StockRoom(
        centres=centres,
        vectors=vectors,
        category=category,
        first=first,
        appeal=np.log(weight).astype(np.float32),
        cumulated=np.cumsum(weight),
        complement=np.where(has, complement, -1).astype(np.int32),
        price=np.maximum(price, 0.5),
        pieces=pieces,
        launch_s=launch_s,
    )


def _tastes(
    random: np.random.Generator, users: int, *, weeks: int, centres: F32
) -> F32:
    """Draw tastes near one or two categories, which change week by week; [U, W, D]."""
    liked = random.integers(0, len(centres), (users, 2))
    share = random.uniform(0.5, 1.0, (users, 1))
    taste = share * centres[liked[:, 0]] + (1 - share) * centres[liked[:, 1]]
    taste = _unit(taste + random.normal(0, 0.2, taste.shape))
    found = np.empty((users, weeks, _DIMENSIONS), np.float32)
    for week in range(weeks):
        found[:, week] = taste
        other = _unit(random.normal(size=taste.shape))
        taste = _unit((1 - _DRIFT) * taste + _DRIFT * other)
    return found


def _views(
    random: np.random.Generator,
    tastes: F32,
    stock: _StockRoom,
    *,
    weeks: int,
    views_per_user: float,
) -> pl.DataFrame:
    """Draw the views of all sessions: user, session, at_s, item, device, slot."""
    users, end_s = len(tastes), weeks * _S_PER_WEEK
    active = random.lognormal(-0.4, 0.9, users)  # a mean of about 1
    begin_s = np.zeros(users, np.int64)
    new = random.random(users) < _NEW_USERS
    begin_s[new] = random.integers(int(end_s * 0.85), end_s, int(new.sum()))
    present = 1 - begin_s / end_s
    per_session = 4.0
    count = random.poisson(views_per_user / per_session * active * present) + 1
    owner = np.repeat(np.arange(users), count)
    span = end_s - begin_s[owner] - 1
    day = (random.random(len(owner)) * span).astype(np.int64) + begin_s[owner]
    # In the evening more than at night; a session ends when the time does.
    hour = np.clip(random.normal(17, 4, len(owner)), 0, 23.9) * 3_600
    evening = day // _S_PER_DAY * _S_PER_DAY + hour.astype(np.int64)
    begins = np.clip(evening, begin_s[owner], end_s - 1)
    length = random.geometric(1 / per_session, len(owner))
    prefers_app = random.random(users)
    app = random.random(len(owner)) < prefers_app[owner]

    session = np.repeat(np.arange(len(owner)), length)
    position = np.arange(len(session)) - np.repeat(np.cumsum(length) - length, length)
    pause = random.integers(20, 120, len(session))
    at_s = begins[session] + position * 120 + pause
    at_s = np.minimum(at_s, end_s - 1)
    user = owner[session]
    week = np.minimum(at_s // _S_PER_WEEK, weeks - 1)
    item = np.empty(len(session), np.int32)
    main = _categories(random, tastes[owner, begins // _S_PER_WEEK], stock)
    for start in range(0, len(session), _BLOCK):
        block = slice(start, start + _BLOCK)
        taste = tastes[user[block], week[block]]
        category = _categories(random, taste, stock)
        stays = random.random(len(category)) < _STICKY
        category = np.where(stays, main[session[block]], category)
        item[block] = _choices(random, taste, category, at_s[block], stock=stock)
    return pl.DataFrame(
        {
            "user": user.astype(np.int32),
            "at_s": at_s,
            "item": item,
            "device": app[session].astype(np.int8),
            "slot": (position > 0).astype(np.int8),  # first home, then product pages
        }
    )


def _categories(random: np.random.Generator, taste: F32, stock: _StockRoom) -> I64:
    """Choose a category for each taste; int [N]."""
    found = []
    for start in range(0, len(taste), _BLOCK):
        score = 2 * _TASTE * taste[start : start + _BLOCK] @ stock.centres.T
        score += random.gumbel(size=score.shape).astype(np.float32)
        found.append(score.argmax(axis=1))
    return np.concatenate(found)


def _choices(
    random: np.random.Generator,
    taste: F32,
    category: I64,
    at_s: I64,
    *,
    stock: _StockRoom,
) -> I32:
    """
    Choose an item of a category for each view: some by weight, of these one by taste.

    Items that are not launched yet are not chosen, unless all items were not.
    """
    ends = np.concatenate([[0.0], stock.cumulated])[stock.first]
    low, high = ends[category][:, None], ends[category + 1][:, None]
    drawn = random.random((len(taste), _LOOKED_AT)) * (high - low) + low
    items = np.searchsorted(stock.cumulated, drawn, side="right")
    # The sums of weights are rounded: the last one may lie in the next category.
    items = np.clip(items, None, stock.first[category + 1][:, None] - 1)
    score = _TASTE * _suits(taste[:, None, :], stock.vectors[items])
    score = score + random.gumbel(size=score.shape)
    score[stock.launch_s[items] > at_s[:, None]] = -1e9
    best = score.argmax(axis=1)
    chosen = items[np.arange(len(items)), best]
    early = stock.launch_s[chosen] > at_s
    oldest = int(stock.launch_s.argmin())
    return np.where(early, oldest, chosen).astype(np.int32)


def _actions(
    random: np.random.Generator,
    views: pl.DataFrame,
    *,
    tastes: F32,
    stock: _StockRoom,
) -> pl.DataFrame:
    """Add carts, purchases and complements; drop most views after a purchase."""
    user, item = views["user"].to_numpy(), views["item"].to_numpy()
    at_s = views["at_s"].to_numpy()
    suits = np.empty(len(views), np.float32)
    for start in range(0, len(views), _BLOCK):
        block = slice(start, start + _BLOCK)
        taste = tastes[user[block], at_s[block] // _S_PER_WEEK]
        suits[block] = _suits(taste, stock.vectors[item[block]])
    in_cart = random.random(len(views)) < _share(_CART_BIAS + _CART_TASTE * suits)
    buys = in_cart & (
        random.random(len(views)) < _share(_BUY_BIAS + _BUY_TASTE * suits)
    )
    other = stock.complement[item]
    follows = buys & (other >= 0) & (random.random(len(views)) < _FOLLOWED)
    follows &= stock.launch_s[other] <= at_s
    latest = tastes.shape[1] * _S_PER_WEEK - 10
    more = views.filter(follows).with_columns(
        pl.Series("item", other[follows]),
        pl.Series("at_s", at_s[follows] + random.integers(30, 600, follows.sum())),
        slot=pl.lit(2, pl.Int8),
    )
    more = more.with_columns(pl.min_horizontal("at_s", pl.lit(latest)).alias("at_s"))
    parts = [(views, 0), (more, 0)]
    parts += [(views.filter(in_cart), 1), (more, 1)]
    parts += [(views.filter(buys), 2), (more, 2)]
    found = pl.concat(
        frame.with_columns(
            at_s=pl.col("at_s") + code * 3,
            slot=pl.lit(code, pl.Int8) if code else pl.col("slot"),
            action=pl.lit(code, pl.Int8),
        )
        for frame, code in parts
    )
    first = (
        found.filter(pl.col("action") == 2)
        .group_by("user", "item")
        .agg(bought_s=pl.col("at_s").min())
    )
    # In the order of the rows, so that equal seeds give equal shops.
    found = found.join(first, on=["user", "item"], how="left", maintain_order="left")
    again = pl.Series(random.random(len(found)) < _VIEWED_AGAIN)
    later = pl.col("at_s") > pl.col("bought_s")
    stays = later.is_null() | ~later | (again & (pl.col("action") == 0))
    return found.filter(stays).drop("bought_s")


def _events(
    found: pl.DataFrame, *, user_ids: tuple[str, ...], item_ids: tuple[str, ...]
) -> pl.DataFrame:
    """Order events by time, and replace numbers by ids and words."""
    found = found.sort("at_s", "user", "action", "item", maintain_order=True)
    # So that events in the same second have different times.
    number = pl.int_range(pl.len(), dtype=pl.Int64)
    event_us = pl.col("at_s") * 1_000_000 + number % 1_000_000
    users, items = pl.Series(user_ids), pl.Series(item_ids)
    words = (
        ("device", pl.Series(DEVICES)),
        ("slot", pl.Series(SLOTS)),
        ("action", pl.Series(ACTIONS)),
    )
    return found.select(
        event_id=pl.format("e{}", (number + 1).cast(pl.String).str.zfill(8)),
        event_time=event_us.cast(pl.Duration("us"))
        + pl.lit(_START).cast(pl.Datetime("us")),
        user_id=users.gather(found["user"]),
        item=items.gather(found["item"]),
        **{name: known.gather(found[name]) for name, known in words},
    )


def _items(stock: _StockRoom, item_ids: tuple[str, ...]) -> pl.DataFrame:
    names = pl.Series([f"c{n:02}" for n in range(1, len(stock.centres) + 1)])
    launched = pl.Series(stock.launch_s * 1_000_000).cast(pl.Duration("us")) + _START
    return pl.DataFrame(
        {
            "item": item_ids,
            "category": names.gather(stock.category),
            "price": stock.price,
            "stock": stock.pieces,
            "launch_time": launched,
        }
    )
