"""Open the fallback chain of a product over a store."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from tollgate.errors import StoreError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.store.fallback.circuit_breaker import BreakerRules, CircuitBreaker
from tollgate.store.fallback.fallback_chain import FallbackChain, Spool
from tollgate.store.fallback.last_known import LastKnown
from tollgate.store.id_lists import LookupList
from tollgate.store.in_place_appends import InPlaceAppends
from tollgate.store.lookups import Feeds, Lookups, Tables, preload
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.redis.redis_store import NoStore, RedisStore
from tollgate.store.store_events import Purchases

log = logging.getLogger(__name__)

_WARM_ROWS = (1, 8, 32)
_FEED_INTERVAL_US = 1_000_000
_PRELOAD_S = 5.0


class StoreSettings(msgspec.Struct, frozen=True):
    """
    Configure how a step uses its store.

    Attributes:
        deadline_s: Longest wait of a batch for it.
        deadline_limit_s: Longest deadline that a request may set.
        breaker: Circuit breaker rules: when it opens, and how often it probes.
        last_known_bytes: Memory for last known values.
        last_known_max_age_s: Largest age of one. A value misses only events that others
            wrote since: a day old, it is still far closer than a default.
        tables_bytes: Memory for numbers from tables.
        updates: Write the purchases that are scored; False leaves that to a stream.
        appends: Append purchases in place to last known values, where the store has the
            same; False reads every value.
        marks: Write the purchases' watermark with them; False leaves that to a stream,
            which knows the watermark over all purchases.
    """

    deadline_s: float = 0.005
    deadline_limit_s: float = 1.0
    breaker: BreakerRules = BreakerRules()
    last_known_bytes: int = 64_000_000
    last_known_max_age_s: float = 86_400.0
    tables_bytes: int = 16_000_000
    updates: bool = True
    appends: bool = True
    marks: bool = True


def open_fallback_chain(
    spec: FeatureSpec,
    url: str,
    *,
    settings: StoreSettings,
    lists: Sequence[LookupList] = (),
    spool: Spool | None = None,
) -> FallbackChain:
    """
    Open a store by its address, and the fallback chain over it.

    Args:
        spec: The product's features.
        url: Address of the store; empty for none: every row is degraded.
        settings, lists, spool: See `chain_over`.

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
    return chain_over(spec, store, settings=settings, lists=lists, spool=spool)


def chain_over(
    spec: FeatureSpec,
    store: RedisStore,
    *,
    settings: StoreSettings,
    lists: Sequence[LookupList] = (),
    spool: Spool | None = None,
) -> FallbackChain:
    """
    Run the whole path over a store dry, so that no caller waits for the warm-up.

    Args:
        spec: The product's features.
        store: The store; closed with the chain.
        settings: Settings of the store.
        lists: Lists that the policy uses, in the order of their bits.
        spool: Takes rows that were not applied.

    Raises:
        InputError: A list is of no id of the spec.
    """
    store.probe()  # connecting may take longer than a call
    last_known = LastKnown(
        settings.last_known_bytes,
        settings.last_known_max_age_s,
        clock=time.monotonic,
    )
    chain = FallbackChain(
        spec,
        store,
        last_known=last_known,
        feeds=Feeds(
            spec.product,
            spec.feeds,
            interval_us=_FEED_INTERVAL_US,
            marks=settings.marks and bool(spec.entities),
        ),
        breaker=CircuitBreaker(time.monotonic, random.random, rules=settings.breaker),
        tables=_tables(spec, store, settings),
        lookups=Lookups(spec, lists),
        spool=spool,
        updates=settings.updates,
        appends=InPlaceAppends(last_known) if settings.appends else None,
    )
    for count in _WARM_ROWS:
        names = [b"warm-up-%d" % row for row in range(count)]
        chain.warm(
            Purchases(
                transaction_id=names,
                entity_id=[names for _ in spec.entities],
                event_time_us=np.full(count, time.time_ns() // 1000, np.int64),
                cents=np.full(count, 1000, np.int64),
            )
        )
    if not (isinstance(store, NoStore) or chain.counts.calls["answered"]):
        # The store may come up later; until then answers are degraded.
        log.warning("the store did not answer the warm-up")
    chain.counts.clear()
    chain.tables.counts.clear()
    return chain


def _tables(spec: FeatureSpec, store: RedisStore, settings: StoreSettings) -> Tables:
    """Open a product's tables, and read those that are held in memory."""
    memory = LastKnown(
        settings.tables_bytes, settings.last_known_max_age_s, clock=time.monotonic
    )
    tables = Tables(spec, memory)
    try:
        preload(spec, memory, store, until_s=time.monotonic() + _PRELOAD_S)
    except StoreError as error:
        log.warning("tables are read when they are needed: %s", error)
    return tables
