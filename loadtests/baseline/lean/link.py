"""Non-blocking Redis client: our commands over the connections of redis.asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
import redis.asyncio

from tollgate.store.redis.redis_store import APPLY, Command

TIMEOUT_S = 1.0


class Link:
    """
    Connections of one worker to one Redis, one for each request in flight.

    It leaves out the work that redis-py does around every command, because that costs
    more than the command: a pipeline's own packing, the pool's check of the socket, a
    task with a timer for each write and each read. hiredis packs the commands, which
    are written at once; one timer ends an exchange that takes too long.

    Args:
        timeout_s: Time limit of an exchange, s.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._pool = redis.asyncio.ConnectionPool.from_url(url, socket_timeout=None)
        self._free: list[Any] = []
        self._dropping: set[asyncio.Future[None]] = set()
        self._timeout_s = timeout_s

    async def prepare(self) -> None:
        """Load the Lua function into the store."""
        await self.ask([APPLY.load_command()])

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """
        Send commands, and read their replies, in one round trip.

        Raises:
            RedisError: No answer in time, or the store refused one of them.
        """
        connection = self._free.pop() if self._free else self._pool.make_connection()
        packed = b"".join(map(hiredis.pack_command, commands))
        loop = asyncio.get_running_loop()
        late = loop.call_later(self._timeout_s, self._drop, connection)
        try:
            await connection.send_packed_command([packed], check_health=False)
            replies = [
                await connection.read_response(disable_decoding=True) for _ in commands
            ]
        except BaseException:
            # Another request must never read the replies that are left.
            await connection.disconnect(nowait=True)
            raise
        finally:
            late.cancel()
        self._free.append(connection)
        return replies

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._free:
            await connection.disconnect()
        self._free.clear()

    def _drop(self, connection: Any) -> None:
        """Close a connection, which ends the request that reads from it."""
        task = asyncio.ensure_future(connection.disconnect(nowait=True))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)
