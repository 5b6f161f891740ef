"""
Write the decisions of a local engine to the journal, before they are answered.

The records are those of a decision step. They go to a stream in Redis, or wait in a
folder in the form of a server's `journal-spool`, whose next server sends them to its
stream. Their decisions are stored for requests that come again.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Protocol

from tollgate.errors import JournalError, StoreError, os_errors
from tollgate.journal.journal_rows import Heading, Rows, pack
from tollgate.journal.journal_spool import JournalSpool
from tollgate.journal.journal_stream import JournalStream
from tollgate.journal.mark import Mark
from tollgate.journal.stored_decision_commands import StoreCommands
from tollgate.journal.stream_entries import End
from tollgate.server.local_store import LocalStore
from tollgate.steps.step_journal import StepJournal
from tollgate.store.redis.pipelined_connection import open_pipeline
from tollgate.store.redis.redis_store import RedisStore

log = logging.getLogger(__name__)

STORE = "store"
_DEADLINE_S = 5.0  # no payment waits for it
_MARK_BYTES = 4_096  # the mark holds numbers only: rows are durable when answered


class _Place(Protocol):
    """Where chunks go; `writer` names their writer, 16 hexadecimal digits."""

    writer: str

    def add(self, first: int, raw: bytes, *, rows: int) -> None:
        """
        Add a chunk; it is durable when this returns.

        Raises:
            JournalError: It is not.
        """

    def close(self, end: End) -> None:
        """Note the end of the writer."""


class _Folder:
    """A folder of chunks that wait for a stream."""

    def __init__(self, folder: Path, heading: Heading) -> None:
        self._folder = folder / heading.product
        with os_errors(JournalError, self._folder, "cannot be written"):
            self._spool = JournalSpool(self._folder, product=heading.product)
            self._mark = Mark(self._folder, heading, half_bytes=_MARK_BYTES)
        self.writer = self._mark.writer

    def add(self, first: int, raw: bytes, *, rows: int) -> None:
        with os_errors(JournalError, self._folder, "cannot take records"):
            self._spool.write([(first, raw)])
        self._mark.set(first + rows)

    def close(self, end: End) -> None:
        self._spool.close()
        self._mark.close(end_stored=end.sequence == 0)


class _Stream:
    """The stream of a Redis."""

    def __init__(self, url: str, heading: Heading) -> None:
        line = open_pipeline(url, deadline_s=_DEADLINE_S)
        self._stream = JournalStream(heading.product, line)
        self.writer = secrets.token_hex(8)

    def add(self, first: int, raw: bytes, *, rows: int) -> None:
        if self._stream.add([raw]) != 1:
            problem = f"{rows} records from {first} on were not acknowledged"
            raise JournalError("the journal's stream", problem)

    def close(self, end: End) -> None:
        if end.sequence and not self._stream.end(end):
            log.warning("the journal's stream did not take the end of %s", end.writer)
        self._stream.close()


class _Writer:
    """Write each batch as one chunk, and store its decisions."""

    def __init__(
        self, heading: Heading, place: _Place, *, store: RedisStore, window_s: int
    ) -> None:
        self._heading = heading
        self._place = place
        self._store = store
        self._commands = StoreCommands(window_s=window_s)
        self._sequence = 0

    def append(self, rows: Rows) -> bool:
        """
        Write rows.

        Raises:
            JournalError: They are not durable.
        """
        first, self._sequence = self._sequence, self._sequence + len(rows)
        chunk = pack(
            [(first, rows)],
            self._heading,
            writer=self._place.writer,
            extra_commands=self._commands,
        )
        self._place.add(first, chunk.raw, rows=len(rows))
        try:
            self._store.flush([], extra_commands=chunk.extra_commands)
        except StoreError as error:
            log.warning("decisions were not stored for repeated requests: %s", error)
        return True

    def close(self) -> None:
        """Note the end of the writer."""
        self._place.close(End(self._place.writer, self._sequence, killed=False))


def open_local_journal(
    text: str, heading: Heading, *, store: LocalStore, window_s: int
) -> StepJournal:
    """
    Open the journal that a text names.

    Args:
        text: `store` for the stream in the Redis of the store, the URL of a Redis, or a
            folder.
        heading: The values that all records share.
        store: Stores decisions for requests that come again.
        window_s: Time for which a decision is valid for its transaction id.

    Raises:
        InputError: The address is invalid.
        JournalError: The folder cannot be written, or the store has no stream.
    """
    if text == STORE and not store.url:
        raise JournalError("journal", "a store in memory has no stream; name a folder")
    url = store.url if text == STORE else text
    place: _Place
    place = _Stream(url, heading) if "://" in url else _Folder(Path(text), heading)
    return StepJournal(_Writer(heading, place, store=store.store, window_s=window_s))
