"""
Send requests at their times: with the compiled sender if possible, else with asyncio.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.open_loop import F64, Sent, send
from loadtests.paced.calls import Load, sent_of
from loadtests.paced.compiled import compile_sender, send_compiled
from loadtests.paced.requests import bodies_from
from tollgate.errors import SetupError

COMPILED, ASYNCIO = "compiled", "asyncio"

_CONNECT_S = 10.0

# Takes N ModelInferRequests and when each is due, s from the beginning, ascending.
Send = Callable[[Sequence[Any], F64], Sent]


@contextmanager
def sender(grpc_url: str, *, timeout_s: float, rows: int) -> Iterator[tuple[str, Send]]:
    """
    Choose the compiled sender, or asyncio where there is no compiler.

    Args:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
        rows: Rows in each request.

    Yields:
        Its name, and the function that sends.
    """
    with tempfile.TemporaryDirectory(prefix="tollgate-send-") as name:
        folder = Path(name)
        try:
            compile_sender(folder)
        except SetupError:
            yield (
                ASYNCIO,
                lambda requests, at_s: send_here(
                    requests, at_s, grpc_url=grpc_url, timeout_s=timeout_s
                ),
            )
            return

        def compiled(requests: Sequence[Any], at_s: F64) -> Sent:
            bodies = bodies_from(requests, rows=rows, path=folder / "bodies.bin")
            start_times: list[float] = []
            load = Load(at_s, bodies, timeout_s)
            results, _ = send_compiled(
                load, grpc_url=grpc_url, folder=folder, began=start_times.append
            )
            found = sent_of(results, begin_s=start_times[0])
            found.answered[:] &= results.calls["decided"] == rows
            return found

        yield COMPILED, compiled


def send_here(
    requests: Sequence[Any], at_s: F64, *, grpc_url: str, timeout_s: float
) -> Sent:
    """
    Send with asyncio, some hundred requests a second.

    Args:
        requests: N ModelInferRequests.
        at_s: Time at which each is due, s from the beginning, ascending; float64 [N].
        grpc_url: host:port, or dns:///host:port for several servers in turn.
        timeout_s: Time after which a caller gives up, s.

    Raises:
        asyncio.TimeoutError: No server answers there.
    """
    sending = send(requests, at_s=at_s, grpc_url=grpc_url, timeout_s=timeout_s)
    limit_s = _CONNECT_S + float(np.max(at_s)) + timeout_s
    return asyncio.run(asyncio.wait_for(sending, limit_s))
