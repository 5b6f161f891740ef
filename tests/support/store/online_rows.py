"""Purchases as tuples, and what the online path makes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import redis

from tollgate.store.online_features import OnlineFeatures, Vectors
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases

OpenStore = Callable[..., RedisStore]

DAY_US = 86_400_000_000
NOW_US = 1_600_000_000_000_000

# (transaction, customer, terminal, time, cents)
Row = tuple[str, str, str, int, int]


def purchases(*rows: Row) -> Purchases:
    """Purchases, one tuple each."""
    one, customer, terminal, time_us, cents = zip(*rows, strict=True)
    return Purchases(
        transaction_id=[text.encode() for text in one],
        entity_id=[[text.encode() for text in ids] for ids in (customer, terminal)],
        event_time_us=np.array(time_us, np.int64),
        cents=np.array(cents, np.int64),
    )


def score(online: OnlineFeatures, *rows: Row, write: bool = True) -> Vectors:
    """Score one batch."""
    (vectors,) = online.score([purchases(*rows)], write=[write])
    return vectors


def named(online: OnlineFeatures, vectors: Vectors, name: str) -> list[float]:
    """One feature of every row."""
    return vectors.features[:, online.spec.feature_names.index(name)].tolist()


def stored(client: redis.Redis) -> dict[bytes, bytes]:
    """All values, by key."""
    return {key: client.get(key) for key in client.scan_iter()}


def bits(vectors: Vectors) -> list[int]:
    """The degraded bits of every row."""
    return vectors.degraded.tolist()
