"""Put a history into the stores of the first two services, each in its own layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from loadtests.baseline.phase1.history import (
    ENTRY,
    KEPT_CUSTOMER_US,
    KEPT_TERMINAL_US,
    id_of,
)
from tollgate.history import History

_AT_ONCE = 500  # keys in one round trip
_KEPT_US = {"customer": KEPT_CUSTOMER_US, "terminal": KEPT_TERMINAL_US}

Written = Callable[[npt.NDArray[np.int64]], list[bytes]]


def fill_naive(history: History, store_url: str) -> None:
    """Write JSON, as the `naive` service does."""
    ids = history.transaction_id

    def written(rows: npt.NDArray[np.int64]) -> list[bytes]:
        return [
            json.dumps(
                {
                    "id": ids[row].decode(),
                    "time": int(history.event_time_us[row]),
                    "amount": int(history.cents[row]) / 100,
                    "fraud": int(history.label[row] == 1),
                }
            ).encode()
            for row in rows.tolist()
        ]

    _fill(history, store_url, written=written)


def fill_phase1(history: History, store_url: str) -> None:
    """Write packed entries, as the `phase1` service does."""
    entries = np.empty(len(history), ENTRY)
    entries["id"] = [id_of(one) for one in history.transaction_id]
    entries["time_us"] = history.event_time_us
    entries["cents"] = history.cents
    entries["fraud"] = history.label == 1

    def written(rows: npt.NDArray[np.int64]) -> list[bytes]:
        return [one.tobytes() for one in entries[rows]]

    _fill(history, store_url, written=written)


def _fill(history: History, store_url: str, *, written: Written) -> None:
    """Add every purchase to the sorted sets of its customer and of its terminal."""
    import redis

    with redis.Redis.from_url(store_url) as store:
        pipeline = store.pipeline(transaction=False)
        for number, (key, rows) in enumerate(_keys(history), start=1):
            times = history.event_time_us[rows].tolist()
            pipeline.zadd(key, dict(zip(written(rows), times, strict=True)))
            if number % _AT_ONCE == 0:
                pipeline.execute()
        pipeline.execute()


def _keys(history: History) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    """Yield every key with the purchases that it holds."""
    end_us = int(history.event_time_us.max())
    for entity, kept_us in _KEPT_US.items():
        column = np.array(history.entity_id[f"{entity}_id"], np.bytes_)
        order = np.argsort(column, kind="stable")
        order = order[history.event_time_us[order] > end_us - kept_us]
        names, first = np.unique(column[order], return_index=True)
        for name, rows in zip(names, np.split(order, first[1:]), strict=True):
            yield f"{entity}:".encode() + bytes(name), rows
