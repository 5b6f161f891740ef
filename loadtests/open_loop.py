"""Requests at a fixed rate, whatever becomes of the ones before them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import grpc
import msgspec
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2_grpc

from clients.channel import CHANNEL_OPTIONS
from clients.codec import decisions_of
from tollgate.schema import Degraded

_WORTH_LESS = ~int(Degraded.COLD_START)  # a first purchase is no fault
_SETTLE_S = 0.05  # before the first request


class Sent(msgspec.Struct, frozen=True, eq=False):
    """
    What became of N requests of one row, in the order of their schedule.

    Attributes:
        due_s: When each was to be sent, on time.perf_counter; float64 [N].
        latency_s: From then to its answer, so that a late sender hides nothing;
            float64 [N].
        degraded: Bits of the answer, COLD_START left out; uint32 [N].
        answered: With a decision and without an error; bool [N].
    """

    due_s: npt.NDArray[np.float64]
    latency_s: npt.NDArray[np.float64]
    degraded: npt.NDArray[np.uint32]
    answered: npt.NDArray[np.bool_]


async def send(
    requests: Sequence[Any],
    *,
    grpc_url: str,
    rate_per_s: float,
    timeout_s: float,
    enough: asyncio.Event,
) -> Sent:
    """
    Send requests of one row at a fixed rate.

    Args:
        requests: ModelInferRequests.
        grpc_url: host:port.
        rate_per_s: How many are due in a second.
        timeout_s: After which one counts as not answered.
        enough: Ends it before they are all sent.
    """
    count = len(requests)
    latency_s = np.full(count, np.inf)
    degraded = np.zeros(count, np.uint32)
    answered = np.zeros(count, np.bool_)
    async with grpc.aio.insecure_channel(grpc_url, options=CHANNEL_OPTIONS) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        await channel.channel_ready()
        due_s = perf_counter() + _SETTLE_S + np.arange(count) / rate_per_s

        async def one(number: int, request: Any) -> None:
            try:
                response = await infer(request, timeout=timeout_s)
            except grpc.RpcError:
                return
            finally:
                latency_s[number] = perf_counter() - due_s[number]
            answer = decisions_of(response, latency_s=latency_s[number])
            degraded[number] = int(answer.degraded[0]) & _WORTH_LESS
            answered[number] = bool(answer.decision[0]) and not answer.error[0]

        running = set()
        for number, request in enumerate(requests):
            if enough.is_set():
                count = number
                break
            await asyncio.sleep(max(0.0, due_s[number] - perf_counter()))
            task = asyncio.ensure_future(one(number, request))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
    return Sent(
        due_s=due_s[:count],
        latency_s=latency_s[:count],
        degraded=degraded[:count],
        answered=answered[:count],
    )
