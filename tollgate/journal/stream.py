"""
Chunks into a Redis stream, and what callers are answered again beside them.

A chunk is sent without waiting for those before it: what has reached the socket of
Redis, the death of this process does not take. Nothing trims here: what no worker has
read stays. Instead a stream that holds all it may is treated as one that is away, and
records go to the spool (docs/journal.md).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tollgate.errors import StoreError
from tollgate.journal.entries import End, Entry, chunk_entry, end_entry, stream_key
from tollgate.journal.level import MOST_STREAM_BYTES, Level
from tollgate.journal.recent import Recent
from tollgate.store.connection import Command
from tollgate.store.line import Line

log = logging.getLogger(__name__)

# Under way at once: what a socket takes of a Redis that does not read (208 KiB, Linux).
_MOST_SENT, _MOST_SENT_BYTES = 64, 128 << 10
_ANSWER_S = 1.0  # of one wait for replies; the line's deadline ends it before
_BESIDE_REST_S = 0.5  # for the store of the commands beside, after an error
_NONE = -1  # a number that no connection has


class Collected(msgspec.Struct, frozen=True):
    """
    What became of the chunks that were sent.

    Attributes:
        acknowledged: So many more of them, the oldest.
        error: Why the others will not be; None while they may.
    """

    acknowledged: int
    error: StoreError | None = None


class _Awaited(msgspec.Struct, frozen=True):
    """What a reply will be to, and the entry, of one that counts."""

    kind: Literal["entry", "length", "again", "other"]
    entry: Entry = (b"", b"")


_LENGTH, _AGAIN, _OTHER = _Awaited("length"), _Awaited("again"), _Awaited("other")


class JournalStream:
    """
    The stream of one product.

    Args:
        product: Whose.
        line: To the Redis that holds it; closed with this.
        beside: To the Redis for commands beside; closed with this. None for the same.
        most_bytes: What the stream may hold, by the number of its entries and the
            mean size of those that were added here.
    """

    def __init__(
        self,
        product: str,
        line: Line,
        *,
        beside: Line | None = None,
        most_bytes: int = MOST_STREAM_BYTES,
    ) -> None:
        self._key = stream_key(product)
        self._line = line
        self._beside = beside
        self._beside_due_s = 0.0
        self._level = Level(most_bytes)
        self._awaited: deque[_Awaited] = deque()
        self._sent = self._sent_bytes = 0  # of entries among them
        self._recent = Recent()
        self._opened = 0

    @property
    def full(self) -> bool:
        """Tell whether it holds all it may."""
        return self._level.full

    @property
    def awaiting(self) -> bool:
        """Tell whether replies are still to come."""
        return bool(self._awaited)

    def room(self, chunks: Sequence[bytes]) -> int:
        """Tell how many of some chunks may be sent before older ones are there."""
        sent, size = self._sent, self._sent_bytes
        for at, raw in enumerate(chunks):
            size += len(raw)
            if sent and (sent == _MOST_SENT or size > _MOST_SENT_BYTES):
                return at
            sent += 1
        return len(chunks)

    def send(self, chunks: Sequence[bytes], *, beside: Sequence[Command] = ()) -> None:
        """
        Send chunks behind those that were sent, with other commands.

        Raises:
            StoreLost, StoreError: As Line.send; none that was sent is awaited now.
        """
        self._send([chunk_entry(raw) for raw in chunks], beside)

    def _send(self, entries: Sequence[Entry], beside: Sequence[Command]) -> None:
        commands = [self._add_command(entry) for entry in entries]
        awaited = [_Awaited("entry", entry) for entry in entries]
        if self._level.due:
            commands.append((b"XLEN", self._key))
            awaited.append(_LENGTH)
        self._post(commands, awaited, beside=beside)
        self._sent += len(entries)
        self._sent_bytes += sum(len(value) for _, value in entries)
        if self._line.opened != self._opened:
            self._opened = self._line.opened
            self._recent.repeat()
            self._repeat()

    def _add_command(self, entry: Entry) -> Command:
        return (b"XADD", self._key, b"*", *entry)

    def _post(
        self,
        commands: Sequence[Command],
        awaited: Sequence[_Awaited],
        *,
        beside: Sequence[Command],
    ) -> None:
        here = beside if self._beside is None else ()
        try:
            self._line.send([*commands, *here])
        except StoreError:
            self._abandon()
            raise
        self._awaited.extend(awaited)
        self._awaited.extend([_OTHER] * len(here))
        if self._beside is not None and beside:
            self._send_beside(self._beside, beside)

    def _send_beside(self, line: Line, commands: Sequence[Command]) -> None:
        if time.monotonic() < self._beside_due_s:
            return
        try:
            line.send(commands)
            line.collect(0.0)  # of those before
        except StoreError as error:
            self._beside_due_s = time.monotonic() + _BESIDE_REST_S
            log.debug("decisions are not kept for whom asks again: %s", error)

    def collect(self, wait_s: float) -> Collected:
        """
        See what was acknowledged; without any reply, wait so long for the first.

        After an error nothing is awaited; some may have been added all the same.
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
        """Note a reply; how many entries it acknowledges."""
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
            self._opened = _NONE  # once more with the next chunk
        return 0

    def _repeat(self) -> None:
        """Send some of what was acknowledged shortly before a connection was lost."""
        if self._recent.due and _AGAIN not in self._awaited:
            part = self._recent.take(_MOST_SENT_BYTES)
            commands = [self._add_command(entry) for entry in part]
            self._post(commands, [_AGAIN] * len(part), beside=())

    def _abandon(self) -> None:
        """Await nothing any more; replies that come all the same count for nothing."""
        if self._recent.due or _AGAIN in self._awaited:
            self._opened = _NONE
        self._awaited = deque([_OTHER] * self._line.awaited)
        self._sent = self._sent_bytes = 0

    def add(self, chunks: Sequence[bytes], *, beside: Sequence[Command] = ()) -> int:
        """
        Add chunks and wait; none may be under way.

        Returns:
            How many of them, from the first on, are acknowledged.
        """
        return self._add([chunk_entry(raw) for raw in chunks], beside)

    def end(self, end: End) -> bool:
        """Tell the readers what a writer came to; whether the stream took it."""
        return self._add([end_entry(end)], ()) == 1

    def _add(self, entries: Sequence[Entry], beside: Sequence[Command]) -> int:
        added = 0
        error: StoreError | None = None
        try:
            self._send(entries, beside)
        except StoreError as exc:
            error = exc
        while added < len(entries) and error is None:
            found = self.collect(_ANSWER_S)
            added += found.acknowledged
            error = found.error
        if error is not None:
            log.debug("the journal's stream did not take all: %s", error)
        return added

    def look(self, *, beside: Sequence[Command] = ()) -> None:
        """Ask whether a stream that was full takes more; send other commands."""
        try:
            self._post([(b"XLEN", self._key)], [_LENGTH], beside=beside)
        except StoreError as error:
            log.debug("the journal's stream has no answer: %s", error)

    def reset(self) -> None:
        """Drop the connections and await nothing; the next chunk opens new ones."""
        self.close()
        self._abandon()

    def close(self) -> None:
        """Drop the connections."""
        self._line.close()
        if self._beside is not None:
            self._beside.close()
