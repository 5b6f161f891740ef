"""
Lose the store of a product under load, with its file, and rebuild it.

    python tests/tollgate/backfill/lose_the_store.py

A real server over a real Redis, requests of one row at a fixed rate, each put on a feed
as well, in a Redis of its own. The store is killed, its file deleted, an empty one
started, and `tollgate rebuild` run with the history file. Then the feed is read again
from its beginning. Prints one JSON object: how long it took (RTO), how many purchases
were missing without the feed (RPO), and whether every entity's value had the bytes of
an undisturbed store in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tests.tollgate.repair.outage_under_load import (
    REPOSITORY,
    columns_of,
    load,
    purchases_of,
    values_of,
)
from tollgate.backfill.materialize import materialize
from tollgate.features.spec.feature_spec import load_spec
from tollgate.features.windows.entity_entries import ENTRY, HEADER
from tollgate.history import History
from tollgate.load.store_contents import HISTORY_DAYS, simulated_history
from tollgate.repair.spool_segments import segments
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import serve
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import RedisStore
from tollgate.stream.events import EventCodec
from tollgate.stream.redis_streams import RedisFeed

CHECKOUT = REPOSITORY.parent
TOLLGATE = (sys.executable, "-c", "from tollgate.cli import main; main()")


def write(history: History, path: Path) -> None:
    """Write a history as a file that `tollgate rebuild` reads."""
    ids = {
        name: [one.decode() for one in ids] for name, ids in history.entity_id.items()
    }
    pl.DataFrame(
        {
            "transaction_id": [one.decode() for one in history.transaction_id],
            **ids,
            "event_time": history.event_time_us,
            "amount": history.cents / 100,
            "label": history.label,
            "label_time": history.label_time_us,
        }
    ).write_parquet(path)


def entries_in(values: dict[bytes, bytes]) -> int:
    """Count the events of all customers."""
    sizes = (len(one) for key, one in values.items() if b":customer:" in key)
    return sum((size - HEADER.itemsize) // ENTRY.itemsize for size in sizes)


def command(*arguments: str) -> None:
    """Run a `tollgate` command."""
    subprocess.run([*TOLLGATE, *arguments], cwd=CHECKOUT, check=True, stdout=sys.stderr)


def run(*, customers: int, load_s: float, rate_per_s: float) -> dict[str, Any]:
    """Lose a store under load, rebuild it; return the counts."""
    spec = load_spec(REPOSITORY / "fraud_features" / "1" / "features.yaml")
    history = simulated_history(
        spec, customers=customers, terminals=2 * customers, days=HISTORY_DAYS
    )
    rows = round((3 * load_s + 120) * rate_per_s)
    columns = columns_of(history, rows, rate_per_s=rate_per_s)
    durations: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        state, file = folder / "state", folder / "history.parquet"
        write(history, file)
        store, reference, feed = (
            stack.enter_context(EmbeddedRedis(folder / name))
            for name in ("store", "reference", "feed")
        )
        materialize(spec, history, RedisStore(store.url, deadline_s=30))
        server = stack.enter_context(
            serve(REPOSITORY, state=state, store_url=store.url)
        )

        def bring_back(lost: EmbeddedRedis) -> None:
            lost.stop()
            shutil.rmtree(folder / "store" / "redis")
            started_s = time.monotonic()
            lost.__enter__()
            command("rebuild", str(file), "--state", str(state))
            durations["rebuild_s"] = round(time.monotonic() - started_s, 1)

        sent, _, spooled = asyncio.run(
            load(
                server,
                store,
                columns,
                rate_per_s=rate_per_s,
                around_s=load_s,
                outage_s=load_s,
                bring_back=bring_back,
            )
        )
        while segments(state / "spool"):
            time.sleep(0.05)
        purchases = purchases_of(spec, columns, len(sent.answered))
        materialize(spec, history, RedisStore(reference.url, deadline_s=30))
        EventWriter(spec, RedisStore(reference.url, deadline_s=30)).purchases(purchases)
        wanted, without_feed = values_of(reference.url), values_of(store.url)
        RedisFeed(feed.url, feed="tollgate.fraud.events", partitions=1).send(
            purchases.entity_id[0], EventCodec(spec).encode_purchases(purchases)
        )
        started_s = time.monotonic()
        command(
            *("stream", "--state", str(state), "--feed-url", feed.url),
            *("--group", "rebuild", "--until-idle"),
        )
        durations["feed_s"] = round(time.monotonic() - started_s, 1)
        found = values_of(store.url)
    return {
        "history": len(history),
        "sent": len(sent.answered),
        "answered": int(sent.answered.sum()),
        "spooled": spooled,
        "sent_between_history_and_loss": int(np.ceil(load_s * rate_per_s)),
        "missing_without_feed": entries_in(wanted) - entries_in(without_feed),
        **durations,
        "entities": len(found),
        "identical_with_feed": bool(found) and found == wanted,
    }


def main() -> None:
    """Read the arguments and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--customers", type=int, default=5_000)
    parser.add_argument("--load-s", type=float, default=10.0)
    parser.add_argument("--rate-per-s", type=float, default=200.0)
    found = run(**vars(parser.parse_args()))
    print(json.dumps(found, indent=2))
    sys.exit(0 if found["identical_with_feed"] else 1)


if __name__ == "__main__":
    main()
