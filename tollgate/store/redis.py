"""Call the Lua function in Redis, within a deadline."""

from __future__ import annotations

import enum
import hashlib
from importlib import resources
from typing import Any

from tollgate.errors import InputError, StoreError, StoreTimeout
from tollgate.store.events import Call

_SCRIPT = resources.files("tollgate.store").joinpath("apply.lua").read_bytes()
_SHA = hashlib.sha1(_SCRIPT, usedforsecurity=False).hexdigest().encode()

Answer = tuple[list[bytes], bytes]


class Mode(bytes, enum.Enum):
    """What a call does: see ARGV[1] of apply.lua."""

    DRY = b"0"
    WRITE = b"1"
    WRITE_ONLY = b"2"


class RedisStore:
    """
    One connection to Redis, opened on first use and again after a failure.

    Args:
        url: redis://, rediss:// or unix:// address.
        deadline_s: How long one call may take, connecting included.

    Raises:
        InputError: The address is not one of Redis.
    """

    def __init__(self, url: str, *, deadline_s: float) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._redis = redis
        self._deadline_s = deadline_s
        try:
            pool = redis.ConnectionPool.from_url(
                url,
                socket_timeout=deadline_s,
                socket_connect_timeout=deadline_s,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as exc:
            raise InputError("store url", str(exc).splitlines()[0]) from exc
        self._connection: Any = pool.make_connection()

    def apply(self, calls: list[tuple[Call, Mode]]) -> list[Answer]:
        """
        Run calls of the Lua function in one round trip.

        Args:
            calls: Each call, and what it does.

        Returns:
            Per call: the K values (none with WRITE_ONLY) and a status byte per
            event.

        Raises:
            StoreTimeout: No answer in time; what was applied is unknown.
            StoreError: The store is not there, or refused.
        """
        try:
            replies = self._flush([_command(_SHA, *call) for call in calls])
            missing = [
                position
                for position, reply in enumerate(replies)
                if isinstance(reply, self._redis.exceptions.NoScriptError)
            ]
            if missing:
                again = self._flush(
                    [_load()] + [_command(_SHA, *calls[at]) for at in missing]
                )
                for position, reply in zip(missing, again[1:], strict=True):
                    replies[position] = reply
        except self._redis.exceptions.TimeoutError as exc:
            self.close()
            raise StoreTimeout(self._deadline_s) from exc
        except (self._redis.exceptions.RedisError, OSError) as exc:
            self.close()
            raise StoreError(f"the store failed: {exc}") from exc
        for reply in replies:
            if isinstance(reply, Exception):
                raise StoreError(f"the store refused: {reply}") from reply
        return [(reply[:-1], reply[-1]) for reply in replies]

    def _flush(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        connection = self._connection
        connection.connect()
        connection.send_packed_command(connection.pack_commands(commands))
        replies = []
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except self._redis.exceptions.ResponseError as exc:
                replies.append(exc)
        return replies

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""
        self._connection.disconnect()


def _load() -> tuple[Any, ...]:
    return ("SCRIPT", "LOAD", _SCRIPT)


def _command(sha: bytes, call: Call, mode: Mode) -> tuple[Any, ...]:
    head = (b"EVALSHA", sha, len(call.keys))
    return (*head, *call.keys, mode.value, call.arguments, call.events)
