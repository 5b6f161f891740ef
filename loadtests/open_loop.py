"""Send requests at scheduled times, regardless of earlier answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import grpc
import msgspec
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2_grpc

from clients.channel import CHANNEL_OPTIONS, IN_TURN, SERVICES
from clients.codec import decisions_of
from tollgate.schema import Degraded

_WORTH_LESS = ~int(Degraded.COLD_START)  # a first purchase is no fault
_SETTLE_S = 0.05  # before the first request

F64 = npt.NDArray[np.float64]


class Sent(msgspec.Struct, frozen=True, eq=False):
    """
    Results of N requests, in the order of their schedule.

    Attributes:
        due_s: Time at which each was due, on time.perf_counter; float64 [N].
        sent_s: Time at which each was sent; float64 [N].
        latency_s: Time from when it was due to its answer, so that a late sender hides
            no latency; float64 [N].
        degraded: Bits of the answer's rows, COLD_START left out; uint32 [N].
        answered: True if each has a decision and no error for each row; bool [N].
    """

    due_s: F64
    sent_s: F64
    latency_s: F64
    degraded: npt.NDArray[np.uint32]
    answered: npt.NDArray[np.bool_]

    def later(self, first: int) -> Sent:
        """Return the results without the first requests."""
        return Sent(*(column[first:] for column in msgspec.structs.astuple(self)))


def evenly(count: int, *, rate_per_s: float) -> F64:
    """Space arrivals evenly; s from the first, float64 [count]."""
    return np.arange(count) / rate_per_s


def poisson(count: int, *, rate_per_s: float, seed: int) -> F64:
    """
    Draw the arrivals of independent callers (Poisson).

    Distances are exponential, so some are close together, as in real traffic: even
    arrivals flatter a queue.

    Returns:
        s from the first, ascending; float64 [count].
    """
    gaps_s = np.random.default_rng(seed).exponential(1 / rate_per_s, count)
    return np.cumsum(gaps_s) - gaps_s[0] if count else gaps_s


async def send(
    requests: Sequence[Any],
    *,
    at_s: F64,
    grpc_url: str,
    timeout_s: float,
    enough: asyncio.Event | None = None,
    observe: Callable[[bool], None] = lambda _: None,
) -> Sent:
    """
    Send each request at its time.

    Args:
        requests: N ModelInferRequests.
        at_s: Time at which each is due, s from the beginning, ascending; float64 [N].
        grpc_url: host:port; behind dns:///host:port, several servers in turn.
        timeout_s: Time after which a request counts as not answered, s.
        enough: Event that ends the run before all are sent.
        observe: Called when a request ends, with whether it was answered and not
            degraded.
    """
    count = len(requests)
    latency_s, sent_s = np.full((2, count), np.inf)
    degraded = np.zeros(count, np.uint32)
    answered = np.zeros(count, np.bool_)
    options: tuple[tuple[str, object], ...] = CHANNEL_OPTIONS
    if grpc_url.startswith(SERVICES):
        options += IN_TURN
    async with grpc.aio.insecure_channel(grpc_url, options=options) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        await channel.channel_ready()
        due_s = perf_counter() + _SETTLE_S + at_s

        async def one(number: int, request: Any) -> None:
            sent_s[number] = perf_counter()
            try:
                response = await infer(request, timeout=timeout_s)
            except grpc.RpcError:
                observe(False)
                return
            finally:
                latency_s[number] = perf_counter() - due_s[number]
            answer = decisions_of(response, latency_s=latency_s[number])
            bits = np.bitwise_or.reduce(answer.degraded)
            degraded[number] = int(bits) & _WORTH_LESS
            answered[number] = all(answer.decision) and not any(answer.error)
            observe(bool(answered[number]) and not degraded[number])

        running = set()
        for number, request in enumerate(requests):
            if enough is not None and enough.is_set():
                count = number
                break
            await asyncio.sleep(max(0.0, due_s[number] - perf_counter()))
            task = asyncio.ensure_future(one(number, request))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
    return Sent(
        due_s=due_s[:count],
        sent_s=sent_s[:count],
        latency_s=latency_s[:count],
        degraded=degraded[:count],
        answered=answered[:count],
    )
