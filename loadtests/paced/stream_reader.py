"""Load the store as the journal's worker does, without sealing segments."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tollgate.audit.source import ChunkSource
from tollgate.errors import StoreError

_MOST = 64  # entries per read, as the worker takes them
_WAIT_S = 0.5
_ACKNOWLEDGED_EACH_S = 1.0


@contextmanager
def stream_read(store_url: str, *, product: str) -> Iterator[None]:
    """
    Read and acknowledge the decisions of a product while the block runs.

    Without it the stream would hold every decision of a run, and the store would
    rewrite ever larger files. Segments are not sealed: another machine does that.
    """
    ended = threading.Event()
    source = ChunkSource(store_url, product=product)
    thread = threading.Thread(
        target=_read, args=(source, ended), name="stream-reader", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        source.close()


def _read(source: ChunkSource, ended: threading.Event) -> None:
    held: list[bytes] = []
    due_s = time.monotonic() + _ACKNOWLEDGED_EACH_S
    while not ended.is_set():
        with suppress(StoreError):  # the store may have a fault: try again
            held += [one.id for one in source.poll(most=_MOST, wait_s=_WAIT_S)]
            if held and time.monotonic() > due_s:
                source.acknowledge(held)
                held = []
                due_s = time.monotonic() + _ACKNOWLEDGED_EACH_S
        # Entries come in groups, as to a worker that decodes the previous ones.
        ended.wait(0.02)
