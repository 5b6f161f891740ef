"""Send good requests at a steady rate, while something else happens to the server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import grpc

from tollgate.load.hostile_requests import MODEL_INFER, good_request
from tollgate_client.wire import decisions_of

_DECISIONS = (["approve"], ["review"], ["decline"])


class SteadyCaller:
    """
    Sends good requests of one row at fixed times, and records their results.

    Args:
        tag: Start of every transaction id.
        timeout_s: Deadline of a request, s.
        metadata: Metadata of each request.

    Attributes:
        lost: Requests without a decision, by status and message.
        answered: Transaction ids of the others.
    """

    def __init__(
        self, tag: str, *, timeout_s: float, metadata: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._tag = tag
        self._timeout_s = timeout_s
        self._metadata = metadata
        self.sent = 0
        self.lost: Counter[str] = Counter()
        self.answered: set[bytes] = set()

    async def send_all(
        self, channel: Any, *, rate: float, ended: asyncio.Event
    ) -> None:
        """Send `rate` requests/s regardless of earlier answers, until it is ended."""
        infer = channel.unary_unary(
            MODEL_INFER,
            request_serializer=type(good_request(1, tag="")).SerializeToString,
        )
        tasks: set[asyncio.Task[None]] = set()
        began_s = perf_counter()
        while not ended.is_set():
            task = asyncio.create_task(self._send(infer, f"{self._tag}{self.sent}"))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            self.sent += 1
            due_s = began_s + self.sent / rate
            await asyncio.sleep(max(0.0, due_s - perf_counter()))
        await asyncio.gather(*tasks)

    async def _send(self, infer: Any, tag: str) -> None:
        try:
            answer = await infer(
                good_request(1, tag=tag),
                timeout=self._timeout_s,
                metadata=self._metadata,
            )
        except grpc.RpcError as error:
            self.lost[f"{error.code().name}: {error.details()}"[:200]] += 1
            return
        decisions = decisions_of(answer, latency_s=0.0)
        if list(decisions.decision) in _DECISIONS:
            self.answered.add(f"{tag}-0".encode())
        else:
            self.lost[f"no decision: {decisions.error[0]}"[:200]] += 1
