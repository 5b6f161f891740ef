"""
Chunks into a Redis stream, and what callers are answered again beside them.

Nothing trims here: what no worker has read stays. Instead a stream that holds all it
may is treated as one that is away, and records go to the spool (docs/journal.md).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from tollgate.errors import StoreError
from tollgate.journal.record import CHUNK_FIELD, END_FIELD, stream_key
from tollgate.store.connection import Command
from tollgate.store.redis import RedisStore

log = logging.getLogger(__name__)

# What Redis needs for an entry beside its chunk; a listpack node of 4 KB or one chunk.
_ENTRY_BYTES = 64
_LENGTH_EVERY_S = 1.0
# A Redis that syncs each second answers up to 2 s before it has written, while its
# disk is slow (flushAppendOnlyFile). What a killed one took with it is sent again.
_RECENT_S, _RECENT_BYTES = 3.0, 8 << 20
MOST_STREAM_BYTES = 256 << 20  # 1.7 million records of the fraud product


class End(msgspec.Struct, frozen=True, array_like=True):
    """
    What a writer came to: an entry of the stream, from it or about it.

    Attributes:
        writer: 16 hexadecimal digits.
        sequence: One behind the last number that it gave to a record.
        killed: Nobody closed it; the drain that found it says so.
    """

    writer: str
    sequence: int
    killed: bool


def encode_end(end: End) -> bytes:
    """Pack the end of a writer."""
    return msgspec.msgpack.encode(end)


class JournalStream:
    """
    The stream of one product.

    Args:
        product: Whose.
        store: The Redis that holds it; closed with this.
        beside: The Redis for commands beside; closed with this. None for the same.
        most_bytes: What the stream may hold, by the number of its entries and the
            mean size of those that were added here.

    Attributes:
        full: It holds all it may.
    """

    def __init__(
        self,
        product: str,
        store: RedisStore,
        *,
        beside: RedisStore | None = None,
        most_bytes: int = MOST_STREAM_BYTES,
    ) -> None:
        self._key = stream_key(product)
        self._store = store
        self._beside_store = beside
        self._most_bytes = most_bytes
        self._length_due_s = 0.0
        self._added = self._added_bytes = 0
        self._recent: deque[tuple[float, bytes]] = deque()  # acknowledged lately
        self._recent_bytes = 0
        self._opened = 0
        self.full = False

    def add(self, chunks: Sequence[bytes], *, beside: Sequence[Command] = ()) -> int:
        """
        Add chunks, in one round trip with other commands.

        Returns:
            How many of them, from the first on, are acknowledged.
        """
        commands: list[Command] = [
            (b"XADD", self._key, b"*", CHUNK_FIELD, raw) for raw in chunks
        ]
        asks = time.monotonic() >= self._length_due_s
        if asks:
            commands.append((b"XLEN", self._key))
        try:
            replies = self._flush(commands, beside)
        except StoreError as error:
            log.debug("the journal's stream has no answer: %s", error)
            return 0
        sent = 0
        for reply in replies[: len(chunks)]:
            if isinstance(reply, Exception):
                log.debug("the journal's stream refused: %s", reply)
                break
            sent += 1
        if sent == len(chunks):
            self._repeat()
        self._remember(chunks[:sent])
        self._added += sent
        self._added_bytes += sum(map(len, chunks[:sent]))
        if asks:
            self._measure(replies[len(chunks)])
        return sent

    def _repeat(self) -> None:
        """Send again what was acknowledged shortly before a connection was lost."""
        opened = self._store.opened
        if opened == self._opened:
            return
        again = [
            (b"XADD", self._key, b"*", CHUNK_FIELD, raw) for _, raw in self._recent
        ]
        if again:
            try:
                replies = self._store.flush([], beside=again)[1]
            except StoreError:
                return  # with the next chunk
            if any(isinstance(reply, Exception) for reply in replies):
                return
        self._opened = opened

    def _remember(self, chunks: Sequence[bytes]) -> None:
        now_s = time.monotonic()
        for raw in chunks:
            self._recent.append((now_s, raw))
            self._recent_bytes += len(raw)
        while self._recent and (
            now_s - self._recent[0][0] > _RECENT_S or self._recent_bytes > _RECENT_BYTES
        ):
            self._recent_bytes -= len(self._recent.popleft()[1])

    def _flush(
        self, commands: Sequence[Command], beside: Sequence[Command]
    ) -> list[object]:
        """Send commands; their replies, and then maybe those of the ones beside."""
        if self._beside_store is None:
            return self._store.flush([], beside=[*commands, *beside])[1]
        if beside:
            try:
                self._beside_store.flush([], beside=beside)
            except StoreError as error:
                log.debug("decisions are not kept for whom asks again: %s", error)
        return self._store.flush([], beside=commands)[1]

    def look(self, *, beside: Sequence[Command] = ()) -> None:
        """See whether a stream that was full takes more; send other commands."""
        try:
            replies = self._flush([(b"XLEN", self._key)], beside)
        except StoreError as error:
            log.debug("the journal's stream has no answer: %s", error)
            return
        self._measure(replies[0])

    def _measure(self, length: object) -> None:
        """Judge from the stream's length whether it may take more."""
        if not isinstance(length, int):
            return
        self._length_due_s = time.monotonic() + _LENGTH_EVERY_S
        each = _ENTRY_BYTES + self._added_bytes / max(1, self._added)
        full = length * each > self._most_bytes
        if full != self.full:
            text = "the journal's stream holds %d chunks%s"
            log.warning(text, length, ": it is full" if full else " and takes more")
        self.full = full

    def end(self, end: End) -> bool:
        """Tell the readers what a writer came to; whether the stream took it."""
        command = (b"XADD", self._key, b"*", END_FIELD, encode_end(end))
        try:
            (reply,) = self._store.flush([], beside=[command])[1]
        except StoreError:
            return False
        return not isinstance(reply, Exception)

    def close(self) -> None:
        """Drop the connections."""
        self._store.close()
        if self._beside_store is not None:
            self._beside_store.close()
