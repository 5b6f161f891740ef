"""What a stream acknowledged lately, for a Redis that comes back without it."""

from __future__ import annotations

import time
from collections import deque

from tollgate.journal.entries import Entry

# A Redis that syncs each second answers up to 2 s before it has written, while its
# disk is slow (flushAppendOnlyFile). What a killed one took with it is sent again.
_RECENT_S, _RECENT_BYTES = 3.0, 8 << 20


class Recent:
    """Entries that were acknowledged in the last seconds before the last of them."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Entry]] = deque()
        self._bytes = 0
        self._again: deque[Entry] = deque()

    def note(self, entry: Entry) -> None:
        """Keep one that was acknowledged."""
        now_s = time.monotonic()
        self._kept.append((now_s, entry))
        self._bytes += len(entry[1])
        while self._kept and (
            now_s - self._kept[0][0] > _RECENT_S or self._bytes > _RECENT_BYTES
        ):
            self._bytes -= len(self._kept.popleft()[1][1])

    @property
    def due(self) -> bool:
        """Tell whether some are to be sent again."""
        return bool(self._again)

    def repeat(self) -> None:
        """Have them all sent again."""
        self._again = deque(entry for _, entry in self._kept)

    def take(self, most_bytes: int) -> list[Entry]:
        """Take the next ones to be sent again, one at least; there must be some."""
        taken = [self._again.popleft()]
        size = len(taken[0][1])
        while self._again and size + len(self._again[0][1]) <= most_bytes:
            taken.append(self._again.popleft())
            size += len(taken[-1][1])
        return taken
