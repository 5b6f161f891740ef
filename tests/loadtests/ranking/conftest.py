"""A small shop, its users' events, and a store that has them."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from loadtests.ranking.bench import (
    ShopContents,
    ShopStore,
    filled_store,
    read_contents,
)
from tests.support.products.small_shop import release_shop, write_shop

ITEMS, USERS, EVENTS_OF_USER = 120, 40, 6
_LAST = datetime.datetime(2024, 5, 1)


@pytest.fixture(scope="package")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A released shop. A busy machine's store may be late."""
    folder = tmp_path_factory.mktemp("shop") / "model_repository"
    spec = write_shop(folder, items=ITEMS)
    config = folder / "shop_candidates/config.pbtxt"
    late = config.read_text().replace('string_value: "20"', 'string_value: "5000"')
    config.write_text(late)
    release_shop(folder, spec)
    return folder


@pytest.fixture(scope="package")
def events() -> pl.DataFrame:
    """Each user views six items, one a minute; i0 is the most popular one."""
    rows = [
        (user, step, 0 if step == 5 else (user * 7 + step * 13) % ITEMS)
        for user in range(USERS)
        for step in range(EVENTS_OF_USER)
    ]
    return pl.DataFrame(
        {
            "event_id": [f"e-{user}-{step}" for user, step, _ in rows],
            "event_time": [
                _LAST - datetime.timedelta(minutes=EVENTS_OF_USER - 1 - step)
                for _, step, _ in rows
            ],
            "user_id": [f"u{user:02}" for user, _, _ in rows],
            "item": [f"i{item}" for _, _, item in rows],
            "action": ["view"] * len(rows),
        },
        schema_overrides={"event_time": pl.Datetime("us")},
    )


@pytest.fixture(scope="package")
def contents(repository: Path, events: pl.DataFrame) -> ShopContents:
    """Describe a product and its events."""
    return read_contents(repository, events, now_us=time.time_ns() // 1000)


@pytest.fixture(scope="module")
def store(
    repository: Path, contents: ShopContents, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShopStore]:
    """
    A store with the events, and prepared lists of half of the users.

    Each file has its own, because a purchase ends the list of its user.
    """
    folder = tmp_path_factory.mktemp("store")
    with filled_store(repository, contents, prepared=20, folder=folder) as found:
        yield found
