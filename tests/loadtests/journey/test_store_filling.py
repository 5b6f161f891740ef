"""A history in the layouts of the two services that have their own."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import redis

from loadtests.baseline.standalone.history import ENTRY
from loadtests.journey.stages import fill_naive, fill_standalone
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import history_of

_DAY_US = 86_400_000_000


def test_both_stores_keep_the_same_purchases(
    simulated: pl.DataFrame,
    spec: FeatureSpec,
    store_url: str,
    redis_client: redis.Redis,
) -> None:
    """Those of 31 days of every customer, of 38 of every terminal, by time."""
    history = history_of(simulated, spec=spec, source="a test")
    end_us = int(history.event_time_us.max())
    fill_naive(history, store_url)
    naive = {key: redis_client.zrange(key, 0, -1) for key in redis_client.scan_iter()}
    redis_client.flushall()
    fill_standalone(history, store_url)
    assert set(redis_client.scan_iter()) == set(naive)
    retained_days = {"customer": 31, "terminal": 38}
    for entity, days in retained_days.items():
        ids = np.array(history.entity_id[f"{entity}_id"])
        late = history.event_time_us > end_us - days * _DAY_US
        for name in np.unique(ids[late]).tolist():
            key = f"{entity}:".encode() + name
            rows = np.flatnonzero((ids == name) & late)
            rows = rows[np.argsort(history.event_time_us[rows], kind="stable")]
            entries = np.frombuffer(b"".join(redis_client.zrange(key, 0, -1)), ENTRY)
            entries_read = [json.loads(one) for one in naive.pop(key)]
            times = history.event_time_us[rows].tolist()
            assert entries["time_us"].tolist() == times
            assert [one["time"] for one in entries_read] == times
            assert sum(one["fraud"] for one in entries_read) == entries["fraud"].sum()
            assert entries["fraud"].sum() == (history.label[rows] == 1).sum()
            assert sorted(round(one["amount"] * 100) for one in entries_read) == sorted(
                entries["cents"].tolist()
            )
            assert sorted(entries["cents"]) == sorted(history.cents[rows])
    assert not naive
