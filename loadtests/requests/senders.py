"""Open a sender: the compiled one if possible, else asyncio."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.tuner.compiled import best_sender
from loadtests.tuner.sending import Sender


@contextmanager
def sender(grpc_url: str, *, timeout_s: float, rows: int) -> Iterator[Sender]:
    """
    Open the compiled sender, or asyncio where there is no compiler.

    Args:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
        rows: Rows in each request.
    """
    with tempfile.TemporaryDirectory(prefix="tollgate-send-") as folder:
        yield best_sender(grpc_url, timeout_s=timeout_s, rows=rows, folder=Path(folder))
