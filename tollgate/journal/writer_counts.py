"""Counters of one writer of the journal."""

from __future__ import annotations

import msgspec


class JournalCounts(msgspec.Struct):
    """
    Counters of one writer, in records unless stated otherwise.

    Attributes:
        appended: Records handed over, including dropped ones.
        written: Records acknowledged by the stream, without those from the spool.
        spooled: Records synced to local disk because the stream could not take them.
        dropped: Records lost for lack of room, or because they could not be packed.
        drained: Chunks from the spool that the stream acknowledged.
        unreadable: Number of these chunks that this version cannot read.
        buffered: Records in memory now.
        full: True if the stream is full.
    """

    appended: int = 0
    written: int = 0
    spooled: int = 0
    dropped: int = 0
    drained: int = 0
    unreadable: int = 0
    buffered: int = 0
    full: bool = False
