"""
Take the store away from a product under load, and compare it with an undisturbed one.

    python tests/tollgate/repair/outage_under_load.py --outage-s 60

A real server over a real Redis, requests of one row at a fixed rate. Redis is killed,
stays away, and comes back with its file; the spool drains by itself. The same purchases
go into a second Redis with nobody in the way. Prints one JSON object; "identical" says
whether every entity's value has the same bytes in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History
from tollgate.load.arrivals import evenly
from tollgate.load.asyncio_sender import send
from tollgate.load.results import Results
from tollgate.load.store_contents import (
    HISTORY_DAYS,
    fill_store,
    simulated_history,
    values_of,
)
from tollgate.load.traffic import traffic_of
from tollgate.repair.spool_segments import segments
from tollgate.schema import EVENT_TIME, TRANSACTION_ID
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"
_TIMEOUT_S = 5.0
_MOST_DRAIN_S = 300.0

Columns = dict[str, Any]


def purchases_of(spec: FeatureSpec, columns: Columns, rows: int) -> Purchases:
    """Turn the first rows of a load into purchases."""
    return Purchases(
        transaction_id=columns[TRANSACTION_ID][:rows].tolist(),
        entity_id=[columns[one.key][:rows].tolist() for one in spec.entities],
        event_time_us=columns[EVENT_TIME][:rows],
        cents=np.rint(columns["amount"][:rows] * 100).astype(np.int64),
    )


def spooled_rows(server: Embedded) -> int:
    """Read from the metrics how many rows the step has left to the spool."""
    with urllib.request.urlopen(server.metrics_url) as page:
        text = page.read().decode()
    found = re.search(r'tollgate_spool_rows_total\{[^}]*kept="yes"[^}]*\} (\d+)', text)
    return int(found[1]) if found else 0


async def load(
    server: Embedded,
    store: EmbeddedRedis,
    columns: Columns,
    *,
    rate_per_s: float,
    around_s: float,
    outage_s: float,
    bring_back: Callable[[EmbeddedRedis], None],
) -> tuple[Results, float, int]:
    """Send; take the store away in between; and when it was back, and rows spooled."""
    requests = list(
        requests_of(
            check_columns(columns, inputs=FRAUD_INPUTS),
            product="fraud",
            size=1,
            dry_run=False,
            deadline_s=_TIMEOUT_S,
        )
    )
    enough = asyncio.Event()
    loading = asyncio.ensure_future(
        send(
            requests,
            grpc_url=server.grpc_url,
            at_s=evenly(len(requests), rate_per_s=rate_per_s),
            timeout_s=_TIMEOUT_S,
            enough=enough,
        )
    )
    await asyncio.sleep(around_s)
    os.kill(store.pid, signal.SIGKILL)
    await asyncio.sleep(outage_s)
    await asyncio.to_thread(bring_back, store)
    back_s = time.perf_counter()
    await asyncio.sleep(around_s)
    enough.set()
    return await loading, back_s, await asyncio.to_thread(spooled_rows, server)


def start_again(store: EmbeddedRedis) -> None:
    """Bring it back with what its file holds."""
    store.stop()
    store.__enter__()


def columns_of(history: History, rows: int, *, rate_per_s: float) -> Columns:
    """Make purchases that come after a history, at the pace of the load."""
    columns = traffic_of(history, days=HISTORY_DAYS).columns(0, rows)
    step_us = round(1e6 / rate_per_s)
    end_us = int(history.event_time_us.max()) + 3_600_000_000
    return columns | {EVENT_TIME: end_us + step_us * np.arange(rows)}


def run(*, outage_s: float, around_s: float, rate_per_s: float) -> dict[str, Any]:
    """Do it; what was found."""
    spec = load_spec(REPOSITORY / "fraud_features" / "1" / "features.yaml")
    history = simulated_history(spec, customers=300, terminals=600, days=HISTORY_DAYS)
    seconds = outage_s + 2 * around_s + 30
    columns = columns_of(history, round(seconds * rate_per_s), rate_per_s=rate_per_s)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(EmbeddedRedis(folder / "store"))
        kept = stack.enter_context(EmbeddedRedis(folder / "kept"))
        for one in (store, kept):
            fill_store(spec, history, store_url=one.url)
        server = stack.enter_context(
            serve(REPOSITORY, state=folder / "state", store_url=store.url)
        )
        sent, back_s, spooled = asyncio.run(
            load(
                server,
                store,
                columns,
                rate_per_s=rate_per_s,
                around_s=around_s,
                outage_s=outage_s,
                bring_back=start_again,
            )
        )
        spool = folder / "state" / "spool" / "fraud"
        while segments(spool) and time.perf_counter() < back_s + _MOST_DRAIN_S:
            time.sleep(0.05)
        drained_s = time.perf_counter() - back_s
        rows = len(sent.answered)
        writer = EventWriter(spec, RedisStore(kept.url, deadline_s=30))
        writer.purchases(purchases_of(spec, columns, rows))
        wanted, found = values_of(kept.url), values_of(store.url)
        left = sorted(path.name for path in spool.iterdir())
    return {
        "outage_s": outage_s,
        "rate_per_s": rate_per_s,
        "sent": rows,
        "answered": int(sent.answered.sum()),
        "degraded": int((sent.degraded != 0).sum()),
        "spooled": spooled,
        "drained_after_s": round(drained_s, 1),
        "left_in_spool": left,
        "entities": len(found),
        "identical": bool(found) and found == wanted,
    }


def main() -> None:
    """Read the arguments and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outage-s", type=float, default=60.0)
    parser.add_argument("--around-s", type=float, default=5.0)
    parser.add_argument("--rate-per-s", type=float, default=300.0)
    given = parser.parse_args()
    found = run(
        outage_s=given.outage_s,
        around_s=given.around_s,
        rate_per_s=given.rate_per_s,
    )
    print(json.dumps(found, indent=2))
    sys.exit(0 if found["identical"] else 1)


if __name__ == "__main__":
    main()
