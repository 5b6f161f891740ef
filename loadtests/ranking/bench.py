"""The shop under test: its product, its users' events, its store and its server."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.harness import say
from loadtests.ranking.shop import PRODUCT
from loadtests.servers.proxy import Proxy
from tollgate.backfill.prepared_lists import (
    PreparedRelease,
    open_ranking_release,
    prepare_lists,
)
from tollgate.errors import InputError, StoreError
from tollgate.features.spec.feature_spec import FeatureSpec, all_fields
from tollgate.load.store_contents import compact_store
from tollgate.repository.releases.served_versions import served_policy, served_spec
from tollgate.repository.slo import Form
from tollgate.schema import ACTION, ITEM, hash_words
from tollgate.server.processes.environment import free_port
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.store.event_writer import EventWriter
from tollgate.store.id_lists import list_key
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.store_events import Purchases
from tollgate_client import RECOMMENDER_OPTIONS, FallbackItems, Options
from tollgate_client.contract import EXCLUDE, SHOP_FIELDS

if TYPE_CHECKING:
    import polars as pl

_LOAD_DEADLINE_S = 30.0
_AT_ONCE = 20_000  # events per call of the writer
_OLD_US = 60_000_000  # age of the newest event when the load begins
_LIFE_US = 24 * 3_600_000_000  # of a prepared list: longer than any run
_OWN_ITEMS = 150  # of the caller's own list: the largest list and its exclusions


class ShopContents(msgspec.Struct, frozen=True, eq=False):
    """
    The users of a shop, their events, and what its product says of them.

    Attributes:
        spec: Features of the product.
        stock: Key of the list of items out of stock.
        user_ids: Ids of the users with events.
        popular: Ids of the items, those with most events first.
        events: In the order of time, at most as many of a user as the store keeps.
    """

    spec: FeatureSpec
    stock: str
    user_ids: list[str]
    popular: list[str]
    events: Purchases

    @property
    def options(self) -> Options:
        """Return the options of a client of this product."""
        own = {*all_fields(self.spec), EXCLUDE}
        fields = {name: kind for name, kind in SHOP_FIELDS.items() if name in own}
        return dataclasses.replace(RECOMMENDER_OPTIONS, fields=fields)

    def __str__(self) -> str:
        """Describe the events as text."""
        return (
            f"{len(self.events):,} events of {len(self.user_ids):,} users "
            f"with {len(self.popular):,} items"
        )

    def fill(self, store_url: str) -> None:
        """
        Apply the events to a store as a feed does.

        Raises:
            StoreError: The store does not answer, or refuses an event.
        """
        store = open_store(store_url, deadline_s=_LOAD_DEADLINE_S)
        writer = EventWriter(self.spec, store)
        for start in range(0, len(self.events), _AT_ONCE):
            part = _part(self.events, slice(start, start + _AT_ONCE))
            refused = writer.purchases(part).refused()
            if refused:
                row, reason = refused[0]
                raise StoreError(f"{part.transaction_id[row].decode()}: {reason}")
        store.close()

    def own_list(self, *, without: frozenset[str] = frozenset()) -> FallbackItems:
        """Return the caller's own list: popular items that are in stock."""
        items = [item for item in self.popular if item not in without]
        return FallbackItems(tuple(items[:_OWN_ITEMS]))


def read_contents(
    repository: Path, events: pl.DataFrame, *, now_us: int
) -> ShopContents:
    """
    Read what a product says, and move events so that the newest is a minute old.

    Args:
        repository: Has the product, with a release.
        events: event_id, event_time (datetime), user_id, item, action.
        now_us: Time at which the load begins, µs.

    Raises:
        InputError: The product has no list of items out of stock, or shows bought items
            again.
    """
    import polars as pl

    spec = served_spec(repository, product=PRODUCT)
    policy = served_policy(repository, product=PRODUCT)
    rules = policy.ranking
    if rules is None or not rules.stock or not rules.bought_s:
        problem = "its policy has no `stock` or no `bought`, which the test observes"
        raise InputError(str(repository), problem, where=PRODUCT)
    counts = events["item"].value_counts()
    popular = counts.sort("count", "item", descending=[True, False])
    (entity,) = spec.entities
    frame = events.sort("event_time").group_by("user_id").tail(entity.cap)
    frame = frame.sort("event_time", "event_id")
    time_us = frame["event_time"].dt.epoch("us").to_numpy().astype(np.int64)
    time_us += now_us - _OLD_US - int(time_us.max())
    return ShopContents(
        spec=spec,
        stock=list_key(PRODUCT, rules.stock).decode(),
        user_ids=sorted(frame["user_id"].unique().to_list()),
        popular=popular["item"].to_list(),
        events=Purchases(
            transaction_id=_bytes(frame["event_id"].cast(pl.String)),
            entity_id=[_bytes(frame["user_id"])],
            event_time_us=time_us,
            cents=np.zeros(len(frame), np.int64),
            fields={name: hash_words(_bytes(frame[name])) for name in (ITEM, ACTION)},
        ),
    )


def _bytes(column: pl.Series) -> list[bytes]:
    return [one.encode() for one in column.to_list()]


def _part(events: Purchases, rows: slice) -> Purchases:
    return Purchases(
        transaction_id=events.transaction_id[rows],
        entity_id=[one[rows] for one in events.entity_id],
        event_time_us=events.event_time_us[rows],
        cents=events.cents[rows],
        fields={name: one[rows] for name, one in events.fields.items()},
    )


class ShopStore(msgspec.Struct, frozen=True):
    """
    A store with the events of users, and prepared lists of some of them.

    Attributes:
        prepared: Ids of the users with a prepared list.
        others: Ids of the users without one.
    """

    redis: EmbeddedRedis
    contents: ShopContents
    release: PreparedRelease
    prepared: list[str]
    others: list[str]

    def prepare(self, users: Sequence[str]) -> None:
        """
        Prepare the lists of users where they do not hold any more.

        Raises:
            StoreError: The store does not answer.
        """
        store = open_store(self.redis.url, deadline_s=_LOAD_DEADLINE_S)
        ids = [one.encode() for one in users]
        prepare_lists(self.release, store, ids, life_us=_LIFE_US)
        store.close()


class RankingBench(msgspec.Struct, frozen=True):
    """A server of the product; the store is behind the proxy if there is one."""

    store: ShopStore
    server: Embedded
    form: Form
    proxy: Proxy | None

    @property
    def contents(self) -> ShopContents:
        """Return what product and events say."""
        return self.store.contents

    @property
    def redis(self) -> EmbeddedRedis:
        """Return the store's process."""
        return self.store.redis


@contextlib.contextmanager
def filled_store(
    repository: Path, contents: ShopContents, *, prepared: int, folder: Path
) -> Iterator[ShopStore]:
    """
    Start a store that has the users' events and prepared lists.

    Args:
        prepared: Number of users, chosen at random, whose lists are prepared.
        folder: For the store's files.

    Raises:
        TollgateError: The release cannot be read, or the store does not answer.
    """
    users = random.Random(0).sample(contents.user_ids, len(contents.user_ids))
    with EmbeddedRedis(folder / "store") as redis:
        say(f"filling the store with {contents}")
        contents.fill(redis.url)
        store = ShopStore(
            redis=redis,
            contents=contents,
            release=open_ranking_release(repository, PRODUCT),
            prepared=users[:prepared],
            others=users[prepared:],
        )
        say(f"preparing the lists of {prepared:,} users")
        store.prepare(store.prepared)
        compact_store(redis.url)
        yield store


@contextlib.contextmanager
def open_bench(
    repository: Path,
    store: ShopStore,
    *,
    folder: Path,
    form: Form,
    behind_proxy: bool = False,
) -> Iterator[RankingBench]:
    """
    Serve the product over a filled store.

    Args:
        folder: For the server's state; no other bench may use it.
        behind_proxy: True if the store is behind a proxy that can slow it.

    Raises:
        TollgateError: The product cannot be served.
    """
    with contextlib.ExitStack() as stack:
        proxy, store_url = None, store.redis.url
        if behind_proxy:
            folder.mkdir(parents=True, exist_ok=True)
            place = folder / "proxy.sock"
            proxy = stack.enter_context(Proxy(store.redis.socket_path, listen=place))
            store_url = proxy.url
        server = stack.enter_context(
            serve(
                repository,
                products=[PRODUCT],
                state=folder / "state",
                store_url=store_url,
                form=form,
                # Fixed ports, so that a restarted server has them too.
                grpc_port=free_port("127.0.0.1"),
                metrics_port=free_port("127.0.0.1"),
            )
        )
        yield RankingBench(store, server, form, proxy)


@contextlib.contextmanager
def out_of_stock(store: ShopStore, *, most: int) -> Iterator[frozenset[str]]:
    """Put every fourth of the most popular items out of stock during the block."""
    import redis

    contents, url = store.contents, store.redis.url
    items = frozenset(contents.popular[: 4 * most : 4])
    with redis.Redis.from_url(url, socket_timeout=_LOAD_DEADLINE_S) as client:
        client.sadd(contents.stock, *items)
        yield items
        client.delete(contents.stock)


def purchase(user: str, item: str, *, time_us: int) -> Purchases:
    """Make the event of a purchase."""
    return Purchases(
        transaction_id=[f"purchase-{item}-{time_us}".encode()],
        entity_id=[[user.encode()]],
        event_time_us=np.array([time_us], np.int64),
        cents=np.zeros(1, np.int64),
        fields={
            ITEM: _hashes(item),
            ACTION: _hashes("purchase"),
        },
    )


def _hashes(word: str) -> npt.NDArray[np.int64]:
    return hash_words([word.encode()])
