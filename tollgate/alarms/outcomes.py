"""
Store the last outcome of each machine, so that only its changes raise alarms.

The store's Redis has it, so it survives a restart of the consumer, and another consumer
that takes over a partition continues with it. A machine without an entry was never
seen, and counts as one with the mildest outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tollgate.errors import StoreError
from tollgate.store.redis.redis_store import RedisStore, describe_error

_PREFIX = b"tollgate:%s:outcome-of:"


_MILD_S = 30 * 86_400  # a machine that is quiet for so long is as good as a new one


class MachineOutcome(msgspec.Struct, frozen=True):
    """
    The outcome of one machine.

    Attributes:
        newest_us: Time of its newest reading, µs since the epoch; one that is ahead of
            the clock counts as the time at which it came.
        reading_ids: Ids of its readings in the batch that wrote this: those of a batch
            that is delivered again are known by them.
    """

    outcome: str
    newest_us: int = 0
    reading_ids: tuple[str, ...] = ()


class OutcomeStore:
    """
    Read and write the outcomes of one product's machines.

    Args:
        mildest: Outcome of a machine without an entry.
    """

    def __init__(self, store: RedisStore, *, product: str, mildest: str) -> None:
        self._store = store
        self._prefix = _PREFIX % product.encode()
        self._mildest = mildest

    def read(self, machines: Sequence[str]) -> dict[str, MachineOutcome]:
        """
        Read the last outcomes of machines.

        Raises:
            StoreError: The store did not respond, or refuses.
        """
        replies = self._run([(b"GET", self._key(one)) for one in machines])
        return {
            machine: self._decode(reply)
            for machine, reply in zip(machines, replies, strict=True)
        }

    def write(self, outcomes: Mapping[str, MachineOutcome]) -> None:
        """
        Write outcomes; the mildest expires after a month.

        Raises:
            StoreError: The store did not respond, or refuses.
        """
        commands: list[tuple[Any, ...]] = []
        for machine, one in outcomes.items():
            command = (b"SET", self._key(machine), msgspec.json.encode(one))
            mild = one.outcome == self._mildest
            commands.append((*command, b"EX", _MILD_S) if mild else command)
        self._run(commands)

    def require_store(self) -> None:
        """
        Check that the store responds.

        Raises:
            StoreError: It does not.
        """
        self._run([(b"GET", self._prefix)])

    def _decode(self, reply: bytes | None) -> MachineOutcome:
        if reply is None:
            return MachineOutcome(self._mildest)
        try:
            return msgspec.json.decode(reply, type=MachineOutcome)
        except msgspec.MsgspecError:  # damaged: the next reading writes it again
            return MachineOutcome(self._mildest)

    def _key(self, machine: str) -> bytes:
        return self._prefix + machine.encode()

    def _run(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        if not commands:
            return []
        _, replies = self._store.flush([], extra_commands=commands)
        for reply in replies:
            if isinstance(reply, Exception):
                problem = f"the store refuses outcomes: {describe_error(reply)}"
                raise StoreError(problem) from reply
        return list(replies)
