"""Open a product's ladder over a store."""

from __future__ import annotations

import logging
import random
import time

import msgspec
import numpy as np

from tollgate.features.spec import FeatureSpec
from tollgate.store.breaker import Breaker, Rules
from tollgate.store.cluster import open_store
from tollgate.store.events import Purchases
from tollgate.store.feeds import Feeds
from tollgate.store.ladder import Ladder
from tollgate.store.last_known import LastKnown
from tollgate.store.redis import NoStore, RedisStore
from tollgate.store.scored import Counts, Spool

log = logging.getLogger(__name__)

_WARM_ROWS = (1, 8, 32)
_FEED_INTERVAL_US = 1_000_000


class StoreSettings(msgspec.Struct, frozen=True):
    """
    How a step treats its store.

    Attributes:
        deadline_s: How long a batch waits for it.
        probe_interval_s: Between probes, while it is away.
        last_known_bytes: Memory for last known values.
        last_known_max_age_s: How old one may be. A value misses only what others
            wrote since: a day old, it is still far closer than a default.
        updates: Whether what is scored is written; False leaves that to a stream.
    """

    deadline_s: float = 0.005
    probe_interval_s: float = 0.25
    last_known_bytes: int = 64_000_000
    last_known_max_age_s: float = 86_400.0
    updates: bool = True


def open_ladder(
    spec: FeatureSpec, url: str, *, settings: StoreSettings, spool: Spool | None = None
) -> Ladder:
    """
    Open the store and run the whole path dry, so that no caller pays for it.

    Args:
        spec: The product's features.
        url: Address of the store; empty for none: every row is degraded.
        settings: How to treat it.
        spool: Where rows wait that were not applied.

    Raises:
        InputError: The address is not one of Redis.
    """
    store: RedisStore = NoStore()
    if url:
        store = open_store(
            url,
            deadline_s=settings.deadline_s,
            probe_interval_s=settings.probe_interval_s,
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
        feeds=Feeds(spec.product, spec.feeds, interval_us=_FEED_INTERVAL_US),
        breaker=Breaker(
            time.monotonic,
            random.random,
            rules=Rules(probe_interval_s=settings.probe_interval_s),
        ),
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
    ladder.counts = Counts()
    return ladder
