"""
Read and write the watermarks of a product's feeds, stored next to the values.

A feed delivers events: `purchases` (from the scoring call itself, or from a stream) and
`labels`. Its watermark is the newest event time that its writer has applied, so the age
of the watermark is the age of the events that the windows may lack. The writer of a
feed that has caught up advances the watermark although no event came. A stream delivers
events by partitions, each with its own watermark (tollgate/stream/marks.py): the
watermark of the feed is the lowest of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

PURCHASES, LABELS = "purchases", "labels"
FEEDS = (PURCHASES, LABELS)

# Newest event time applied, and the writer's clock at that moment; µs.
_WATERMARK = struct.Struct("<qq")

Command = tuple[Any, ...]


def feed_key(product: str, feed: str) -> bytes:
    """Return the store key of a feed's watermark."""
    return f"tollgate:{product}:feed:{feed}".encode()


def partition_key(product: str, feed: str, *, source: str, partition: int) -> bytes:
    """Return the store key of the watermark of one partition of a feed."""
    return feed_key(product, feed) + f":{source}:{partition}".encode()


def pack_watermark(event_time_us: int, *, now_us: int) -> bytes:
    """Pack a watermark; one that is ahead of the clock is set back to the clock."""
    return _WATERMARK.pack(min(event_time_us, now_us), now_us)


def unpack_watermark(value: object) -> int | None:
    """Read the event time of a watermark, µs; None if the value is not a watermark."""
    if not isinstance(value, bytes) or len(value) != _WATERMARK.size:
        return None
    return int(_WATERMARK.unpack(value)[0])


class Feeds:
    """
    Track the watermarks of a product's feeds for one caller of the store.

    The watermarks are sent with a call once per interval, not with every one: they are
    compared with limits of minutes.

    Args:
        product: The product.
        max_age_us: Feed -> largest age of its watermark; a feed that is not named is
            read, and is never stale.
        interval_us: Interval between reads and between writes.
        marks: True if this caller writes the purchases' watermark.
    """

    def __init__(
        self,
        product: str,
        max_age_us: Mapping[str, int],
        *,
        interval_us: int,
        marks: bool = True,
    ) -> None:
        self._names = tuple(dict.fromkeys((*FEEDS, *max_age_us)))
        self._keys = [feed_key(product, name) for name in self._names]
        self._purchases_key = feed_key(product, PURCHASES)
        self._max_age_us = dict(max_age_us)
        self._interval_us = interval_us
        self._marks = marks
        self._read_due_us = 0
        self._write_due_us = 0
        self._applied_us = 0  # newest purchase this caller has written
        self.watermark_us: dict[str, int] = {}

    def commands(self, now_us: int, *, newest_us: int | None) -> list[Command]:
        """
        Return the commands to send with the next call; mostly none.

        Args:
            now_us: The clock.
            newest_us: Newest purchase that the call writes; None when it writes none.
        """
        if not self._marks:
            newest_us = None
        if newest_us is not None and newest_us > self._applied_us:
            self._applied_us = newest_us
        commands: list[Command] = []
        if newest_us is not None and now_us >= self._write_due_us:
            self._write_due_us = now_us + self._interval_us
            value = pack_watermark(self._applied_us, now_us=now_us)
            commands.append((b"SET", self._purchases_key, value))
        if commands or now_us >= self._read_due_us:
            self._read_due_us = now_us + self._interval_us
            commands.append((b"MGET", *self._keys))
        return commands

    def note(self, replies: list[Any]) -> None:
        """Take the store's replies to these commands; an error changes nothing."""
        if not replies or not isinstance(replies[-1], list):
            return
        for name, value in zip(self._names, replies[-1], strict=True):
            watermark_us = unpack_watermark(value)
            if watermark_us is not None:
                self.watermark_us[name] = watermark_us

    def retry(self) -> None:
        """Send the commands again with the next call; the last one got no reply."""
        self._read_due_us = self._write_due_us = 0

    def ages_us(self, now_us: int) -> dict[str, int]:
        """Return the age of each watermark that was ever read."""
        return {
            name: max(0, now_us - mark_us)
            for name, mark_us in self.watermark_us.items()
        }

    def stale(self, now_us: int) -> frozenset[str]:
        """Return the feeds that are too old, or have no watermark."""
        if not self._max_age_us:
            return frozenset()
        ages_us = self.ages_us(now_us)
        return frozenset(
            name
            for name, most_us in self._max_age_us.items()
            if ages_us.get(name, most_us + 1) > most_us
        )
