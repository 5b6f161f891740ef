"""Remember entries acknowledged lately, to send them again if Redis loses them."""

from __future__ import annotations

import time
from collections import deque

from tollgate.journal.entries import Entry

# With a slow disk, a Redis that syncs each second replies up to 2 s before it has
# written (flushAppendOnlyFile). Entries that a killed Redis lost are sent again.
_RECENT_S, _RECENT_BYTES = 3.0, 8 << 20


class Recent:
    """Entries that were acknowledged within the seconds before the last one."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, Entry]] = deque()
        self._bytes = 0
        self._queue: deque[Entry] = deque()

    def note(self, entry: Entry) -> None:
        """Remember an acknowledged entry."""
        now_s = time.monotonic()
        self._entries.append((now_s, entry))
        self._bytes += len(entry[1])
        while self._entries and (
            now_s - self._entries[0][0] > _RECENT_S or self._bytes > _RECENT_BYTES
        ):
            self._bytes -= len(self._entries.popleft()[1][1])

    @property
    def due(self) -> bool:
        """Return whether entries are left to send again."""
        return bool(self._queue)

    def repeat(self) -> None:
        """Queue all remembered entries to be sent again."""
        self._queue = deque(entry for _, entry in self._entries)

    def take(self, most_bytes: int) -> list[Entry]:
        """Return the next entries to send again, at least one; some must be queued."""
        taken = [self._queue.popleft()]
        size = len(taken[0][1])
        while self._queue and size + len(self._queue[0][1]) <= most_bytes:
            taken.append(self._queue.popleft())
            size += len(taken[-1][1])
        return taken
