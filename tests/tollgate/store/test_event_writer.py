"""Events of feeds and histories are applied in the order that values need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.store.hot_entities import (
    Served,
    busy_history,
    busy_spec,
    known_at,
    serve_after,
)
from tollgate.replay import labels_of, purchases_of
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import RedisStore


def test_events_of_one_write_are_applied_in_the_order_of_time(
    tmp_path: Path, store_url: str, open_store: Callable[..., RedisStore]
) -> None:
    """A batch of several partitions is in any order, and may be delivered again."""
    spec = busy_spec(tmp_path)
    history = busy_history(spec, count=3_000, days=4)
    until_us = int(history.event_time_us[1_999])
    past = known_at(history, until_us)
    store = open_store(store_url)
    writer = EventWriter(spec, store)
    chance = np.random.default_rng(5)
    rows = chance.permutation(len(past))
    landed = writer.purchases(purchases_of(spec, past, rows))
    assert landed.applied.all()
    frauds = chance.permutation(np.flatnonzero(past.label == 1))
    landed = writer.labels(labels_of(spec, past, frauds))
    assert landed.applied.all()
    served = serve_after(spec, history, store, after_us=until_us)
    assert served == Served(rows=1_000, different=0, marked=0)
    # The newest are known, the others are in tiles: nothing is counted again.
    again = writer.purchases(purchases_of(spec, past, rows))
    assert not again.applied.any()
    assert (again.too_late | again.duplicate).all()
