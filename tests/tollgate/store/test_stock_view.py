"""The stock view follows the store's list, and stands while the store is away."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from tests.support.products.small_shop import small_catalogue
from tollgate.errors import StoreError
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.redis.redis_store import NoStore
from tollgate.store.stock_view import StockView

KEY = "tollgate:shop:list:out_of_stock"
PATIENCE_S = 60.0


def view_of(url: str) -> StockView:
    store = open_store(url, deadline_s=5.0)
    return StockView(store, small_catalogue(), product="shop", name="out_of_stock")


def test_listed_items_are_out_of_stock_until_they_leave_the_list(
    tmp_path: Path,
) -> None:
    with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as store:
        view = view_of(server.url)
        view.start()
        assert view.available().all()
        store.sadd(KEY, "i1", "i4", "no-item", b"\xff")
        until_s = time.monotonic() + PATIENCE_S
        while view.available().all():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert view.available().tolist() == [True, False, True, True, False, True]
        assert view.unknown == 2
        store.delete(KEY)
        while not view.available().all():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        view.close()


def test_the_last_view_stands_when_the_list_cannot_be_read(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as store:
        store.sadd(KEY, "i0")
        view = view_of(server.url)
        view.refresh()
        store.delete(KEY)
        store.set(KEY, "text")
        with pytest.raises(StoreError, match="out_of_stock: WRONGTYPE"):
            view.refresh()
        assert view.available().tolist() == [False] + [True] * 5
    with pytest.raises(StoreError):
        view.refresh()
    assert view.available().tolist() == [False] + [True] * 5
    view.close()


def test_without_a_store_all_items_are_in_stock() -> None:
    view = StockView(NoStore(), small_catalogue(), product="shop", name="")
    assert view.available().all()
    view.close()
