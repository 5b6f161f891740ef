"""The interfaces of every source and feed of events, whatever system carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec


class Message(msgspec.Struct, frozen=True):
    """Hold one message; `position` is its stream or partition, and id."""

    value: bytes
    position: str
    partition: int = 0


class DeadLetter(msgspec.Struct, frozen=True):
    """Hold a message for the dead letters, and the reason."""

    message: Message
    reason: str


class Source(Protocol):
    """
    Deliver events in batches, each again and again until it is committed.

    One thread uses it: a batch is polled, applied, and committed before the next poll.
    If a process dies in between, the next one that polls gets the batch.

    Attributes:
        name: Name of the feed or topic, the same for all who share it.
    """

    name: str

    def poll(self, *, most: int, wait_s: float) -> Sequence[Message]:
        """Return up to `most` messages; none when none came within the wait."""

    def add_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Store messages as dead letters; durable when it returns."""

    def commit(self) -> None:
        """Acknowledge all messages polled so far; they are applied or dead letters."""

    def backlog(self) -> int:
        """Count the pending messages in this consumer's partitions."""

    def partitions(self) -> int:
        """Return the number of partitions that this consumer reads now."""

    def partition_count(self) -> int:
        """Return the number of the feed's partitions, all of them; 0 if unknown."""

    def caught_up(self) -> Mapping[int, int]:
        """
        Return how far the partitions held have been polled, by the time of producing.

        Returns:
            Partition -> µs since the epoch: all events produced before then have been
            polled. A partition for which this is unknown is left out.
        """

    def close(self) -> None:
        """Leave the group; other consumers get the messages that are not committed."""


class Feed(Protocol):
    """Send events, each with the id of the entity that determines their order."""

    def send(self, keys: Sequence[bytes], events: Sequence[bytes]) -> None:
        """Send events to the feed; they are stored when it returns."""

    def close(self) -> None:
        """Close the connection."""
