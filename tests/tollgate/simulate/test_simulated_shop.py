"""A simulated shop: a long tail, tastes, complements, purchases that are final."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.simulate.shop import Shop, respond, simulate_shop


@pytest.fixture(scope="module")
def shop() -> Shop:
    """Simulate 400 users and 300 items."""
    return simulate_shop(seed=3)


def _purchases(shop: Shop) -> list[tuple[str, str]]:
    """List user and item of each purchase, in the order of time."""
    bought = shop.events.filter(pl.col("action") == "purchase")
    return bought.select("user_id", "item").rows()


def test_equal_arguments_give_equal_shops(shop: Shop) -> None:
    """And another seed another shop."""
    again, other = simulate_shop(seed=3), simulate_shop(seed=4)
    assert again.events.equals(shop.events)
    assert again.items.equals(shop.items)
    assert not other.events.equals(shop.events)


def test_events_are_in_the_order_of_time_with_ids_of_their_own(shop: Shop) -> None:
    """No value is missing; no two events have the same id."""
    events = shop.events
    assert events["event_time"].is_sorted()
    assert events["event_id"].n_unique() == len(events)
    assert events.null_count().sum_horizontal().item() == 0
    assert set(events["action"]) == {"view", "cart", "purchase"}
    assert set(events["item"]) <= set(shop.items["item"])


def test_a_few_items_have_most_of_the_events(shop: Shop) -> None:
    """A tenth of the items has more events than the less popular half."""
    counts = sorted(Counter(shop.events["item"]).values(), reverse=True)
    assert sum(counts[:30]) > sum(counts[150:])
    assert len(counts) > 250  # but nearly every item has some


def test_views_are_more_than_carts_and_these_more_than_purchases(shop: Shop) -> None:
    """Each purchase has its cart before it."""
    counts = Counter(shop.events["action"])
    assert counts["view"] > counts["cart"] > counts["purchase"] > 1_000
    carts = shop.events.filter(pl.col("action") == "cart")
    assert set(_purchases(shop)) <= set(carts.select("user_id", "item").rows())


def test_nobody_buys_an_item_twice(shop: Shop) -> None:
    """So a purchased item is a bad recommendation."""
    assert max(Counter(_purchases(shop)).values()) == 1


def test_complements_are_bought_together_more_often_than_by_chance(shop: Shop) -> None:
    """Count pairs of purchases of a user, against independent purchases."""
    baskets: dict[str, set[str]] = {}
    for user, item in _purchases(shop):
        baskets.setdefault(user, set()).add(item)
    sold = Counter(item for items in baskets.values() for item in items)
    together, expected = 0, 0.0
    for first, second in enumerate(shop.complement.tolist()):
        if second < 0:
            continue
        one, other = shop.item_ids[first], shop.item_ids[second]
        together += sum(one in items and other in items for items in baskets.values())
        expected += sold[one] * sold[other] / len(baskets)
    assert together > 3 * expected > 0


def test_users_view_items_that_suit_them(shop: Shop) -> None:
    """Compared with the same views dealt to other users."""
    users = shop.events["user_id"].str.slice(1).cast(pl.Int32).to_numpy() - 1
    items = shop.events["item"].str.slice(1).cast(pl.Int32).to_numpy() - 1
    taste = shop.tastes[:, -1]
    own = (taste[users] * shop.vectors[items]).sum(axis=1).mean()
    dealt = np.random.default_rng(0).permutation(users)
    others = (taste[dealt] * shop.vectors[items]).sum(axis=1).mean()
    assert own > others + 0.2


def test_no_event_is_older_than_the_launch_of_its_item(shop: Shop) -> None:
    """And some items are launched during the simulated time."""
    joined = shop.events.join(shop.items, on="item")
    assert (joined["event_time"] >= joined["launch_time"]).all()
    assert shop.items["launch_time"].n_unique() > 10


def test_lists_that_suit_get_more_clicks_than_popular_ones(shop: Shop) -> None:
    """The first place gets more than the tenth, and no purchase is without a click."""
    seen = Counter(shop.events["item"])
    place = {one: at for at, one in enumerate(shop.item_ids)}
    popular = np.array([place[item] for item, _ in seen.most_common(10)], np.int32)
    users = np.arange(400, dtype=np.int32)
    suiting = np.argsort(-(shop.tastes[:, -1] @ shop.vectors.T), axis=1)[:, :10]
    good = respond(shop, users, suiting.astype(np.int32), seed=1)
    usual = respond(shop, users, np.tile(popular, (400, 1)), seed=1)
    assert good.clicked.sum() > 1.5 * usual.clicked.sum()
    assert good.clicked[:, 0].sum() > good.clicked[:, 9].sum()
    assert not (good.purchased & ~good.clicked).any()
    nothing = respond(shop, users, np.full((400, 5), -1, np.int32), seed=1)
    assert not nothing.clicked.any()


@pytest.mark.parametrize(
    "wrong", [{"users": 1}, {"items": 3}, {"weeks": 0}, {"views_per_user": 0.5}]
)
def test_an_argument_out_of_range_is_refused_by_its_name(
    wrong: dict[str, int],
) -> None:
    """The error names the argument and the limits."""
    with pytest.raises(InputError, match=next(iter(wrong))):
        simulate_shop(**wrong)
