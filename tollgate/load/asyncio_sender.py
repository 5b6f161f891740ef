"""Send requests from Python at their times, for some hundred requests a second."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import grpc
import msgspec
import numpy as np

from tollgate.errors import ServerError
from tollgate.load.arrivals import F64
from tollgate.load.bodies import Load, rows_of, unframe
from tollgate.load.results import (
    METHOD,
    Ended,
    How,
    Results,
    collect_results,
    count_rows,
)

CONNECT_S = 10.0
_SETTLE_S = 0.05  # before the first request
_PATIENCE_S = 3.0  # wait for a connection at the beginning
_NS = 1e9
_CLIENT_GAVE_UP = "Deadline Exceeded"  # grpc's own text; a server sends others


class Attempts(msgspec.Struct, frozen=True):
    """How a request is sent: timeout of an attempt, s; retries; metadata."""

    timeout_s: float
    retries: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


async def send(
    requests: Sequence[bytes],
    *,
    at_s: F64,
    grpc_url: str,
    timeout_s: float,
    enough: asyncio.Event | None = None,
    observe: Callable[[bool], None] = lambda _: None,
) -> Results:
    """
    Send each request at its time.

    Args:
        requests: N encoded ModelInferRequests with equally many rows.
        at_s: Time at which each is due, s from the beginning, ascending; float64 [N].
        grpc_url: host:port; behind dns:///host:port, several servers in turn.
        timeout_s: Time after which a request counts as not answered, s.
        enough: Event that ends the run before all are sent.
        observe: Called when a request ends, with whether each of its rows has a
            decision that is not degraded.
    """
    rows = rows_of(requests)

    def ended_one(one: Ended) -> None:
        decided, _, degraded, *_ = count_rows(one.answer) if one.answer else (0, 0, 0)
        observe(decided == rows and not degraded)

    begin_s, ended = await _send(
        requests,
        at_s=at_s,
        grpc_url=grpc_url,
        attempts=Attempts(timeout_s),
        enough=enough,
        observe=ended_one,
    )
    return collect_results(ended, at_s=at_s[: len(ended)], rows=rows, begin_s=begin_s)


async def _send(
    messages: Sequence[bytes],
    *,
    at_s: F64,
    grpc_url: str,
    attempts: Attempts,
    connect_s: float | None = None,
    began: Callable[[float], None] = lambda _: None,
    enough: asyncio.Event | None = None,
    observe: Callable[[Ended], None] = lambda _: None,
) -> tuple[float, list[Ended]]:
    """Send messages; return the beginning, and the result of each that was sent."""
    from tollgate_client.addresses import CHANNEL_OPTIONS, IN_TURN, SERVICES

    options: tuple[tuple[str, object], ...] = CHANNEL_OPTIONS
    if grpc_url.startswith(SERVICES):
        options += IN_TURN
    async with grpc.aio.insecure_channel(grpc_url, options=options) as channel:
        infer = channel.unary_unary(METHOD)
        try:
            await asyncio.wait_for(channel.channel_ready(), connect_s)
        except asyncio.TimeoutError as error:
            problem = f"no answer from {grpc_url}"
            raise ServerError("callers", problem) from error
        begin_s = perf_counter() + _SETTLE_S
        began(begin_s)

        async def one(number: int) -> Ended:
            ended = await _call(
                infer, messages[number], number=number, begin_s=begin_s, how=attempts
            )
            observe(ended)
            return ended

        running = []
        for number, due_s in enumerate((begin_s + at_s).tolist()):
            if enough is not None and enough.is_set():
                break
            await asyncio.sleep(max(0.0, due_s - perf_counter()))
            running.append(asyncio.ensure_future(one(number)))
        return begin_s, await asyncio.gather(*running)


async def _call(
    infer: Any, message: bytes, *, number: int, begin_s: float, how: Attempts
) -> Ended:
    """Send a request until it has an answer or its retries are used up."""
    sent_s = perf_counter()
    attempts = 0
    while attempts <= how.retries:
        attempts += 1
        ending, status, words, answer = How.ENDED, 0, "", b""
        try:
            answer = await infer(message, timeout=how.timeout_s, metadata=how.metadata)
            break
        except grpc.aio.AioRpcError as error:
            status, words = error.code().value[0], error.details() or ""
            if words == _CLIENT_GAVE_UP:
                ending = How.TIMED_OUT
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                break  # a retry would not help
    return Ended(
        number=number,
        sent_ns=round((sent_s - begin_s) * _NS),
        ended_ns=round((perf_counter() - begin_s) * _NS),
        how=ending,
        status=status,
        words=words,
        answer=answer,
        attempts=attempts,
    )


class AsyncioSender(msgspec.Struct, frozen=True):
    """
    Sender with asyncio, for some hundred requests a second.

    Attributes:
        grpc_url: host:port, or dns:///host:port for several servers in turn.
        timeout_s: Time after which a caller gives up, s.
    """

    grpc_url: str
    timeout_s: float
    name: str = "asyncio"

    def send(
        self, load: Load, *, began: Callable[[float], None] = lambda moment_s: None
    ) -> Results:
        """
        See `Sender`.

        Raises:
            ServerError: No server answers there.
        """
        before = os.times()
        bodies = load.bodies.path.read_bytes()
        offsets = load.bodies.offsets.tolist()
        messages = [
            unframe(bodies[begin:end]) for begin, end in itertools.pairwise(offsets)
        ]
        attempts = Attempts(load.timeout_s, load.retries, load.metadata)
        begin_s, ended = asyncio.run(
            _send(
                messages,
                at_s=load.at_s,
                grpc_url=self.grpc_url,
                attempts=attempts,
                connect_s=_PATIENCE_S,
                began=began,
            )
        )
        after = os.times()
        return collect_results(
            ended,
            at_s=load.at_s,
            rows=load.bodies.rows,
            poisoned=load.bodies.poisoned,
            begin_s=begin_s,
            sender_cpu_s=after.user + after.system - before.user - before.system,
        )

    def at_times(self, requests: Sequence[bytes], at_s: F64) -> Results:
        """
        See `Sender`; give up on a server that does not answer.

        Raises:
            asyncio.TimeoutError: No server answers there.
        """
        sending = send(
            requests, at_s=at_s, grpc_url=self.grpc_url, timeout_s=self.timeout_s
        )
        limit_s = CONNECT_S + float(np.max(at_s)) + self.timeout_s
        return asyncio.run(asyncio.wait_for(sending, limit_s))

    def one_by_one(self, requests: Sequence[bytes], *, run_s: float) -> Results:
        """See `Sender`."""
        return asyncio.run(self._one_by_one(requests, run_s))

    async def _one_by_one(self, requests: Sequence[bytes], run_s: float) -> Results:
        from tollgate_client.addresses import CHANNEL_OPTIONS

        ended: list[Ended] = []
        attempts = Attempts(self.timeout_s)
        async with grpc.aio.insecure_channel(
            self.grpc_url, options=CHANNEL_OPTIONS
        ) as channel:
            infer = channel.unary_unary(METHOD)
            await channel.channel_ready()
            begin_s = perf_counter()
            for number, request in enumerate(requests):
                if perf_counter() - begin_s > run_s:
                    break
                ended.append(
                    await _call(
                        infer, request, number=number, begin_s=begin_s, how=attempts
                    )
                )
        at_s = np.array([one.sent_ns for one in ended], np.int64) / _NS
        rows = rows_of(requests)
        return collect_results(ended, at_s=at_s, rows=rows, begin_s=begin_s)
