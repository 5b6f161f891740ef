"""
Hold the windows of a device, and its journal, in one SQLite database.

A decision changes windows, is stored for its transaction id and adds a chunk to the
journal. All three are in one row of a log, which is on disk before the decision is
answered: after a loss of power the database has all of a decision or nothing of it.

The windows themselves are in memory, and in a table to which changed ones are written
every few seconds. A start repeats the changes that the log has and the table lacks.

Chunks move from the log into sealed segments: files in the form of a server's
`journal-spool`. A segment is named after its first record, so a segment that is sealed
again after a kill replaces itself.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tollgate.edge.value_cache import ValueCache
from tollgate.edge.value_table import TABLES, ValueTable
from tollgate.errors import InputError, SetupError
from tollgate.journal.journal_rows import Heading, Rows, pack
from tollgate.journal.stored_decision_commands import StoreCommands
from tollgate.repair.spool_segments import (
    SUFFIX,
    SegmentHeader,
    frame,
    head,
    segments,
)
from tollgate.repository.atomic import replace_file, sync_directory
from tollgate.server.processes.state_lock import FolderLock, make_private_folder
from tollgate.store.memory_store import MemoryStore

log = logging.getLogger(__name__)

DATABASE, JOURNAL = "device.sqlite", "journal"
_LAYOUT = 3  # version of the database, its `user_version`
# A row of the log has the records from `first` on, as a chunk, and changes of values.
_TABLES = f"""
CREATE TABLE facts(name TEXT PRIMARY KEY, value) WITHOUT ROWID;{TABLES}
CREATE TABLE log(
    number INTEGER PRIMARY KEY, first INTEGER NOT NULL, records INTEGER NOT NULL,
    added_s INTEGER NOT NULL, chunk BLOB NOT NULL, changes BLOB NOT NULL
);
"""
_ADD = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)"
_WAIT_MS = 5_000  # for the upkeep's connection; no reader holds the database longer
_CACHE_KIB = 2_048
_CHECKPOINT_BYTES = 16 << 20  # of the write-ahead log
_FRAMES_AT = 16  # in the log's index
_PAGE_BYTES = 4_096
_COPIES = 5  # of the log, before one that holds the lock
_SEGMENT_BYTES = 1 << 20
_SWEPT_TOGETHER = 64  # expired keys; requests wait meanwhile
_WRITTEN_TOGETHER = 8  # values; requests wait meanwhile
_FORGOTTEN_TOGETHER = 256  # rows of the log; requests wait meanwhile
_PAUSE_S = 0.002  # for the requests that wait
_WRITE_AFTER_S = 5.0  # the values that changed
_MOST_FRESH_BYTES = 2 << 20  # of values that the table lacks
_SWEEP_S = 300.0  # a pass through all values
_OWNER_ONLY = 0o600


class _TableStore(MemoryStore):
    """A store whose values are in a database; the upkeep deletes expired ones."""

    def _sweep_if_due(self, now_ms: int) -> None:
        """Do nothing."""


class DeviceStore:
    """
    Open the database of a device; a context manager.

    One thread at a time may use it, except for `keep_up`, which locks it.

    Args:
        folder: Created if missing, for this user only.
        product: Its product; a folder has one.
        spool_bytes: Most bytes of sealed segments; the oldest are deleted beyond that.
        seal_after_s: Longest time of a record in the database before it is sealed.

    Raises:
        SetupError: The folder is in use, or cannot be written.
        InputError: The database is damaged, of another product or version.

    Attributes:
        store: The windows, hysteresis states and stored decisions.
        url: Empty: there is no Redis.
        writer: Name of the journal's writer, the same for the life of the folder.
        lock: Held while the database changes.
    """

    url = ""

    def __init__(
        self,
        folder: Path,
        *,
        product: str,
        spool_bytes: int,
        seal_after_s: float,
    ) -> None:
        self.folder = folder
        self.product = product
        self.lock = threading.Lock()
        self._upkeep_lock = threading.Lock()
        self._spool_bytes = spool_bytes
        self._seal_after_s = seal_after_s
        self._path = folder / DATABASE
        make_private_folder(folder)
        with contextlib.ExitStack() as stack:
            stack.callback(FolderLock(folder, name="device.lock", patience_s=0).release)
            opened = stack.enter_context(contextlib.ExitStack())
            self.segments_folder = folder / JOURNAL / product
            try:
                make_private_folder(self.segments_folder)
                for path in self.segments_folder.glob(f".*{SUFFIX}*"):
                    path.unlink()  # a kill left it half written
                self._database = self._connect()
                stack.callback(self._database.close)
                self._upkeep = self._connect()
                stack.callback(self._upkeep.close)
                self._require_product()
                # Closed last: a process that closes a file loses SQLite's locks on it.
                index = self._path.with_name(f"{DATABASE}-shm").open("rb")
                self._index = opened.enter_context(index)
                self._values = ValueCache(ValueTable(self._database))
                self.store = _TableStore(values=self._values)
                self.writer = str(self._fact("writer"))
                self._chunks: list[tuple[int, int, bytes]] = []  # first, records, bytes
                self._load()
                # A new folder is durable with its parent.
                for one in (self.segments_folder, *self.segments_folder.parents):
                    sync_directory(one)
                    if one == folder.parent:
                        break
            except OSError as error:
                raise SetupError(
                    f"{folder} cannot be written: {error.strerror}",
                    remedy="free space, or name another state folder",
                ) from error
            except sqlite3.OperationalError as error:
                raise SetupError(
                    f"{folder} cannot be written: {error}",
                    remedy="free space, or name another state folder",
                ) from error
            except sqlite3.Error as error:
                problem = f"is damaged, or no database of a device: {error}"
                raise InputError(self._path, problem) from error
            self._written_s = time.monotonic()
            self._swept = 0  # the last row that the sweep looked at
            self._closed = False
            self._stack = stack.pop_all()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False
        )
        run = database.execute
        run(f"PRAGMA busy_timeout = {_WAIT_MS}")
        run(f"PRAGMA page_size = {_PAGE_BYTES}")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")  # a commit is on disk when it returns
        run("PRAGMA wal_autocheckpoint = 0")  # `keep_up` does that
        run(f"PRAGMA cache_size = -{_CACHE_KIB}")
        return database

    def _require_product(self) -> None:
        """Create the tables, or check what they are of."""
        run = self._database.execute
        (layout,) = run("PRAGMA user_version").fetchone()
        if not layout:
            run("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";\n"):
                run(statement)
            self.set_fact("product", self.product)
            self.set_fact("writer", secrets.token_hex(8))
            run(f"PRAGMA user_version = {_LAYOUT}")
            run("COMMIT")
            self._path.chmod(_OWNER_ONLY)
        elif layout != _LAYOUT:
            problem = f"has layout {layout}, this Tollgate reads {_LAYOUT}"
            raise InputError(self._path, problem)
        elif (product := self._fact("product")) != self.product:
            raise InputError(self._path, f"is of {product}, not {self.product}")

    def _fact(self, name: str) -> object:
        sql = "SELECT value FROM facts WHERE name = ?"
        found = self._database.execute(sql, (name,)).fetchone()
        return found[0] if found else None

    def set_fact(self, name: str, value: str | int) -> None:
        """Set a fact about the device."""
        sql = "INSERT OR REPLACE INTO facts VALUES (?, ?)"
        self._database.execute(sql, (name, value))

    def number(self, name: str) -> int:
        """Return a fact that is a number, 0 if it is not set."""
        found = self._fact(name)
        return found if isinstance(found, int) else 0

    def _next_record(self) -> int:
        sql = "SELECT max(first + records) FROM log"
        (found,) = self._database.execute(sql).fetchone()
        return max(found or 0, self.number("sealed"))

    def _load(self) -> None:
        """
        Take what the disk has.

        Raises:
            InputError: The log does not belong to the table.
        """
        self._values.clear()
        self._chunks.clear()
        self.next = self._committed = self._next_record()
        self._number = self._written = self.number("written")  # rows of the log
        self._sealed = self.number("sealed")
        self._redo()
        self._uncertain = False

    def refresh(self) -> None:
        """
        Take what the disk has, if an error left open whether it has the last commit.

        Raises:
            InputError: The log does not belong to the table.
        """
        if self._uncertain:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._load()

    def _redo(self) -> None:
        """
        Repeat the changes that the table lacks.

        Raises:
            InputError: The log does not belong to the table.
        """
        sql = "SELECT number, changes FROM log WHERE number > ? ORDER BY number"
        for number, changes in self._database.execute(sql, (self._number,)).fetchall():
            self._number = number
            if changes:
                try:
                    self._values.redo(changes, number=number)
                except ValueError as error:
                    raise InputError(self._path, f"is damaged: {error}") from error
            self._make_room()

    def commit(self) -> None:
        """
        Write records and changes to disk, and wait until they are there.

        Raises:
            sqlite3.Error: They are not there; `roll_back` takes them back.
        """
        changes = self._values.changes
        chunks = self._chunks or ([(self.next, 0, b"")] if changes else [])
        if not chunks:
            return
        now_s, number = int(time.time()), self._number + 1
        rows = [
            (number + at, first, records, now_s, raw, b"" if at else changes)
            for at, (first, records, raw) in enumerate(chunks)
        ]
        self._uncertain = True  # an interrupt may come after the disk has the rows
        try:
            if len(rows) == 1:
                self._database.execute(_ADD, rows[0])
            else:
                with self._transaction():
                    self._database.executemany(_ADD, rows)
        except sqlite3.Error:
            self._uncertain = False
            raise
        self._number += len(rows)
        self._committed = self.next
        self._chunks.clear()
        self._values.commit()
        self._uncertain = False
        with contextlib.suppress(sqlite3.Error):  # the next commit tries it again
            self._make_room()

    def roll_back(self) -> None:
        """Take back what was not committed."""
        self._values.undo()
        self._chunks.clear()
        self.next = self._committed

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Take back all of a block if it raises an error."""
        first, chunks, mark = self.next, len(self._chunks), self._values.mark()
        try:
            yield
        except BaseException:
            self._values.undo(mark)
            del self._chunks[chunks:]
            self.next = first
            raise

    @contextlib.contextmanager
    def changes(self) -> Iterator[None]:
        """Write the changes of a block to disk, all of them or none."""
        try:
            yield
            self.commit()
        except BaseException:
            self.roll_back()
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write what the statements of a block change to disk, all of it or nothing."""
        run = self._database.execute
        run("BEGIN IMMEDIATE")
        try:
            yield
            run("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # SQLite ends it when a disk is full
                run("ROLLBACK")
            raise

    def add_chunk(self, raw: bytes, *, records: int) -> None:
        """Add a chunk with the next records."""
        self._chunks.append((self.next, records, raw))
        self.next += records

    def keep_up(self) -> None:
        """Seal old chunks, write values, delete what is not needed any more."""
        with self._upkeep_lock:
            if time.monotonic() - self._written_s > _WRITE_AFTER_S:
                self._write_values()
                self._written_s = time.monotonic()
            self._sweep()
            self._checkpoint()
            while self._seal(time.time() - self._seal_after_s):
                pass
            self._shorten_log()

    def seal(self) -> None:
        """Seal all chunks."""
        with self._upkeep_lock:
            while self._seal(math.inf):  # also after the clock was set back
                pass

    def _seal(self, until_s: float) -> bool:
        """Move chunks into one segment, if they fill it or the first is old enough."""
        run = self._upkeep.execute
        where = "FROM log WHERE first >= ? AND records > 0"
        sql = f"SELECT sum(length(chunk)), min(added_s) {where}"
        size, oldest_s = run(sql, (self._sealed,)).fetchone()
        if not size or (size < _SEGMENT_BYTES and oldest_s > until_s):
            return False
        size, taken = 0, []
        sql = f"SELECT first, records, chunk {where} ORDER BY number"
        chunks = run(sql, (self._sealed,))
        with contextlib.closing(chunks):
            for first, records, raw in chunks:
                taken.append((first, records, raw))
                size += len(raw)
                if size >= _SEGMENT_BYTES:
                    break
        self._write_segment([(first, raw) for first, _, raw in taken])
        end = taken[-1][0] + taken[-1][1]
        with self.lock:
            self.set_fact("sealed", end)
        self._sealed = end
        return True

    def _make_room(self) -> None:
        """Write the oldest of the values that the table lacks, if they are too many."""
        while self._values.fresh_bytes > _MOST_FRESH_BYTES:
            self._write_some(self._values.fresh_keys(_WRITTEN_TOGETHER))

    def _write_some(self, keys: Sequence[bytes], *, written: int | None = None) -> None:
        """
        Write some values to their table, and that it has all up to a row.

        This does not wait for the disk: the log has the changes, and loses a row only
        in a later transaction, which is on disk together with those before it.
        """
        run = self._database.execute
        run("PRAGMA synchronous = NORMAL")
        try:
            with self._transaction():
                self._values.write(keys, number=self._number)
                if written is not None:
                    self.set_fact("written", written)
        finally:
            run("PRAGMA synchronous = FULL")
        self._values.note_written(keys)
        if written is not None:
            self._written = written

    def _write_values(self) -> None:
        """Write the values that changed to their table, some at a time."""
        with self.lock:
            self.refresh()
            keys, number = self._values.fresh_keys(), self._number
        keys.sort()  # neighbours share pages
        while number > self._written:
            some, keys = keys[:_WRITTEN_TOGETHER], keys[_WRITTEN_TOGETHER:]
            with self.lock:
                self.refresh()
                self._write_some(some, written=None if keys else number)
            self._checkpoint()
            time.sleep(_PAUSE_S)

    def _shorten_log(self) -> None:
        """Delete the rows whose chunk is sealed and whose changes the table has."""
        sql = (
            "SELECT max(number) FROM (SELECT number FROM log WHERE number <= ? "
            "AND first + records <= ? ORDER BY number LIMIT ?)"
        )
        limits = (self._written, self._sealed, _FORGOTTEN_TOGETHER)
        while (last := self._upkeep.execute(sql, limits).fetchone()[0]) is not None:
            with self.lock:
                self._database.execute("DELETE FROM log WHERE number <= ?", (last,))
            time.sleep(_PAUSE_S)

    def _write_segment(self, chunks: list[tuple[int, bytes]]) -> None:
        first = chunks[0][0]
        frames = [frame(number, raw) for number, raw in chunks]
        header = SegmentHeader(self.product, "journal", "", first=first)
        name = f"{first:019d}-{self.writer}{SUFFIX}"
        content = b"".join((head(header), *frames))
        path = self.segments_folder / name
        sizes = {}
        for one in segments(self.segments_folder):
            with contextlib.suppress(FileNotFoundError):  # `edge sync` pushed it
                sizes[one] = one.stat().st_size
        sizes.pop(path, None)
        excess = sum(sizes.values()) + len(content) - self._spool_bytes
        for oldest in sorted(sizes):
            if excess <= 0:
                break
            log.warning("%s is deleted: the spool is full", oldest)
            oldest.unlink(missing_ok=True)
            excess -= sizes[oldest]
        replace_file(path, content, mode=_OWNER_ONLY)

    def _sweep(self) -> None:
        """
        Delete the expired values of the next part of the table.

        An index of their ends would find them, but each decision would change it, too:
        half of what a decision writes.
        """
        now_ms = time.time_ns() // 1_000_000
        run = self._upkeep.execute
        first, last = run("SELECT min(rowid), max(rowid) FROM entries").fetchone()
        if last is None:
            return
        if not first <= self._swept < last:
            self._swept = first - 1
        end = self._swept + _SWEPT_TOGETHER + int((last - first) / _SWEEP_S)
        # The log changes none of these any more, unless they are fresh.
        expired = run(
            "SELECT rowid, key FROM entries WHERE rowid > ? AND rowid <= ? "
            "AND end_ms > 0 AND end_ms <= ? AND number <= ?",
            (self._swept, end, now_ms, self._written),
        ).fetchall()
        self._swept = end
        for at in range(0, len(expired), _SWEPT_TOGETHER):
            with self.lock:
                self._delete(expired[at : at + _SWEPT_TOGETHER], now_ms=now_ms)
            time.sleep(_PAUSE_S)

    def _delete(self, expired: Sequence[tuple[int, bytes]], *, now_ms: int) -> None:
        """Delete values that have expired, unless they changed meanwhile."""
        taken = [(row, key) for row, key in expired if not self._values.is_fresh(key)]
        with self._transaction():
            self._database.executemany(
                "DELETE FROM entries WHERE rowid = ? "
                "AND end_ms > 0 AND end_ms <= ? AND number <= ?",
                [(row, now_ms, self._written) for row, _ in taken],
            )
        self._values.forget([key for _, key in taken])

    def _checkpoint(self) -> None:
        """
        Copy the write-ahead log into the database, without the lock if possible.

        The log begins anew once all of it is copied. Each copy takes less time than the
        one before, because it has only the changes since then; so one of them mostly
        ends between two requests.
        """
        if self._log_bytes() < _CHECKPOINT_BYTES:
            return
        if not any(self._copy_log() for _ in range(_COPIES)):
            with self.lock:
                self._copy_log()

    def _log_bytes(self) -> int:
        """
        Return how much of the log is in use; its file does not shrink.

        SQLite keeps the number of frames in the log's index:
        https://www.sqlite.org/walformat.html#the_wal_index_file_format
        """
        frames = os.pread(self._index.fileno(), 4, _FRAMES_AT)
        return int.from_bytes(frames, sys.byteorder) * _PAGE_BYTES

    def _copy_log(self) -> bool:
        """Copy what the log has now; return whether that is still all of it."""
        before = self.next
        self._upkeep.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return self.next == before

    def save(self) -> None:
        """Do nothing: each decision is saved."""

    def close(self) -> None:
        """Seal all chunks, and free the folder; a second call does nothing."""
        stack, self._stack = self._stack, contextlib.ExitStack()
        with stack:
            if not self._closed:
                self._closed = True
                self.seal()


class DeviceJournal:
    """
    Write each batch of one variant as one chunk, and store its decisions.

    Args:
        heading: The values that all records share.
        store: Takes both, in its transaction.
        commands: Builds the commands that store decisions for their transaction ids.
    """

    def __init__(
        self, heading: Heading, store: DeviceStore, commands: StoreCommands
    ) -> None:
        self._heading = heading
        self._store = store
        self._commands = commands

    def append(self, rows: Rows) -> bool:
        """Add rows to the transaction."""
        chunk = pack(
            [(self._store.next, rows)],
            self._heading,
            writer=self._store.writer,
            extra_commands=self._commands,
        )
        self._store.add_chunk(chunk.raw, records=len(rows))
        self._store.store.flush([], extra_commands=chunk.extra_commands)
        return True

    def close(self) -> None:
        """Do nothing: the database has every row."""
