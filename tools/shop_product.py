"""
Make the product `shop` of model_repository from simulated events.

    python tools/shop_product.py

500 users view, put into the cart and buy 800 items for eight weeks; the product is the
one that `tollgate product new --interactions` creates of these events. With more items
its files would be larger than 3 MB. Simulation and training are seeded: on the same
kind of processor, the files differ from those of an earlier run only in the time and
the speed of the conversion, in the card that reports them, and in their hashes. If
nothing else differs, the repository stays as it is.

A change of slo.yaml also changes the alerts of the chart:

    tollgate alerts --out helm/tollgate/files/alerts
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
from committed_product import finish_committed, replace_committed

from tollgate.product.interactions import InteractionChoices, create_interactions
from tollgate.simulate import write
from tollgate.simulate.shop import Shop, simulate_shop

PRODUCT = "shop"
TABLE = "events.parquet"
ORIGIN = "First written by tools/shop_product.py, from simulated events"
REASON = "first release: trained on simulated events"


def main() -> None:
    """Create the product, and replace that of the repository if it differs."""
    replace_committed(PRODUCT, create)


def simulated_shop() -> Shop:
    """Simulate the shop that the product is made from."""
    return simulate_shop(users=500, items=800, weeks=8, views_per_user=40, seed=7)


def simulated_events() -> pl.DataFrame:
    """Return its events, each with the category of its item."""
    shop = simulated_shop()
    items = shop.items.select("item", "category")
    return shop.events.join(items, on="item", maintain_order="left")


def create(repository: Path, folder: Path) -> None:
    """
    Create the product in an empty repository, as it is committed.

    Args:
        repository: An empty folder.
        folder: Where to write the events that it is made from.
    """
    table = folder / TABLE
    write(simulated_events(), table)
    choices = InteractionChoices(
        product=PRODUCT,
        table=table,
        user="user_id",
        item="item",
        time="event_time",
        action="action",
        category="category",
    )
    create_interactions(
        choices,
        repository=repository,
        report=lambda step, result: print(f"{step}: {result}", flush=True),
    )
    finish_committed(repository, PRODUCT, table=TABLE, origin=ORIGIN, reason=REASON)


if __name__ == "__main__":
    main()
