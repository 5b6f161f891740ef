"""Tests of the open loop over HTTP."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

from loadtests.journey.same_rate import send_http
from tollgate.server.processes.environment import free_port

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BAD = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


class Server:
    """Answers 503 to bodies that say so, and holds every answer until all are there."""

    def __init__(self, expected: int) -> None:
        self.bodies: list[bytes] = []
        self.connections = self.open = 0
        self._expected = expected
        self._all = asyncio.Event()

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection, until it is closed."""
        self.connections += 1
        self.open += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                self.bodies.append(body)
                if len(self.bodies) == self._expected:
                    self._all.set()
                await self._all.wait()
                writer.write(BAD if body == b"bad" else OK)
        writer.close()
        await writer.wait_closed()
        self.open -= 1


async def sent(bodies: list[bytes], at_s: list[float]) -> tuple[Server, np.ndarray]:
    """Send bodies to such a server."""
    server = Server(len(bodies))
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        latency_s, answered = await send_http(
            bodies, at_s=np.array(at_s), url=f"127.0.0.1:{port}"
        )
        while server.open:
            await asyncio.sleep(0.01)
    return server, np.stack([latency_s, answered])


def test_requests_do_not_wait_for_each_other() -> None:
    """All are sent when due, though none is answered; time counts from then."""
    bodies = [b"1", b"22", b"bad", b"4"]
    server, (latency_s, answered) = asyncio.run(sent(bodies, [0.0, 0.0, 0.0, 0.2]))
    assert sorted(server.bodies) == sorted(bodies)
    assert server.connections == 4
    assert answered.tolist() == [True, True, False, True]
    assert (latency_s[:3] >= 0.2).all()
    assert (latency_s > 0).all()


def test_a_service_that_is_gone_is_an_error() -> None:
    """A connection that is refused is not an answer that is late."""
    url = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(send_http([b"1"], at_s=np.zeros(1), url=url))
