"""Busy ids: features whose entities have tiles, a history, and purchases served."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.replay import labels_of, purchases_of, spans
from tollgate.schema import Degraded
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore

HOUR_US = 3_600_000_000
START_US = 1_700_000_000_000_000

FEATURES = """\
version: 1
product: busy
lateness: 1d
entities:
  customer: {{key: customer_id, hop: {customer}}}
  terminal: {{key: terminal_id, hop: {terminal}, delay: 2d}}
fields:
  - {{name: items, type: number, decimals: 2}}
features:
  - {{name: amount, field: amount}}
  - {{name: n_1h, entity: customer, aggregate: count, window: 1h}}
  - {{name: n_1d, entity: customer, aggregate: count, window: 1d}}
  - {{name: spent, entity: customer, aggregate: sum, window: 7d}}
  - {{name: mean, entity: customer, aggregate: mean, window: 7d}}
  - {{name: most, entity: customer, aggregate: max, window: 1d}}
  - {{name: least, entity: customer, aggregate: min, window: 7d}}
  - {{name: last, entity: customer, aggregate: last, window: 7d, default: -1}}
  - {{name: gap, time_since_last: customer, window: 7d, default: -1}}
  - {{name: basket, entity: customer, aggregate: mean, window: 7d, of: items}}
  - {{name: fewest, entity: customer, aggregate: min, window: 1d, of: items}}
  - {{name: largest, entity: customer, aggregate: max, window: 7d, of: items}}
  - {{name: items_last, entity: customer, aggregate: last, window: 7d, of: items}}
  - {{name: sold, entity: terminal, aggregate: count, window: 1d}}
  - {{name: frauds, entity: terminal, aggregate: flagged, window: 1d}}
  - {{name: risk, entity: terminal, aggregate: share, window: 7d}}
"""


MOMENTS = """\
  - {name: spread, entity: customer, aggregate: std, window: 7d}
  - {name: spread_items, entity: customer, aggregate: std, window: 1d, of: items}
  - {name: trend, entity: customer, aggregate: slope, window: 7d, of: items}
  - {name: trend_sold, entity: terminal, aggregate: slope, window: 1d}
"""


def busy_spec(
    folder: Path, *, customer: str = "1h", terminal: str = "1h", more: str = ""
) -> FeatureSpec:
    """Write the features above with two hops, and others after them, and read them."""
    path = folder / "features.yaml"
    path.write_text(FEATURES.format(customer=customer, terminal=terminal) + more)
    return load_spec(path)


def with_hop(spec_path: Path, folder: Path, hop: str) -> FeatureSpec:
    """Write a features.yaml with another hop of all entities, and read it."""
    text = spec_path.read_text()
    assert "hop: 0" in text
    path = folder / "features.yaml"
    path.write_text(text.replace("hop: 0", f"hop: {hop}"))
    return load_spec(path)


def busy_history(
    spec: FeatureSpec, *, count: int, days: int, seed: int = 1, step_us: int = 1
) -> History:
    """
    Make purchases of a few ids, in the order of time, at multiples of `step_us`.

    One in ten is a fraud that becomes known within five days; every third lacks its
    number of items.
    """
    source = np.random.default_rng(seed)
    time_us = np.sort(source.integers(0, days * 24 * HOUR_US // step_us, count))
    time_us = time_us * step_us + START_US
    known_us = time_us + source.integers(0, 5 * 24 * HOUR_US, count)
    items = np.round(source.normal(0, 1000, count), 2)
    table = pl.DataFrame(
        {
            "transaction_id": [f"x{one}" for one in source.permutation(count)],
            "event_time": pl.Series(time_us).cast(pl.Datetime("us")),
            "customer_id": [f"c{one}" for one in source.geometric(0.6, count)],
            "terminal_id": [f"t{one}" for one in source.geometric(0.6, count)],
            "amount": np.round(source.random(count) * 100, 2),
            "items": np.where(source.random(count) < 0.3, np.nan, items),
            "label": (source.random(count) < 0.1).astype(np.int8),
            "label_time": pl.Series(known_us).cast(pl.Datetime("us")),
        }
    )
    return history_of(table, spec=spec, source="")


def known_at(history: History, time_us: int) -> History:
    """Select the purchases up to a time, with the frauds that were known by then."""
    past = history.take(np.flatnonzero(history.event_time_us <= time_us))
    known = (past.label == 1) & (past.label_time_us <= time_us)
    return msgspec.structs.replace(past, label=known.astype(np.int8))


class Served(NamedTuple):
    """Count rows: served, with another vector than offline, with a mark."""

    rows: int
    different: int
    marked: int


def serve_after(
    spec: FeatureSpec, history: History, store: RedisStore, *, after_us: int
) -> Served:
    """
    Score the purchases after a time as they happen, and compare them with offline.

    A cold start is no mark.
    """
    expected = build(spec, history)
    online = OnlineFeatures(spec, store)
    rows = different = marked = 0
    for span in spans(spec, history, batch_rows=32):
        new = span.labels[history.label_time_us[span.labels] > after_us]
        online.label(labels_of(spec, history, new))
        chosen = span.purchases[history.event_time_us[span.purchases] > after_us]
        if len(chosen):
            batch = purchases_of(spec, history, chosen)
            (found,) = online.score([batch], write=[True])
            marks = found.degraded & ~np.uint32(Degraded.COLD_START)
            different += int((found.features != expected[chosen]).any(axis=1).sum())
            marked += int(np.count_nonzero(marks))
            rows += len(chosen)
    return Served(rows, different, marked)


def serve_until(
    spec: FeatureSpec,
    history: History,
    store: RedisStore,
    *,
    until_us: int,
    after_us: int = 0,
) -> None:
    """Apply the purchases between two times, and the labels, as they happen."""
    past = known_at(history, until_us)
    online = OnlineFeatures(spec, store)
    for span in spans(spec, past, batch_rows=32):
        new = span.labels[past.label_time_us[span.labels] > after_us]
        online.label(labels_of(spec, past, new))
        chosen = span.purchases[past.event_time_us[span.purchases] > after_us]
        online.load(purchases_of(spec, past, chosen))
