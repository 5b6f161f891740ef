"""Read chunks of decisions from the product's Redis stream as a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tollgate.audit.chain.anchor import AnchorMark
from tollgate.errors import JournalError, StoreError
from tollgate.journal.stream_entries import CHUNK_FIELD, END_FIELD, stream_key
from tollgate.store.redis.cluster_client import open_any_client
from tollgate.store.redis.redis_store import redis_errors
from tollgate.stream.redis_group import StreamGroup

GROUP = "journal"
TRIAL_GROUP = "challenger"  # trimming does not wait for this group
DEAD_LETTERS = ":dead-letters"
MAX_DEAD_LETTERS = 100_000

_CONSUMER = "tollgate"
_ANSWER_S = 10.0
_NEW = b">"


class StreamEntry(msgspec.Struct, frozen=True):
    """An entry of the stream: its id, and the chunk or the writer's end in it."""

    id: bytes
    chunk: bytes
    end: bytes = b""


class ChunkSource:
    """
    Consumer of the stream of a product's journal.

    Args:
        url: Redis address; see docs/store.md, "Addresses".
        group: Consumer group; created on first use, and then reads from the beginning.
            The group of trials does not trim the stream, and trimming does not wait for
            it.

    Raises:
        InputError: The address is invalid, or a TLS file cannot be used.
    """

    def __init__(self, url: str, *, product: str, group: str = GROUP) -> None:
        self._redis: Any = open_any_client(url, timeout_s=_ANSWER_S)
        self._stream = stream_key(product).decode()
        self._group = group
        self._members = StreamGroup(self._redis, group)
        self._head_key = f"{self._stream}:head:{group}"
        self._pending_after: bytes | None = b"0"  # pending entries come first
        self._group_exists = False

    def poll(self, *, most: int, wait_s: float) -> list[StreamEntry]:
        """
        Return up to `most` entries; pending ones, which were never acknowledged, come
        first.

        Raises:
            StoreError: Redis did not respond.
        """
        try:
            with redis_errors("the journal's stream cannot be read"):
                if not self._group_exists:
                    self._members.make(self._stream)
                    self._group_exists = True
                if self._pending_after is not None:
                    found = self._read(self._pending_after, most=most, block_ms=None)
                    self._pending_after = found[-1].id if found else None
                    if found:
                        return found
                return self._read(_NEW, most=most, block_ms=max(1, int(wait_s * 1e3)))
        except StoreError:
            # A restarted Redis may have lost the group, or the last acknowledgements:
            # then the entries are pending again.
            self._group_exists, self._pending_after = False, b"0"
            raise

    def acknowledge(self, ids: Sequence[bytes]) -> None:
        """
        Acknowledge entries, and trim entries that no group needs any more.

        Raises:
            StoreError: Redis did not respond; the entries are delivered again.
        """
        with redis_errors("the journal's stream cannot be acknowledged"):
            for at in range(0, len(ids), 1000):
                self._redis.xack(self._stream, self._group, *ids[at : at + 1000])
            if self._group != TRIAL_GROUP:
                self._trim()

    def add_dead_letter(self, entry: StreamEntry, reason: str) -> None:
        """Add an entry that cannot be decoded to the dead letters, for inspection."""
        fields = {
            CHUNK_FIELD: entry.chunk or entry.end,
            b"reason": reason,
            b"id": entry.id,
        }
        with redis_errors("a dead letter cannot be written"):
            self._redis.xadd(
                self._stream + DEAD_LETTERS,
                fields,
                maxlen=MAX_DEAD_LETTERS,
                approximate=True,
            )

    def require_chain(self, mark: AnchorMark, hashes: Sequence[str]) -> None:
        """
        Check that this group feeds this chain, and that the chain has lost no links.

        Raises:
            JournalError: The group feeds another chain, or links are gone.
            StoreError: Redis did not respond.
        """
        with redis_errors("the journal's head cannot be read"):
            raw = self._redis.get(self._head_key)
        if raw is None:
            return
        known = msgspec.json.decode(raw, type=AnchorMark)
        if known.chain != mark.chain:
            problem = (
                f"the group {self._group} feeds chain {known.chain[:12]}…, not this "
                f"one; name another group, or delete {self._head_key} in Redis"
            )
            raise JournalError("journal", problem)
        if [known.hash] != list(hashes[known.number - 1 : known.number]):
            problem = (
                f"Redis has a link {known.number} that is not in the folder: links "
                "were removed or rebuilt; run `journal verify`"
            )
            raise JournalError("journal", problem)

    def note(self, mark: AnchorMark) -> None:
        """Store the last link of the chain in Redis."""
        with redis_errors("the journal's head cannot be noted"):
            self._redis.set(self._head_key, msgspec.json.encode(mark))

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    def _read(
        self, after: bytes, *, most: int, block_ms: int | None
    ) -> list[StreamEntry]:
        reply = self._redis.xreadgroup(
            self._group, _CONSUMER, {self._stream: after}, count=most, block=block_ms
        )
        return [
            # An entry that was deleted while pending has no fields.
            StreamEntry(
                id=at,
                chunk=(fields or {}).get(CHUNK_FIELD, b""),
                end=(fields or {}).get(END_FIELD, b""),
            )
            for _, entries in reply or ()
            for at, fields in entries
        ]

    def _trim(self) -> None:
        """Remove entries that every group has acknowledged, because they hold ids."""
        keep_from = min(
            self._first_unread(group)
            for group in self._redis.xinfo_groups(self._stream)
            if group["name"] != TRIAL_GROUP.encode()
        )
        self._redis.xtrim(
            self._stream, minid=f"{keep_from[0]}-{keep_from[1]}", approximate=False
        )

    def _first_unread(self, group: dict[str, Any]) -> tuple[int, int]:
        oldest = self._redis.xpending(self._stream, group["name"])["min"]
        if oldest is not None:
            return _numbers(oldest)
        millis, number = _numbers(group["last-delivered-id"])
        return millis, number + 1


def _numbers(text: bytes) -> tuple[int, int]:
    millis, _, number = text.partition(b"-")
    return int(millis), int(number)
