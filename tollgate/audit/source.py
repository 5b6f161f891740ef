"""Chunks of decisions out of the product's stream, as its one sealing consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tollgate.audit.anchor import Mark
from tollgate.errors import JournalError, StoreError
from tollgate.journal.entries import CHUNK_FIELD, END_FIELD, stream_key
from tollgate.store.cluster_client import open_any_client
from tollgate.stream.redis_group import StreamGroup

GROUP = "journal"
TRIAL_GROUP = "challenger"  # what it has not read yet is removed like the rest
DEAD_LETTERS = ":dead-letters"
MAX_DEAD_LETTERS = 100_000

_CONSUMER = "tollgate"
_ANSWER_S = 10.0
_NEW = b">"


class Taken(msgspec.Struct, frozen=True):
    """An entry of the stream: its id, and the chunk or the writer's end in it."""

    id: bytes
    chunk: bytes
    end: bytes = b""


class ChunkSource:
    """
    The stream of a product's journal.

    Args:
        url: docs/store.md, "Addresses".
        product: Whose decisions.
        group: Consumer group; made on first use, reading from the beginning. The
            group of a trial removes nothing, and nothing is kept for it.

    Raises:
        InputError: It is no address, or a file of TLS cannot be used.
    """

    def __init__(self, url: str, *, product: str, group: str = GROUP) -> None:
        import redis

        self._redis: Any = open_any_client(url, timeout_s=_ANSWER_S)
        self._errors = redis.exceptions
        self._stream = stream_key(product).decode()
        self._group = group
        self._members = StreamGroup(self._redis, group)
        self._head_key = f"{self._stream}:head:{group}"
        self._left_after: bytes | None = b"0"  # first what was handed out before
        self._made = False

    def poll(self, *, most: int, wait_s: float) -> list[Taken]:
        """
        Return up to so many entries, those first that were never acknowledged.

        Raises:
            StoreError: Redis did not answer.
        """
        try:
            if not self._made:
                self._members.make(self._stream)
                self._made = True
            if self._left_after is not None:
                found = self._read(self._left_after, most=most, block_ms=None)
                self._left_after = found[-1].id if found else None
                if found:
                    return found
            return self._read(_NEW, most=most, block_ms=max(1, int(wait_s * 1e3)))
        except (self._errors.RedisError, OSError) as exc:
            # A Redis that was started again may have lost the group, or have forgotten
            # what was acknowledged last: it is there again, handed out and waiting.
            self._made, self._left_after = False, b"0"
            raise StoreError(f"the journal's stream cannot be read: {exc}") from exc

    def acknowledge(self, ids: Sequence[bytes]) -> None:
        """
        Say that entries are sealed, and remove what no group waits for any more.

        Raises:
            StoreError: Redis did not answer; they are handed out again.
        """
        try:
            for at in range(0, len(ids), 1000):
                self._redis.xack(self._stream, self._group, *ids[at : at + 1000])
            if self._group != TRIAL_GROUP:
                self._trim()
        except (self._errors.RedisError, OSError) as exc:
            problem = f"the journal's stream cannot be acknowledged: {exc}"
            raise StoreError(problem) from exc

    def bury(self, taken: Taken, reason: str) -> None:
        """Put an entry that is no chunk where a person can look at it."""
        entry = {
            CHUNK_FIELD: taken.chunk or taken.end,
            b"reason": reason,
            b"id": taken.id,
        }
        try:
            self._redis.xadd(
                self._stream + DEAD_LETTERS,
                entry,
                maxlen=MAX_DEAD_LETTERS,
                approximate=True,
            )
        except (self._errors.RedisError, OSError) as exc:
            raise StoreError(f"a dead letter cannot be written: {exc}") from exc

    def require_chain(self, mark: Mark, hashes: Sequence[str]) -> None:
        """
        Demand that this group feeds this chain, and that it has all it once had.

        Args:
            mark: Where the chain ends.
            hashes: Of all its links.

        Raises:
            JournalError: Another chain is fed, or links are gone.
            StoreError: Redis did not answer.
        """
        try:
            raw = self._redis.get(self._head_key)
        except (self._errors.RedisError, OSError) as exc:
            raise StoreError(f"the journal's head cannot be read: {exc}") from exc
        if raw is None:
            return
        known = msgspec.json.decode(raw, type=Mark)
        if known.chain != mark.chain:
            problem = (
                f"the group {self._group} feeds chain {known.chain[:12]}…, not this "
                f"one; name another --group, or delete {self._head_key} in Redis"
            )
            raise JournalError("journal", problem)
        if [known.hash] != list(hashes[known.number - 1 : known.number]):
            problem = (
                f"Redis knows a link {known.number} that is not in the folder: links "
                "were removed or made anew; run `journal verify`"
            )
            raise JournalError("journal", problem)

    def note(self, mark: Mark) -> None:
        """Remember where the chain ends."""
        try:
            self._redis.set(self._head_key, msgspec.json.encode(mark))
        except (self._errors.RedisError, OSError) as exc:
            raise StoreError(f"the journal's head cannot be noted: {exc}") from exc

    def close(self) -> None:
        """Let the connection go."""
        self._redis.close()

    def _read(self, after: bytes, *, most: int, block_ms: int | None) -> list[Taken]:
        reply = self._redis.xreadgroup(
            self._group, _CONSUMER, {self._stream: after}, count=most, block=block_ms
        )
        return [
            # An entry that was deleted while it waited has no fields.
            Taken(
                id=at,
                chunk=(fields or {}).get(CHUNK_FIELD, b""),
                end=(fields or {}).get(END_FIELD, b""),
            )
            for _, entries in reply or ()
            for at, fields in entries
        ]

    def _trim(self) -> None:
        """Remove entries that every group has acknowledged: ids are in them."""
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
