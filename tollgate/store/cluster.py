"""Call the Lua function in a Redis Cluster: one key per call, one flush per node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tollgate.errors import OutcomeUnknown, StoreError, StorePartial
from tollgate.store.address import Address, read_address
from tollgate.store.breaker import BreakerRules
from tollgate.store.connection import Command, WaitCallback, do_nothing
from tollgate.store.events import Call
from tollgate.store.nodes import Nodes
from tollgate.store.pieces import join_answers, join_replies, split_call, split_command
from tollgate.store.redis import Answer, Mode, RedisStore
from tollgate.store.wording import describe_error


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
