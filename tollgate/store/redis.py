"""Call the Lua function in Redis, within a deadline."""

from __future__ import annotations

import enum
import hashlib
import logging
import time
from importlib import resources
from typing import Any

from tollgate.errors import (
    InputError,
    OutcomeUnknown,
    StoreError,
    StoreLost,
    StoreTimeout,
)
from tollgate.store.events import Call

log = logging.getLogger(__name__)

_SCRIPT = resources.files("tollgate.store").joinpath("apply.lua").read_bytes()
_SHA = hashlib.sha1(_SCRIPT, usedforsecurity=False).hexdigest().encode()

_MAX_OWED = 16  # late replies waited for; a store behind by more gets a new connection

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
        deadline_s: How long one call may take, connecting included. Each wait for
            the socket gets what is left of it; redis-py's handshake and a reply
            that comes in pieces are several waits.

    Raises:
        InputError: The address is not one of Redis.
    """

    def __init__(self, url: str, *, deadline_s: float) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._errors = redis.exceptions
        self._deadline_s = deadline_s
        try:
            pool = redis.ConnectionPool.from_url(
                url,
                socket_timeout=deadline_s,
                socket_connect_timeout=deadline_s,
                retry=Retry(NoBackoff(), 0),
                protocol=2,  # a handshake without HELLO: fewer waits for a new one
            )
        except ValueError as exc:
            raise InputError("store url", str(exc).splitlines()[0]) from exc
        self._connection: Any = pool.make_connection()
        self._open = False
        self._owed = 0  # replies still to come, of calls that were given up too

    def apply(self, calls: list[tuple[Call, Mode]]) -> list[Answer]:
        """
        Run calls of the Lua function in one round trip.

        Args:
            calls: Each call, and what it does.

        Returns:
            Per call: the K values (none with WRITE_ONLY) and a status byte per
            event.

        Raises:
            OutcomeUnknown: No answer in time, or the connection broke before it
                came; StoreTimeout, StoreLost. Or only a part was refused.
            StoreError: The store is not there, or refused; nothing was applied.
        """
        until_s = time.monotonic() + self._deadline_s
        try:
            replies = self._run([_command(_SHA, *call) for call in calls], until_s)
        except self._errors.TimeoutError as exc:
            raise StoreTimeout(self._deadline_s) from exc
        except (self._errors.RedisError, OSError) as exc:
            raise StoreError(f"the store failed: {exc}") from exc
        refused = [reply for reply in replies if isinstance(reply, Exception)]
        if refused:
            whole = len(refused) == len(replies)
            kind = StoreError if whole else OutcomeUnknown
            raise kind(f"the store refused: {refused[0]}") from refused[0]
        return [(reply[:-1], reply[-1]) for reply in replies]

    def _run(self, commands: list[tuple[Any, ...]], until_s: float) -> list[Any]:
        """Flush commands; those that find no script once more, behind the script."""
        replies = self._flush(commands, until_s)
        missing = [
            position
            for position, reply in enumerate(replies)
            if isinstance(reply, self._errors.NoScriptError)
        ]
        if missing:
            again = [_load(), *(commands[at] for at in missing)]
            for position, reply in zip(
                missing, self._flush(again, until_s)[1:], strict=True
            ):
                replies[position] = reply
        return replies

    def _flush(self, commands: list[tuple[Any, ...]], until_s: float) -> list[Any]:
        try:
            self._send(self._connection.pack_commands(commands), until_s)
            self._owed += len(commands)
            while self._owed > len(commands):
                self._reply(until_s)  # the late answer to a call that was given up
            return [self._reply(until_s) for _ in commands]
        except self._errors.TimeoutError:
            # Replies come in order, so late ones can be told from the next call's;
            # a busy store would be late with a new connection all the more.
            if not 0 < self._owed <= _MAX_OWED:
                self.close()
            raise
        except BaseException:
            # What is still under way must never be read as another call's answer.
            self.close()
            raise

    def _send(self, packed: list[bytes], until_s: float) -> None:
        """
        Send; a connection that broke since its last use is replaced, once.

        Events are idempotent, so what the broken one may have carried does no harm.
        """
        if self._open:
            try:
                # Without replies to come, what can be read is the connection's end.
                if self._owed or not self._connection.can_read(timeout=0):
                    self._send_whole(packed, until_s)
                    return
            except self._errors.ConnectionError as exc:
                log.debug("the store's connection is replaced: %s", exc)
            self.close()
        self._connect(until_s)
        try:
            self._send_whole(packed, until_s)
        except self._errors.ConnectionError as exc:
            raise StoreLost(str(exc)) from exc

    def _send_whole(self, packed: list[bytes], until_s: float) -> None:
        self._wait(until_s)
        try:
            self._connection.send_packed_command(packed, check_health=False)
        except self._errors.TimeoutError:
            self.close()  # a command that was cut cannot be finished
            raise

    def _connect(self, until_s: float) -> None:
        left_s = self._left_s(until_s)
        self._connection.socket_connect_timeout = left_s
        self._connection.socket_timeout = left_s
        self._connection.connect()
        self._open = True

    def _reply(self, until_s: float) -> Any:
        """Read one reply; an error that Redis answered with is returned."""
        errors = self._errors
        self._wait(until_s)
        try:
            reply = self._connection.read_response(disconnect_on_error=False)
        except errors.ResponseError as exc:
            reply = exc
        except (errors.BusyLoadingError, errors.AuthenticationError):
            raise  # Redis answered, too, and applied nothing
        except errors.TimeoutError:
            raise
        except (errors.RedisError, OSError) as exc:
            raise StoreLost(str(exc)) from exc
        self._owed -= 1
        return reply

    def _wait(self, until_s: float) -> None:
        """Let the socket's next operation take no longer than what is left."""
        self._connection._sock.settimeout(self._left_s(until_s))

    def _left_s(self, until_s: float) -> float:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise self._errors.TimeoutError("no time left")
        return left_s

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""
        self._open = False
        self._owed = 0
        self._connection.disconnect()


def _load() -> tuple[Any, ...]:
    return ("SCRIPT", "LOAD", _SCRIPT)


def _command(sha: bytes, call: Call, mode: Mode) -> tuple[Any, ...]:
    head = (b"EVALSHA", sha, len(call.keys))
    return (*head, *call.keys, mode.value, call.arguments, call.events)
