"""Send requests at their scheduled times, or one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

import grpc
import msgspec
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from clients.channel import CHANNEL_OPTIONS
from clients.codec import decisions_of
from loadtests.open_loop import F64, send


class Answered(msgspec.Struct, frozen=True, eq=False):
    """
    Times of N requests.

    Attributes:
        at_s: When each was due, s from the beginning, ascending; float64 [N].
        latency_s: Time from when it was due to its answer, infinite without a decision
            for each of its rows, s; float64 [N].
        late_s: Time from when it was due until it was sent, s; float64 [N].
    """

    at_s: F64
    latency_s: F64
    late_s: F64


class Sender(Protocol):
    """Interface of the senders."""

    @property
    def name(self) -> str:
        """Return a name of one or two words."""

    def at_times(self, requests: Sequence[Any], at_s: F64) -> Answered:
        """
        Send each when it is due, ascending from 0, without waiting for any answer.
        """

    def one_by_one(self, requests: Sequence[Any], *, run_s: float) -> Answered:
        """Send each when the one before is answered, for `run_s` seconds."""


class PythonSender(msgspec.Struct, frozen=True):
    """
    Sender with asyncio, for some hundred requests a second.

    Attributes:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
    """

    grpc_url: str
    timeout_s: float
    name: str = "asyncio"

    def at_times(self, requests: Sequence[Any], at_s: F64) -> Answered:
        """See `Sender`."""
        sent = asyncio.run(
            send(requests, at_s=at_s, grpc_url=self.grpc_url, timeout_s=self.timeout_s)
        )
        latency_s = np.where(sent.answered, sent.latency_s, np.inf)
        return Answered(at_s, latency_s, sent.sent_s - sent.due_s)

    def one_by_one(self, requests: Sequence[Any], *, run_s: float) -> Answered:
        """See `Sender`."""
        return asyncio.run(_one_by_one(requests, self.grpc_url, self.timeout_s, run_s))


async def _one_by_one(
    requests: Sequence[Any], grpc_url: str, timeout_s: float, run_s: float
) -> Answered:
    at_s, latency_s = [], []
    async with grpc.aio.insecure_channel(grpc_url, options=CHANNEL_OPTIONS) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        await channel.channel_ready()
        begun_s = time.perf_counter()
        for request in requests:
            sent_s = time.perf_counter() - begun_s
            if sent_s > run_s:
                break
            at_s.append(sent_s)
            latency_s.append(await _ask(infer, request, timeout_s))
    return Answered(np.array(at_s), np.array(latency_s), np.zeros(len(at_s)))


async def _ask(infer: Any, request: Any, timeout_s: float) -> float:
    """Send one request; return its latency in s, infinite without a decision."""
    sent_s = time.perf_counter()
    try:
        response = await infer(request, timeout=timeout_s)
    except grpc.RpcError:
        return float("inf")
    took_s = time.perf_counter() - sent_s
    answer = decisions_of(response, latency_s=took_s)
    decided = all(answer.decision) and not any(answer.error)
    return took_s if decided else float("inf")
