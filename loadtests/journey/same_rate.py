"""Send the same arrivals to every stage, regardless of earlier answers (open loop)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import perf_counter

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.baseline.json_bodies import json_bodies
from loadtests.journey.stages import Stage
from loadtests.requests.bodies import fraud_requests
from loadtests.results.percentiles import Latency, latency_of
from tollgate.errors import ServerError
from tollgate.load.arrivals import poisson
from tollgate.load.asyncio_sender import send
from tollgate.load.traffic import Traffic

TIMEOUT_S = 5.0
_SETTLE_S = 0.05
_MOST_CONNECTIONS = 256


class AtRate(msgspec.Struct, frozen=True):
    """
    Results of one stage at the rate.

    Attributes:
        rate_per_s: Mean rate of single rows; they arrive at random.
        latency: Latency from when each was due to its answer.
        unanswered: Number of requests without an answer within 5 s.
    """

    stage: str
    rate_per_s: float
    latency: Latency
    unanswered: int


def at_rate(
    stage: Stage,
    traffic: Traffic,
    *,
    first: int,
    rate_per_s: float,
    seconds: float,
    warm_up_s: float,
    seed: int,
) -> tuple[AtRate, int]:
    """
    Send single rows at random times, regardless of earlier answers.

    Returns:
        The results, and the next purchase that the stage was not sent yet.

    Raises:
        ServerError: The stage accepts no connections any more.
    """
    count = round(rate_per_s * (seconds + warm_up_s))
    at_s = poisson(count, rate_per_s=rate_per_s, seed=seed)
    columns = traffic.columns(first, count)
    if stage.grpc:
        requests = fraud_requests(columns, rows=1, deadline_s=TIMEOUT_S)
        sent = asyncio.run(
            send(requests, at_s=at_s, grpc_url=stage.url, timeout_s=TIMEOUT_S)
        )
        latency_s, answered = sent.latency_s, sent.answered
    else:
        bodies = [body.tobytes() for body in json_bodies(columns, rows=1)]
        try:
            latency_s, answered = asyncio.run(
                send_http(bodies, at_s=at_s, url=stage.url)
            )
        except ConnectionError as error:
            raise ServerError(stage.name, f"no connection: {error}") from error
    counts = at_s >= warm_up_s
    waited_us = np.minimum(latency_s[counts], TIMEOUT_S) * 1e6
    result = AtRate(
        stage=stage.name,
        rate_per_s=rate_per_s,
        latency=latency_of(waited_us.astype(np.int64)),
        unanswered=int((~answered[counts]).sum()),
    )
    return result, first + count


async def send_http(
    bodies: list[bytes], *, at_s: npt.NDArray[np.float64], url: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """
    Post each body at its time, over connections that stay open.

    Returns:
        s from when each was due to its answer, and whether it was answered with 200.
    """
    host, _, port = url.rpartition(":")
    latency_s = np.full(len(bodies), np.inf)
    answered = np.zeros(len(bodies), np.bool_)
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    places = asyncio.Semaphore(_MOST_CONNECTIONS)
    due_s = perf_counter() + _SETTLE_S + at_s

    async def one(number: int, body: bytes) -> None:
        async with places:
            link = free.pop() if free else await asyncio.open_connection(host, port)
            left_s = due_s[number] + TIMEOUT_S - perf_counter()
            try:
                post = _post(*link, body=body, host=url)
                answered[number] = await asyncio.wait_for(post, left_s)
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                link[1].close()
            else:
                free.append(link)
            latency_s[number] = perf_counter() - due_s[number]

    running = []
    for number, body in enumerate(bodies):
        await asyncio.sleep(max(0.0, due_s[number] - perf_counter()))
        running.append(asyncio.ensure_future(one(number, body)))
    await asyncio.gather(*running)
    for _, writer in free:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return latency_s, answered


async def _post(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    body: bytes,
    host: str,
) -> bool:
    """Post one body; return whether the answer is 200."""
    writer.write(
        b"POST /decide HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (host.encode(), len(body), body)
    )
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    await reader.readexactly(length)
    return head.split(b" ", 2)[1] == b"200"
