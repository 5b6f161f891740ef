"""Estimate the size of a stream, and decide whether the stream is full."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

# Redis' overhead per entry besides its chunk; a listpack node holds 4 KB or one chunk.
_ENTRY_BYTES = 64
_EVERY_S = 1.0
MOST_STREAM_BYTES = 256 << 20  # 1.7 million records of the fraud product


class Level:
    """
    Estimates a stream's size: number of entries times mean size of those added here.

    Args:
        most_bytes: Size at which the stream is full.

    Attributes:
        full: True if the stream has reached that size.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._due_s = 0.0
        self._added = self._added_bytes = 0
        self.full = False

    @property
    def due(self) -> bool:
        """Return whether it is time to request the length."""
        return time.monotonic() >= self._due_s

    def add(self, size: int) -> None:
        """Count an entry that was added."""
        self._added += 1
        self._added_bytes += size

    def measure(self, length: object) -> None:
        """
        Update `full` from the stream's length; ignore a reply that is not a number.
        """
        if not isinstance(length, int):
            return
        self._due_s = time.monotonic() + _EVERY_S
        each = _ENTRY_BYTES + self._added_bytes / max(1, self._added)
        full = length * each > self._most_bytes
        if full != self.full:
            text = "the journal's stream holds %d chunks%s"
            log.warning(text, length, ": it is full" if full else " and takes more")
        self.full = full
