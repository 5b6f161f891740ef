"""Drain a spool in the background for as long as a product is served."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tollgate.errors import StoreError
from tollgate.repair.drain import STORE_DEADLINE_S, DrainResult, SpoolDrain
from tollgate.store.redis.cluster_store import open_store
from tollgate.worker import Worker

log = logging.getLogger(__name__)

# Redis applies some 20,000 events per second; decisions keep most of that.
RATE_PER_S = 4_000.0
EVERY_S = 1.0


@contextmanager
def draining(folder: Path, store_url: str) -> Iterator[None]:
    """
    Drain a folder in the background, whenever it has segments, until the context ends.

    Args:
        folder: The spool's.
        store_url: redis://, rediss:// or unix:// address.
    """
    stopped = threading.Event()
    store = open_store(store_url, deadline_s=STORE_DEADLINE_S)
    drain = SpoolDrain(folder, store, rate_per_s=RATE_PER_S, stopped=stopped.is_set)
    worker = Worker(
        f"spool-drain-{folder.name}",
        partial(_drain, drain),
        pause_s=EVERY_S,
        stopped=stopped,
    )
    worker.start()
    try:
        yield
    finally:
        worker.stop()
        store.close()


def _drain(drain: SpoolDrain) -> None:
    if not drain.waiting():
        return
    try:
        done = drain.run()
    except (StoreError, OSError) as error:
        log.debug("the spool waits: %s", error)
        return
    if done is not None and done.segments:
        log.info("%s", drain_text(done))


def drain_text(done: DrainResult) -> str:
    """Describe the result of a drain in one line."""
    parts = [f"applied {done.applied:,}", f"had already {done.duplicates:,}"]
    for number, text in (
        (done.dead, "dead letters"),
        (done.missing, "lost before they were written"),
        (done.unreadable, "segments of another version left"),
        (done.torn_bytes, "bytes torn off by a kill"),
    ):
        if number:
            parts.append(f"{text} {number:,}")
    return "spool: " + ", ".join(parts)
