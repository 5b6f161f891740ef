"""What a writer of the journal counts."""

from __future__ import annotations

import msgspec


class JournalCounts(msgspec.Struct):
    """
    Counters of one writer; records, unless it says otherwise.

    Attributes:
        appended: Handed over, those that were dropped included.
        written: In the stream, by its acknowledgement; what came out of the spool not
            included.
        spooled: On this machine's disk, synced, because the stream could not take it.
        dropped: Lost for want of room.
        drained: Chunks that came out of the spool into the stream.
        unreadable: Of these, chunks that this version cannot read.
        buffered: Records in memory now.
        full: The stream holds all it may.
    """

    appended: int = 0
    written: int = 0
    spooled: int = 0
    dropped: int = 0
    drained: int = 0
    unreadable: int = 0
    buffered: int = 0
    full: bool = False
