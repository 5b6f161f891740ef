"""The simulated shop, with the product that is created of its events; cached."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import polars as pl

from loadtests.harness import say, temporary_folder
from loadtests.results.surroundings import CHECKOUT
from tollgate.errors import ServerError
from tollgate.simulate import write
from tollgate.simulate.shop import simulate_shop

PRODUCT = "shop"
CACHE = CHECKOUT / ".tollgate" / "loadtests"
_TOLLGATE = Path(sys.executable).with_name("tollgate")
_WEEKS, _VIEWS, _SEED = 8, 40.0, 1


class ShopFiles(msgspec.Struct, frozen=True):
    """
    The files of a shop.

    Attributes:
        repository: Model repository with the product.
        table: Its events: event_id, event_time, user_id, item, action, category.
    """

    repository: Path
    table: Path

    def events(self) -> pl.DataFrame:
        """Read the events."""
        return pl.read_parquet(self.table)


def cached_shop(*, users: int, items: int, cache: Path = CACHE) -> ShopFiles:
    """
    Simulate a shop and create its product, unless an earlier call did.

    Args:
        users: Number of users.
        items: Number of items.
        cache: Folder of the shops; remove it after a change of what creates products.

    Raises:
        ServerError: The product could not be created.
    """
    folder = cache / f"shop-{users}-{items}"
    files = ShopFiles(folder / "model_repository", folder / "events.parquet")
    if folder.exists():
        return files
    with temporary_folder("shop") as made:
        say(f"creating the product of {users:,} users and {items:,} items: minutes")
        _create(made, users=users, items=items)
        cache.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, partial := folder.with_suffix(".partial"))
        partial.rename(folder)
    return files


def _create(folder: Path, *, users: int, items: int) -> None:
    shop = simulate_shop(
        users=users, items=items, weeks=_WEEKS, views_per_user=_VIEWS, seed=_SEED
    )
    categories = shop.items.select("item", "category")
    table = folder / "events.parquet"
    write(shop.events.join(categories, on="item", maintain_order="left"), table)
    (folder / "model_repository").mkdir()
    command = [
        *(str(_TOLLGATE), "product", "new", PRODUCT, "--interactions", str(table)),
        *("--user", "user_id", "--item", "item", "--time", "event_time"),
        *("--action", "action", "--category", "category"),
        *("--repository", str(folder / "model_repository")),
    ]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise ServerError("tollgate product new", done.stderr.strip())
