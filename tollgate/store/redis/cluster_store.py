"""Call the Lua function in a Redis Cluster: one key per call, one flush per node."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tollgate.errors import InputError, OutcomeUnknown, StoreError, StorePartial
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.redis.cluster_nodes import Nodes
from tollgate.store.redis.redis_store import (
    Answer,
    Command,
    Mode,
    RedisStore,
    WaitCallback,
    describe_error,
    do_nothing,
    eval_command,
)
from tollgate.store.redis.store_address import SOURCE, Address, read_address
from tollgate.store.store_events import ARGUMENTS, Call

# Split calls and commands of many keys by key, and join their replies.

_MANY = b"MGET"
# Commands that are sent with calls, or without any.
_ONE = (
    *(b"EVALSHA", b"GET", b"SET", b"DEL", b"SMISMEMBER", b"SMEMBERS"),
    *(b"XADD", b"XLEN"),
)


def split_call(call: Call, mode: Mode) -> list[Command]:
    """Build one command per key of a call."""
    arguments = np.frombuffer(call.arguments, ARGUMENTS)
    size = arguments["events"].astype(np.int64) * arguments["entry_bytes"]
    edges = itertools.pairwise([0, *size.cumsum().tolist()])
    width = ARGUMENTS.itemsize
    return [
        eval_command(
            [key],
            mode,
            arguments=call.arguments[at * width : (at + 1) * width],
            events=call.events[start:stop],
            forms=call.forms,
            known=call.known[at] if call.known else b"",
        )
        for at, (key, (start, stop)) in enumerate(zip(call.keys, edges, strict=True))
    ]


def join_answers(call: Call, mode: Mode, replies: Sequence[Any]) -> Answer:
    """
    Join the replies for a call's keys.

    Args:
        call: The call.
        mode: Its mode.
        replies: Per key its reply; an exception for one that is lost, which becomes an
            empty value, and status bytes 0.
    """
    events = np.frombuffer(call.arguments, ARGUMENTS)["events"].tolist()
    values, statuses = [], []
    for count, reply in zip(events, replies, strict=True):
        lost = isinstance(reply, Exception)
        statuses.append(bytes(count) if lost else reply[-1])
        values.append(b"" if lost else reply[0])
    return values if mode in (Mode.DRY, Mode.WRITE) else [], b"".join(statuses)


def split_command(command: Command) -> list[Command]:
    """
    Build one command per key.

    Raises:
        InputError: The command concerns all keys of the store, which no single node
            has.
    """
    name, *keys = command
    if name == _MANY:
        return [(b"GET", key) for key in keys]
    if name not in _ONE:
        raise InputError(SOURCE, f"is a cluster's, which cannot {name.decode()}")
    return [command]


def join_replies(command: Command, replies: Iterator[Any]) -> Any:
    """Take a command's replies and join them; lost ones are exceptions."""
    if command[0] != _MANY:
        return next(replies)
    return list(itertools.islice(replies, len(command) - 1))


def open_store(
    url: str, *, deadline_s: float, rules: BreakerRules | None = None
) -> RedisStore:
    """
    Open the store at an address, either one Redis or a cluster.

    Args:
        url: docs/store.md, "Addresses".
        deadline_s: Longest duration of one call, connecting included.
        rules: Circuit breaker rules for the nodes of a cluster.

    Raises:
        InputError: The address is invalid, or a file of TLS cannot be used.
    """
    address = read_address(url)
    if not address.cluster:
        return RedisStore(url, deadline_s=deadline_s)
    return ClusterStore(address, deadline_s=deadline_s, rules=rules or BreakerRules())


class ClusterStore(RedisStore):
    """
    Call the Lua function in a cluster: one key per call, all nodes at once.

    Args:
        address: Address of a cluster, with some of its nodes.
        deadline_s: Longest duration of one call, connecting included.
        rules: Circuit breaker rules for its nodes.
    """

    def __init__(
        self, address: Address, *, deadline_s: float, rules: BreakerRules
    ) -> None:
        self.deadline_s = deadline_s
        self._nodes = Nodes(address, deadline_s=deadline_s, rules=rules)

    @property
    def opened(self) -> int:
        """Return 0: a cluster does not count its connections."""
        return 0

    def flush(
        self,
        calls: list[tuple[Call, Mode]],
        *,
        extra_commands: Sequence[Command],
        on_wait: WaitCallback = do_nothing,
    ) -> tuple[list[Answer], list[Any]]:
        """
        Run calls of the Lua function, and commands after them, on all nodes at once.

        Args:
            calls: Each call, and its mode.
            extra_commands: Commands with one key each, or MGET; idempotent ones, on
                which no answer depends.
            on_wait: Called while the nodes work.

        Returns:
            As with one Redis; MGET has an exception for each key that is lost.

        Raises:
            StorePartial: Some keys have no reply.
            OutcomeUnknown, StoreError: No key has a reply.
        """
        until_s = time.monotonic() + self.deadline_s
        split = [split_call(call, mode) for call, mode in calls]
        commands = [one for part in split for one in part]
        commands += [
            one for command in extra_commands for one in split_command(command)
        ]
        replies = iter(self._nodes.run(commands, until_s, on_wait))
        parts = [[next(replies) for _ in part] for part in split]
        command_replies = [join_replies(command, replies) for command in extra_commands]
        answers = [
            join_answers(call, mode, part)
            for (call, mode), part in zip(calls, parts, strict=True)
        ]
        lost = [[isinstance(one, Exception) for one in part] for part in parts]
        if any(map(any, lost)):
            error = _error_for_all([one for part in parts for one in part])
            if all(map(all, lost)):
                raise error
            raise StorePartial(
                answers, command_replies, lost=lost, problem=str(error)
            ) from error
        return answers, command_replies

    def commands(self, call: Call, mode: Mode) -> list[Command]:
        """Build the commands that run a call next to others, one per key."""
        return split_call(call, mode)

    def probe(self) -> bool:
        """Return True if any node answers; this reads the slot map again."""
        return self._nodes.learn(
            time.monotonic() + self.deadline_s, allow_handshake=True
        )

    def close(self) -> None:
        """Drop all connections; the next call opens new ones."""
        self._nodes.close()


def _error_for_all(replies: Sequence[Any]) -> StoreError:
    """Choose the error to raise for all: prefer one that leaves the outcome unknown."""
    errors = [one for one in replies if isinstance(one, Exception)]
    for error in errors:
        if isinstance(error, OutcomeUnknown):
            return error
    for error in errors:
        if isinstance(error, StoreError):
            return error
    return StoreError(f"the store refused: {describe_error(errors[0])}")
