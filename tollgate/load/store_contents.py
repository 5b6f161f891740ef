"""Fill a store with a history, as a product's store has after its first weeks."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tollgate.errors import ServerError
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.replay import labels_of, purchases_of, spans
from tollgate.repository.releases.release_file import read_release
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore

if TYPE_CHECKING:
    import redis

# Whole weeks, so that the traffic after it keeps its weekends, and more than the 38
# days that the longest window, the delay and the lateness of the fraud product reach
# back.
HISTORY_DAYS = 42
_LOAD_DEADLINE_S = 30.0
_COMPACT_S = 60.0
# Product, hash of its state, entity; not feeds, lists, tables, stored decisions.
_ENTITY = re.compile(rb"tollgate:[^:]+:[0-9a-f]{16}:")


def served_spec(repository: Path) -> FeatureSpec:
    """
    Read the features of the release that the fraud product serves.

    Raises:
        TollgateError: There is no release, or it cannot be read.
    """
    step = repository / "fraud_features"
    versions = read_release(repository, product="fraud").versions
    return load_spec(step / str(versions[step.name]) / SPEC_FILE)


def simulated_history(
    spec: FeatureSpec, *, customers: int, terminals: int, days: int
) -> History:
    """Simulate the purchases that the store holds before the load."""
    from tollgate.simulate import simulate

    # A small map, for a small population: every customer reaches a terminal.
    radius = 5.0 if terminals >= 10_000 else 30.0
    frame = simulate(customers=customers, terminals=terminals, days=days, radius=radius)
    return history_of(frame, spec=spec, source="simulated history")


def fill_store(spec: FeatureSpec, history: History, *, store_url: str) -> None:
    """
    Apply a history and its labels, as a feed does.

    Raises:
        StoreError: The store has no answer.
    """
    online = OnlineFeatures(spec, RedisStore(store_url, deadline_s=_LOAD_DEADLINE_S))
    for span in spans(spec, history):
        if len(span.labels):
            online.label(labels_of(spec, history, span.labels))
        online.load(purchases_of(spec, history, span.purchases))


def compact_store(store_url: str) -> None:
    """
    Let the store compact its file now, so that it does not during the measurement.

    Raises:
        ServerError: The compaction does not end.
    """
    import redis

    with redis.Redis.from_url(store_url) as store:
        _wait_for_rewrite(store)
        store.bgrewriteaof()
        _wait_for_rewrite(store)


def _wait_for_rewrite(store: redis.Redis) -> None:
    until = time.monotonic() + _COMPACT_S
    while time.monotonic() < until:
        persistence = store.info("persistence")
        if not (
            persistence["aof_rewrite_in_progress"]
            or persistence["aof_rewrite_scheduled"]
        ):
            return
        time.sleep(0.1)
    raise ServerError("redis", f"did not compact its file in {_COMPACT_S:g} s")


def values_of(url: str) -> dict[bytes, bytes]:
    """Read every entity's value, and no other data of a product in its store."""
    import redis

    with redis.Redis.from_url(url) as client:
        keys = [
            key
            for key in client.scan_iter(b"tollgate:*", count=10_000)
            if _ENTITY.match(key)
        ]
        return dict(zip(keys, client.mget(keys), strict=True)) if keys else {}
