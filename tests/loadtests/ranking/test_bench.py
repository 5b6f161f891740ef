"""Events of a table become those of a store, a minute old at the newest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from loadtests.ranking.bench import read_contents
from tollgate.errors import InputError
from tollgate.policy import POLICY_FILE
from tollgate.schema import hash_words

NOW_US = 1_760_000_000_000_000


def test_events_keep_their_distances(repository: Path, events: pl.DataFrame) -> None:
    found = read_contents(repository, events, now_us=NOW_US)
    assert len(found.events) == len(events) == 240
    assert found.events.event_time_us.max() == NOW_US - 60_000_000
    assert (np.diff(found.events.event_time_us) >= 0).all()
    assert np.ptp(found.events.event_time_us) == 5 * 60_000_000
    assert found.popular[0] == "i0"
    assert len(found.user_ids) == 40
    row = found.events.transaction_id.index(b"e-3-2")
    assert found.events.entity_id[0][row] == b"u03"
    assert found.events.fields["item"][row] == hash_words([b"i47"])[0]  # 3 * 7 + 2 * 13
    assert str(found) == f"240 events of 40 users with {len(found.popular)} items"


def test_only_events_that_the_store_keeps_are_loaded(
    repository: Path, events: pl.DataFrame
) -> None:
    """The newest 64 of a user."""
    many = pl.concat(
        events.filter(pl.col("user_id") == "u01").with_columns(
            pl.format("{}-{}", "event_id", pl.lit(number)).alias("event_id"),
            pl.col("event_time") - pl.duration(hours=number),
        )
        for number in range(20)
    )
    found = read_contents(repository, many, now_us=NOW_US)
    assert len(found.events) == 64
    newest = many.sort("event_time")["event_id"][-1]
    assert found.events.transaction_id[-1] == newest.encode()


def test_the_own_list_has_no_item_out_of_stock(
    repository: Path, events: pl.DataFrame
) -> None:
    found = read_contents(repository, events, now_us=NOW_US)
    own = found.own_list(without=frozenset(found.popular[:2]))
    assert own.items == tuple(found.popular[2:])


def test_a_product_without_a_stock_list_is_refused(
    repository: Path, events: pl.DataFrame
) -> None:
    path = repository / "shop_ranking/1" / POLICY_FILE
    text = path.read_text()
    path.write_text(text.replace("  stock: out_of_stock\n", ""))
    try:
        with pytest.raises(InputError, match="shop: its policy has no `stock`"):
            read_contents(repository, events, now_us=NOW_US)
    finally:
        path.write_text(text)
