"""What every source of events can do, whatever carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec


class Message(msgspec.Struct, frozen=True):
    """
    One message.

    Attributes:
        value: Its bytes.
        position: Where it stood: stream or partition, and id.
        partition: Number of the partition.
    """

    value: bytes
    position: str
    partition: int = 0


class Buried(msgspec.Struct, frozen=True):
    """A message that goes to the dead letters, and why."""

    message: Message
    reason: str


class Source(Protocol):
    """
    Events in batches, each handed out again until it is committed.

    One thread uses it: a batch is polled, applied, and committed before the next
    poll. A process that dies in between leaves the batch to whoever polls next.

    Attributes:
        name: Of the feed or topic, the same for all who share it.
    """

    name: str

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

    def partition_count(self) -> int:
        """Count all partitions of the feed, others' too; 0 while that is not known."""

    def caught_up(self) -> Mapping[int, int]:
        """
        Tell how far the partitions held have been polled, in the time of producing.

        Returns:
            Partition -> µs since the epoch: all that was produced before then has been
            polled. A partition of which that is not known is left out.
        """

    def close(self) -> None:
        """Leave the group; what is not committed is others' work."""
