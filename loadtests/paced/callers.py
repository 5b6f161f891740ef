"""Send a load from Python, with retries; for some hundred requests a second."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import grpc

from clients.channel import CHANNEL_OPTIONS
from loadtests.bodies import unframe
from loadtests.paced.calls import METHOD, Ended, How, Load, Results, collect_results
from tollgate.errors import ServerError

_SETTLE_S = 0.05  # before the first request
_PATIENCE_S = 3.0  # wait for a connection at the beginning
_NS = 1e9
_CLIENT_GAVE_UP = "Deadline Exceeded"  # grpc's own text; a server sends others


def send_in_python(
    load: Load, *, grpc_url: str, began: Callable[[float], None]
) -> tuple[Results, float]:
    """
    Send a load from this process, as `send_compiled` does, retries included.

    A caller retries at once when an attempt failed or had no answer within the
    timeout. Its latency counts from when the first attempt was due.

    Raises:
        ServerError: No server answers there.
    """
    before = os.times()
    ended = asyncio.run(_send(load, grpc_url, began))
    after = os.times()
    used_s = after.user + after.system - before.user - before.system
    return collect_results(load, ended), used_s


async def _send(
    load: Load, grpc_url: str, began: Callable[[float], None]
) -> list[Ended]:
    bodies = load.bodies.path.read_bytes()
    offsets = load.bodies.offsets.tolist()
    async with grpc.aio.insecure_channel(grpc_url, options=CHANNEL_OPTIONS) as channel:
        infer = channel.unary_unary(METHOD)
        try:
            await asyncio.wait_for(channel.channel_ready(), _PATIENCE_S)
        except asyncio.TimeoutError as error:
            problem = f"no answer from {grpc_url}"
            raise ServerError("callers", problem) from error
        begin_s = perf_counter() + _SETTLE_S
        began(begin_s)
        asking = []
        for number, due_s in enumerate((begin_s + load.at_s).tolist()):
            await asyncio.sleep(max(0.0, due_s - perf_counter()))
            message = unframe(bodies[offsets[number] : offsets[number + 1]])
            one = _ask(infer, number, message, load=load, begin_s=begin_s)
            asking.append(asyncio.ensure_future(one))
        return await asyncio.gather(*asking)


async def _ask(
    infer: Any, number: int, message: bytes, *, load: Load, begin_s: float
) -> Ended:
    """Send a request until it has an answer or its retries are used up."""
    sent_s = perf_counter()
    attempts = 0
    while attempts <= load.retries:
        attempts += 1
        how, status, words, answer = How.ENDED, 0, "", b""
        try:
            answer = await infer(
                message, timeout=load.timeout_s, metadata=load.metadata
            )
            break
        except grpc.aio.AioRpcError as error:
            status, words = error.code().value[0], error.details() or ""
            if words == _CLIENT_GAVE_UP:
                how = How.TIMED_OUT
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                break  # a retry would not help
    return Ended(
        number=number,
        sent_ns=round((sent_s - begin_s) * _NS),
        ended_ns=round((perf_counter() - begin_s) * _NS),
        how=how,
        status=status,
        words=words,
        answer=answer,
        attempts=attempts,
    )
