"""How much a stream holds, and whether that is all it may."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

# What Redis needs for an entry beside its chunk; a listpack node of 4 KB or one chunk.
_ENTRY_BYTES = 64
_EVERY_S = 1.0
MOST_STREAM_BYTES = 256 << 20  # 1.7 million records of the fraud product


class Level:
    """
    Judges by the number of entries, and the mean size of those that were added here.

    Args:
        most_bytes: What the stream may hold.

    Attributes:
        full: It holds that.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._due_s = 0.0
        self._added = self._added_bytes = 0
        self.full = False

    @property
    def due(self) -> bool:
        """Tell whether it is time to ask for the length."""
        return time.monotonic() >= self._due_s

    def add(self, size: int) -> None:
        """Count an entry that was added."""
        self._added += 1
        self._added_bytes += size

    def measure(self, length: object) -> None:
        """Judge from the stream's length; what is no number tells nothing."""
        if not isinstance(length, int):
            return
        self._due_s = time.monotonic() + _EVERY_S
        each = _ENTRY_BYTES + self._added_bytes / max(1, self._added)
        full = length * each > self._most_bytes
        if full != self.full:
            text = "the journal's stream holds %d chunks%s"
            log.warning(text, length, ": it is full" if full else " and takes more")
        self.full = full
