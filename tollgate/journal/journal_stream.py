"""
Send chunks to a Redis stream, together with the commands that store decisions.

A chunk is sent without waiting for the acknowledgements of earlier ones: data that has
reached Redis's socket survives the death of this process. This module never trims the
stream, so unread entries stay. Instead, a full stream is treated like an unreachable
one, and records go to the spool (docs/journal.md).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tollgate.errors import StoreError
from tollgate.journal.stream_entries import (
    End,
    Entry,
    chunk_entry,
    end_entry,
    stream_key,
)
from tollgate.store.redis.pipelined_connection import CommandPipeline
from tollgate.store.redis.redis_store import Command

# Estimate the size of a stream, and decide whether the stream is full.

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
        """Update `full` from the stream's length; ignore a reply that is no number."""
        if not isinstance(length, int):
            return
        self._due_s = time.monotonic() + _EVERY_S
        each = _ENTRY_BYTES + self._added_bytes / max(1, self._added)
        full = length * each > self._most_bytes
        if full != self.full:
            text = "the journal's stream holds %d chunks%s"
            log.warning(text, length, ": it is full" if full else " and takes more")
        self.full = full


# Remember entries acknowledged lately, to send them again if Redis loses them.

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


# In flight at once: as much as a socket buffers for a Redis that does not read (208
# KiB, Linux).
_MOST_SENT, _MOST_SENT_BYTES = 64, 128 << 10
_ANSWER_S = 1.0  # per wait for replies; the line's deadline ends it earlier
_EXTRA_PAUSE_S = 0.5  # pause of the other store's commands after an error
_NONE = -1  # no connection has this number


class Collected(msgspec.Struct, frozen=True):
    """
    Result of sending chunks.

    Attributes:
        acknowledged: Number of chunks acknowledged since the last call, oldest first.
        error: Cause why the others will not be acknowledged; None while they may be.
    """

    acknowledged: int
    error: StoreError | None = None


class _ExpectedReply(msgspec.Struct, frozen=True):
    """Kind of an expected reply, and the entry for one that counts."""

    kind: Literal["entry", "length", "again", "other"]
    entry: Entry = (b"", b"")


_LENGTH, _AGAIN, _OTHER = (
    _ExpectedReply("length"),
    _ExpectedReply("again"),
    _ExpectedReply("other"),
)


class JournalStream:
    """
    The stream of one product.

    Args:
        line: Connection to the Redis that holds the stream; closed with this.
        store: Connection to the Redis for other commands; closed with this. None for
            the same Redis.
        most_bytes: Size at which the stream is full: number of its entries times the
            mean size of those added here.
    """

    def __init__(
        self,
        product: str,
        line: CommandPipeline,
        *,
        store: CommandPipeline | None = None,
        most_bytes: int = MOST_STREAM_BYTES,
    ) -> None:
        self._key = stream_key(product)
        self._line = line
        self._store = store
        self._store_due_s = 0.0
        self._level = Level(most_bytes)
        self._awaited: deque[_ExpectedReply] = deque()
        self._sent = self._sent_bytes = 0  # of the entries in flight
        self._recent = Recent()
        self._opened = 0

    @property
    def full(self) -> bool:
        """Return whether the stream is full."""
        return self._level.full

    @property
    def awaiting(self) -> bool:
        """Return whether replies are still expected."""
        return bool(self._awaited)

    def room(self, chunks: Sequence[bytes]) -> int:
        """Return how many chunks may be sent before older ones are acknowledged."""
        sent, size = self._sent, self._sent_bytes
        for at, raw in enumerate(chunks):
            size += len(raw)
            if sent and (sent == _MOST_SENT or size > _MOST_SENT_BYTES):
                return at
            sent += 1
        return len(chunks)

    def send(
        self, chunks: Sequence[bytes], *, extra_commands: Sequence[Command] = ()
    ) -> None:
        """
        Send chunks after those sent before, with other commands.

        Raises:
            StoreLost, StoreError: See CommandPipeline.send; no earlier chunk is awaited
                any more.
        """
        self._send([chunk_entry(raw) for raw in chunks], extra_commands)

    def _send(
        self, entries: Sequence[Entry], extra_commands: Sequence[Command]
    ) -> None:
        commands = [self._add_command(entry) for entry in entries]
        awaited = [_ExpectedReply("entry", entry) for entry in entries]
        if self._level.due:
            commands.append((b"XLEN", self._key))
            awaited.append(_LENGTH)
        self._send_commands(commands, awaited, extra_commands=extra_commands)
        self._sent += len(entries)
        self._sent_bytes += sum(len(value) for _, value in entries)
        if self._line.opened != self._opened:
            self._opened = self._line.opened
            self._recent.repeat()
            self._repeat()

    def _add_command(self, entry: Entry) -> Command:
        return (b"XADD", self._key, b"*", *entry)

    def _send_commands(
        self,
        commands: Sequence[Command],
        awaited: Sequence[_ExpectedReply],
        *,
        extra_commands: Sequence[Command],
    ) -> None:
        here = extra_commands if self._store is None else ()
        try:
            self._line.send([*commands, *here])
        except StoreError:
            self._abandon()
            raise
        self._awaited.extend(awaited)
        self._awaited.extend([_OTHER] * len(here))
        if self._store is not None and extra_commands:
            self._send_to_store(self._store, extra_commands)

    def _send_to_store(
        self, line: CommandPipeline, commands: Sequence[Command]
    ) -> None:
        if time.monotonic() < self._store_due_s:
            return
        try:
            line.send(commands)
            line.collect(0.0)  # replies to earlier commands
        except StoreError as error:
            self._store_due_s = time.monotonic() + _EXTRA_PAUSE_S
            log.debug("decisions were not stored for repeated requests: %s", error)

    def collect(self, wait_s: float) -> Collected:
        """
        Return the acknowledged chunks; if there is no reply yet, wait up to `wait_s`
        seconds.

        After an error no reply is awaited, although some chunks may have been added.
        """
        acknowledged = 0
        try:
            for reply in self._line.collect(wait_s):
                acknowledged += self._take(reply)
            self._repeat()
        except StoreError as error:
            self._abandon()
            return Collected(acknowledged, error)
        return Collected(acknowledged)

    def _take(self, reply: Any) -> int:
        """Process a reply; return the number of entries that it acknowledges."""
        one = self._awaited.popleft()
        refused = isinstance(reply, Exception)
        if one.kind == "entry":
            if refused:
                raise StoreError(f"the journal's stream refused: {reply}")
            size = len(one.entry[1])
            self._sent -= 1
            self._sent_bytes -= size
            self._level.add(size)
            self._recent.note(one.entry)
            return 1
        if one.kind == "length":
            self._level.measure(reply)
        elif one.kind == "again" and refused:
            self._opened = _NONE  # repeat with the next chunk
        return 0

    def _repeat(self) -> None:
        """
        Send again some entries that were acknowledged shortly before a connection was
        lost.
        """
        if self._recent.due and _AGAIN not in self._awaited:
            part = self._recent.take(_MOST_SENT_BYTES)
            commands = [self._add_command(entry) for entry in part]
            self._send_commands(commands, [_AGAIN] * len(part), extra_commands=())

    def _abandon(self) -> None:
        """Stop awaiting replies; those that still arrive are ignored."""
        if self._recent.due or _AGAIN in self._awaited:
            self._opened = _NONE
        self._awaited = deque([_OTHER] * self._line.awaited)
        self._sent = self._sent_bytes = 0

    def add(
        self, chunks: Sequence[bytes], *, extra_commands: Sequence[Command] = ()
    ) -> int:
        """
        Add chunks and wait for the replies; no other chunk may be in flight.

        Returns:
            Number of them, from the first on, that are acknowledged.
        """
        return self._add([chunk_entry(raw) for raw in chunks], extra_commands)

    def end(self, end: End) -> bool:
        """Add the end of a writer; return whether the stream took it."""
        return self._add([end_entry(end)], ()) == 1

    def _add(self, entries: Sequence[Entry], extra_commands: Sequence[Command]) -> int:
        added = 0
        error: StoreError | None = None
        try:
            self._send(entries, extra_commands)
        except StoreError as exc:
            error = exc
        while added < len(entries) and error is None:
            found = self.collect(_ANSWER_S)
            added += found.acknowledged
            error = found.error
        if error is not None:
            log.debug("the journal's stream did not take all: %s", error)
        return added

    def request_length(self, *, extra_commands: Sequence[Command] = ()) -> None:
        """Request the length of a full stream, and send other commands."""
        try:
            self._send_commands(
                [(b"XLEN", self._key)], [_LENGTH], extra_commands=extra_commands
            )
        except StoreError as error:
            log.debug("the journal's stream has no answer: %s", error)

    def reset(self) -> None:
        """Drop connections and expected replies; the next chunk opens new ones."""
        self.close()
        self._abandon()

    def close(self) -> None:
        """Drop the connections."""
        self._line.close()
        if self._store is not None:
            self._store.close()
