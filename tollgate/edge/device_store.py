"""
Hold the windows of a device, and its journal, in one SQLite database.

A decision changes windows, is stored for its transaction id and adds a chunk to the
journal. All three are in one transaction, which is on disk before the decision is
answered: after a loss of power the database has all of a decision or nothing of it.

Chunks move from the database into sealed segments: files in the form of a server's
`journal-spool`. A segment is named after its first record, so a segment that is sealed
again after a kill replaces itself.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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
_LAYOUT = 2  # version of the database, its `user_version`
_TABLES = f"""
CREATE TABLE facts(name TEXT PRIMARY KEY, value) WITHOUT ROWID;{TABLES}
CREATE TABLE chunks(
    first INTEGER PRIMARY KEY, records INTEGER, added_s INTEGER, raw BLOB NOT NULL
);
"""
_WAIT_MS = 5_000  # for the upkeep's connection; no reader holds the database longer
_CACHE_KIB = 2_048
_CHECKPOINT_BYTES = 16 << 20  # of the write-ahead log
_FRAMES_AT = 16  # in the log's index
_PAGE_BYTES = 4_096
_COPIES = 5  # of the log, before one that holds the lock
_SEGMENT_BYTES = 1 << 20
_SWEPT_TOGETHER = 64  # expired keys; requests wait meanwhile
_SWEEP_S = 300.0  # a pass through all values
_OWNER_ONLY = 0o600


class _TableStore(MemoryStore):
    """A store whose values are in a table; the upkeep removes expired ones."""

    def __init__(self, database: sqlite3.Connection) -> None:
        super().__init__(values=ValueTable(database))

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
            except sqlite3.Error as error:
                problem = f"is damaged, or no database of a device: {error}"
                raise InputError(self._path, problem) from error
            self.store = _TableStore(self._database)
            self.writer = str(self._fact("writer"))
            self.next = self._committed = self._next_record()
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
        sql = "SELECT max(first + records) FROM chunks"
        (found,) = self._database.execute(sql).fetchone()
        return max(found or 0, self.number("sealed"))

    def begin(self) -> None:
        """Begin a transaction."""
        self._database.execute("BEGIN IMMEDIATE")
        self._committed = self.next

    def commit(self) -> None:
        """Write the transaction to disk, and wait until it is there."""
        self._database.execute("COMMIT")

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open; SQLite ends it when a disk is full."""
        return self._database.in_transaction

    def roll_back(self) -> None:
        """Undo the transaction."""
        if self.in_transaction:
            self._database.execute("ROLLBACK")
        self.next = self._committed

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Undo all of a block inside of the transaction if it raises an error."""
        run, first = self._database.execute, self.next
        run("SAVEPOINT request")
        try:
            yield
        except BaseException:
            if self.in_transaction:
                run("ROLLBACK TO request")
                run("RELEASE request")
            self.next = first
            raise
        run("RELEASE request")

    def add_chunk(self, raw: bytes, *, records: int) -> None:
        """Add a chunk with the next records to the transaction."""
        values = (self.next, records, int(time.time()), raw)
        self._database.execute("INSERT INTO chunks VALUES (?, ?, ?, ?)", values)
        self.next += records

    def keep_up(self) -> None:
        """Seal old chunks, delete expired values, and shorten the write-ahead log."""
        with self._upkeep_lock:
            while self._seal(time.time() - self._seal_after_s):
                pass
            self._sweep()
            self._checkpoint()

    def seal(self) -> None:
        """Seal all chunks."""
        with self._upkeep_lock:
            while self._seal(time.time() + 1):
                pass

    def _seal(self, until_s: float) -> bool:
        """Move chunks into one segment, if they fill it or the first is old enough."""
        run = self._upkeep.execute
        sql = "SELECT sum(length(raw)), min(added_s) FROM chunks"
        size, oldest_s = run(sql).fetchone()
        if not size or (size < _SEGMENT_BYTES and oldest_s > until_s):
            return False
        size, taken = 0, []
        chunks = run("SELECT first, records, raw FROM chunks ORDER BY first")
        with contextlib.closing(chunks):
            for first, records, raw in chunks:
                taken.append((first, records, raw))
                size += len(raw)
                if size >= _SEGMENT_BYTES:
                    break
        self._write_segment([(first, raw) for first, _, raw in taken])
        end = taken[-1][0] + taken[-1][1]
        with self.lock, self.changes():
            self._database.execute("DELETE FROM chunks WHERE first < ?", (end,))
            self.set_fact("sealed", end)
        return True

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

    @contextlib.contextmanager
    def changes(self) -> Iterator[None]:
        """Write the changes of a block to disk, all of them or none."""
        self.begin()
        try:
            yield
            self.commit()
        except BaseException:
            self.roll_back()
            raise

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
        expired = run(
            "SELECT rowid FROM entries "
            "WHERE rowid > ? AND rowid <= ? AND end_ms > 0 AND end_ms <= ?",
            (self._swept, end, now_ms),
        ).fetchall()
        self._swept = end
        for at in range(0, len(expired), _SWEPT_TOGETHER):
            with self.lock, self.changes():
                self._database.executemany(
                    "DELETE FROM entries "
                    "WHERE rowid = ? AND end_ms > 0 AND end_ms <= ?",
                    [(one, now_ms) for (one,) in expired[at : at + _SWEPT_TOGETHER]],
                )

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
        with self._path.with_name(f"{DATABASE}-shm").open("rb") as index:
            index.seek(_FRAMES_AT)
            return int.from_bytes(index.read(4), sys.byteorder) * _PAGE_BYTES

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
