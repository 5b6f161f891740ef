"""What every source of events can do, whatever carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One message: its bytes, and where it stood (stream or partition, and id)."""

    value: bytes
    position: str


class Buried(msgspec.Struct, frozen=True):
    """A message that goes to the dead letters, and why."""

    message: Message
    reason: str


class Source(Protocol):
    """
    Events in batches, each handed out again until it is committed.

    One thread uses it: a batch is polled, applied, and committed before the next
    poll. A process that dies in between leaves the batch to whoever polls next.
    """

    def poll(self, *, most: int, wait_s: float) -> Sequence[Message]:
        """Return up to so many messages; none when nothing came within the wait."""

    def bury(self, buried: Sequence[Buried]) -> None:
        """Keep messages as dead letters; durable when it returns."""

    def commit(self) -> None:
        """Say that everything polled so far is applied or buried."""

    def backlog(self) -> int:
        """Count the messages that wait in this consumer's partitions."""

    def partitions(self) -> int:
        """Count the partitions that this consumer reads now."""

    def close(self) -> None:
        """Leave the group; what is not committed is others' work."""
