"""Call the Lua function in Redis, within a deadline."""

from __future__ import annotations

import enum
import hashlib
import time
from collections.abc import Sequence
from importlib import resources
from typing import Any

from tollgate.errors import (
    InputError,
    OutcomeUnknown,
    StoreError,
    StoreTimeout,
)
from tollgate.store.redis.connection import (
    Command,
    Connection,
    WaitCallback,
    do_nothing,
)
from tollgate.store.redis.error_text import describe_error
from tollgate.store.redis.store_address import SOURCE, read_address
from tollgate.store.store_events import Call

_SCRIPT = resources.files("tollgate.store").joinpath("apply.lua").read_bytes()
_SHA = hashlib.sha1(_SCRIPT, usedforsecurity=False).hexdigest().encode()

Answer = tuple[list[bytes], bytes]
NO_ANSWER: Answer = ([], b"")  # to a call without keys, which is not made


class Mode(bytes, enum.Enum):
    """Mode of a call: see ARGV[1] of apply.lua."""

    DRY = b"0"
    WRITE = b"1"
    WRITE_ONLY = b"2"


class RedisStore:
    """
    Call the Lua function in one Redis.

    Args:
        url: redis://, rediss:// or unix:// address.
        deadline_s: Longest duration of one call, connecting included; it may be changed
            between two calls.

    Raises:
        InputError: The address is not one of a single Redis.
    """

    def __init__(self, url: str, *, deadline_s: float) -> None:
        address = read_address(url)
        if address.cluster:
            raise InputError(SOURCE, "is a cluster's; this needs a single Redis")
        self.deadline_s = deadline_s
        self._link = Connection(address)

    @property
    def opened(self) -> int:
        """
        Return the number of connections so far; 0 in a cluster, which does not count.
        """
        return self._link.opened

    def apply(self, calls: list[tuple[Call, Mode]]) -> list[Answer]:
        """
        Run calls of the Lua function in one round trip.

        Args:
            calls: Each call, and its mode.

        Returns:
            Per call: the K values (none with WRITE_ONLY) and a status byte per event.

        Raises:
            OutcomeUnknown, StoreError: As `flush`.
        """
        return self.flush(calls, extra_commands=())[0]

    def flush(
        self,
        calls: list[tuple[Call, Mode]],
        *,
        extra_commands: Sequence[Command],
        on_wait: WaitCallback = do_nothing,
    ) -> tuple[list[Answer], list[Any]]:
        """
        Run calls of the Lua function, and commands after them, in one round trip.

        Args:
            calls: Each call, and its mode.
            extra_commands: Plain commands; idempotent ones, on which no answer depends.
            on_wait: Called while the store works; not called when nothing could be
                sent.

        Returns:
            Per call: the K values (none with WRITE_ONLY) and a status byte per event.
                Per command: its reply, or the error that Redis replied.

        Raises:
            OutcomeUnknown: No reply in time, or the connection broke before it came;
                StoreTimeout, StoreLost. Or only a part was refused.
            StoreError: The store is unavailable, or refused; nothing was applied.
        """
        until_s = time.monotonic() + self.deadline_s
        try:
            commands = [*(call_command(*call) for call in calls), *extra_commands]
            replies = self._run(commands, until_s, on_wait=on_wait)
        except self._link.errors.TimeoutError as exc:
            raise StoreTimeout(self.deadline_s) from exc
        except (self._link.errors.RedisError, OSError) as exc:
            raise StoreError(f"the store failed: {describe_error(exc)}") from exc
        answers = replies[: len(calls)]
        refused = [reply for reply in answers if isinstance(reply, Exception)]
        if refused:
            whole = len(refused) == len(answers)
            kind = StoreError if whole else OutcomeUnknown
            raise kind(f"the store refused: {describe_error(refused[0])}") from refused[
                0
            ]
        return [(reply[:-1], reply[-1]) for reply in answers], replies[len(calls) :]

    def probe(self) -> bool:
        """
        Send PING and the script over a new connection, within the deadline.

        The connection stays open for the next call, and the script is loaded. No
        request waits for this, so TLS gets more time to connect.
        """
        return self._link.probe(self.deadline_s, load_command())

    def _run(
        self, commands: list[Command], until_s: float, *, on_wait: WaitCallback
    ) -> list[Any]:
        """Flush commands; repeat those that lacked the script, after loading it."""
        link = self._link
        replies = link.exchange(commands, until_s, on_wait=on_wait)
        missing = [
            position
            for position, reply in enumerate(replies)
            if isinstance(reply, link.errors.NoScriptError)
        ]
        if missing:
            again = [load_command(), *(commands[at] for at in missing)]
            for position, reply in zip(
                missing, link.exchange(again, until_s)[1:], strict=True
            ):
                replies[position] = reply
        return replies

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""
        self._link.close()


class NoStore(RedisStore):
    """Stand in for a store where none is configured: it is always unavailable."""

    def __init__(self) -> None:
        """Open no connection."""
        self.deadline_s = 0.0

    def flush(
        self,
        calls: list[tuple[Call, Mode]],
        *,
        extra_commands: Sequence[Command],
        on_wait: WaitCallback = do_nothing,
    ) -> tuple[list[Answer], list[Any]]:
        """Raise StoreError."""
        raise StoreError("no store is configured")

    def probe(self) -> bool:
        """Return False: it stays unavailable."""
        return False

    def close(self) -> None:
        """Do nothing: there is no connection."""


def load_command() -> Command:
    """Build the command that loads the script into a Redis."""
    return ("SCRIPT", "LOAD", _SCRIPT)


def call_command(call: Call, mode: Mode) -> Command:
    """Build the command that runs a call."""
    return eval_command(call.keys, mode, arguments=call.arguments, events=call.events)


def eval_command(
    keys: Sequence[bytes], mode: Mode, *, arguments: bytes, events: bytes
) -> Command:
    """Build the command that runs the script on some keys."""
    return (b"EVALSHA", _SHA, len(keys), *keys, mode.value, arguments, events)
