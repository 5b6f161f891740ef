"""Open a product's ladder over a store."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from tollgate.errors import StoreError
from tollgate.features.spec import FeatureSpec
from tollgate.store.breaker import Breaker, Rules
from tollgate.store.cluster import open_store
from tollgate.store.events import Purchases
from tollgate.store.feeds import Feeds
from tollgate.store.ladder import Ladder
from tollgate.store.last_known import LastKnown
from tollgate.store.lists import LookupList
from tollgate.store.lookups import Lookups
from tollgate.store.redis import NoStore, RedisStore
from tollgate.store.scored import Spool
from tollgate.store.table_list import preload
from tollgate.store.tables import Tables

log = logging.getLogger(__name__)

_WARM_ROWS = (1, 8, 32)
_FEED_INTERVAL_US = 1_000_000
_PRELOAD_S = 5.0


class StoreSettings(msgspec.Struct, frozen=True):
    """
    How a step treats its store.

    Attributes:
        deadline_s: How long a batch waits for it.
        deadline_limit_s: The most that a request may let it take.
        breaker: When it is left alone, and how often it is probed.
        last_known_bytes: Memory for last known values.
        last_known_max_age_s: How old one may be. A value misses only what others
            wrote since: a day old, it is still far closer than a default.
        tables_bytes: Memory for numbers out of tables.
        updates: Whether what is scored is written; False leaves that to a stream.
        marks: Whether the purchases' watermark is written with it; False leaves that
            to a stream, which knows how far all purchases have come.
    """

    deadline_s: float = 0.005
    deadline_limit_s: float = 1.0
    breaker: Rules = Rules()
    last_known_bytes: int = 64_000_000
    last_known_max_age_s: float = 86_400.0
    tables_bytes: int = 16_000_000
    updates: bool = True
    marks: bool = True


def open_ladder(
    spec: FeatureSpec,
    url: str,
    *,
    settings: StoreSettings,
    lists: Sequence[LookupList] = (),
    spool: Spool | None = None,
) -> Ladder:
    """
    Open the store and run the whole path dry, so that no caller pays for it.

    Args:
        spec: The product's features.
        url: Address of the store; empty for none: every row is degraded.
        settings: How to treat it.
        lists: What the policy wants to know of each row, in the order of their bits.
        spool: Where rows wait that were not applied.

    Raises:
        InputError: The address is not one of Redis, or a list is of no id of the spec.
    """
    store: RedisStore = NoStore()
    if url:
        store = open_store(
            url,
            deadline_s=settings.deadline_s,
            rules=settings.breaker,
        )
    store.probe()  # which may take longer to connect than a call
    ladder = Ladder(
        spec,
        store,
        last_known=LastKnown(
            settings.last_known_bytes,
            settings.last_known_max_age_s,
            clock=time.monotonic,
        ),
        feeds=Feeds(
            spec.product,
            spec.feeds,
            interval_us=_FEED_INTERVAL_US,
            marks=settings.marks and bool(spec.entities),
        ),
        breaker=Breaker(time.monotonic, random.random, rules=settings.breaker),
        tables=_tables(spec, store, settings),
        lookups=Lookups(spec, lists),
        spool=spool,
        updates=settings.updates,
    )
    for count in _WARM_ROWS:
        names = [b"warm-up-%d" % row for row in range(count)]
        ladder.warm(
            Purchases(
                transaction_id=names,
                entity_id=[names for _ in spec.entities],
                event_time_us=np.full(count, time.time_ns() // 1000, np.int64),
                cents=np.full(count, 1000, np.int64),
            )
        )
    if url and not ladder.counts.calls["answered"]:
        # It may come up later; until then rows are answered degraded.
        log.warning("the store did not answer the warm-up")
    ladder.counts.clear()
    ladder.tables.counts.clear()
    return ladder


def _tables(spec: FeatureSpec, store: RedisStore, settings: StoreSettings) -> Tables:
    """Open a product's tables, with what is to be held in memory there."""
    memory = LastKnown(
        settings.tables_bytes, settings.last_known_max_age_s, clock=time.monotonic
    )
    tables = Tables(spec, memory)
    try:
        preload(spec, memory, store, until_s=time.monotonic() + _PRELOAD_S)
    except StoreError as error:
        log.warning("tables are read as they are wanted: %s", error)
    return tables
