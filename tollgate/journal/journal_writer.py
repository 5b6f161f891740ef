"""
Write every decision to the journal, off the request path.

`append` passes rows to a thread and returns. The thread packs a chunk and sends it at
once, or a few milliseconds after the previous one; it does not wait for replies. If the
stream does not respond or is full, chunks go to the spool. If the spool fails, too,
records stay in memory. Records that find no room there are dropped and counted, and
leave a gap in the sequence numbers. The writer's mark holds the rows that are not
durable, so that the next writer can send them if this process is killed.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from tollgate.errors import StoreError, StoreLost, trace_of
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.journal_rows import (
    Chunk,
    CommandBuilder,
    Heading,
    Numbered,
    Rows,
    pack,
    runs,
)
from tollgate.journal.journal_spool import MOST_CHUNKS, UNREADABLE, JournalSpool
from tollgate.journal.journal_stream import JournalStream
from tollgate.journal.mark import DeadMark, Mark, dead_marks
from tollgate.journal.stream_entries import End
from tollgate.repair.spool_segments import clear_heads
from tollgate.store.redis.redis_store import Command
from tollgate.worker import Worker


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


# Deliver chunks to the Redis stream, or to the spool if the stream takes none.
#
# A chunk stays in memory until the stream acknowledges it. If the connection breaks,
# unacknowledged chunks are sent once more over a new one. They go to the spool if that
# fails, too, or if the stream answered late or with an error; the reader drops chunks
# that arrive twice. Newer chunks follow to the spool, so that the order is preserved.

log = logging.getLogger(__name__)

PROBE_S = 0.5  # between probes of an unreachable stream
IDLE_S = 1.0  # between searches for files of dead writers
_DRAIN_S = 0.005  # per cycle, so that new records do not wait long
_SETTLE_S = 1.0  # per wait for replies; the line's deadline ends it earlier

DurableCallback = Callable[[Sequence[Chunk], str], None]


class Delivery:
    """
    Delivers the chunks of one writer, and those that dead writers left on disk.

    Args:
        stream: Stream to send to; closed with this.
        spool: Spool for chunks that the stream does not take; None for none. Closed
            with this.
        extra_commands: Builds the commands to send with chunks from the spool.
        on_durable: Called with chunks that are durable, and `written` or `spooled`.

    Attributes:
        drained: Chunks from the spool that the stream acknowledged.
        unreadable: Number of these that this version cannot read; the journal worker
            makes them dead letters, or reads them if it is a newer version.
    """

    def __init__(
        self,
        stream: JournalStream,
        spool: JournalSpool | None,
        *,
        extra_commands: CommandBuilder | None,
        on_durable: DurableCallback,
    ) -> None:
        self._stream = stream
        self._spool = spool
        self._extra_commands = extra_commands
        self._on_durable = on_durable
        self._held: deque[Chunk] = deque()  # neither sent nor spooled
        self._sent: deque[Chunk] = deque()  # sent, not acknowledged yet
        self._away = self._lost = self._spool_failed = False
        self._probe_due_s = self._look_due_s = 0.0
        self.drained = self.unreadable = 0

    @property
    def awaiting(self) -> bool:
        """Return whether the stream still owes replies."""
        return self._stream.awaiting

    @property
    def full(self) -> bool:
        """Return whether the stream is full."""
        return self._stream.full

    @property
    def oldest(self) -> int | None:
        """Return the lowest number of a record that is not durable."""
        chunks = (*self._sent, *self._held)
        return min((chunk.first for chunk in chunks), default=None)

    @property
    def rows(self) -> int:
        """Return the number of records that are not durable."""
        return sum(chunk.rows for chunk in (*self._sent, *self._held))

    def idle_s(self, shortest_s: float) -> float:
        """Return the pause, s, before the next cycle, unless chunks arrive earlier."""
        if self._sent:
            return 0.0
        if not self._held and (self._spool is None or not self._spool.busy):
            return IDLE_S
        left_s = self._probe_due_s - time.monotonic()
        return max(shortest_s, left_s if self._away or self.full else 0.0)

    def deliver(self, chunks: Sequence[Chunk]) -> None:
        """Send chunks, or queue them behind those that the stream did not take."""
        self._held.extend(chunks)
        if not self._held:
            return
        extra_commands = [
            command for chunk in self._held for command in chunk.extra_commands
        ]
        if self._may_send(extra_commands) and not (self._spool and self._spool.waiting):
            self._send()
        blocked = self._away or self.full or (self._spool and self._spool.waiting)
        if self._held and blocked and self._spool is not None:
            self._spool_chunks(self._spool)

    def _may_send(self, extra_commands: Sequence[Command] = ()) -> bool:
        """Return whether to try the stream; a full one gets other commands only."""
        if self._away:
            return time.monotonic() >= self._probe_due_s
        if self.full and (extra_commands or time.monotonic() >= self._probe_due_s):
            self._probe_due_s = time.monotonic() + PROBE_S
            self._stream.request_length(extra_commands=extra_commands)
        return not self.full

    def _send(self) -> None:
        """Send as many of the held chunks as may be in flight."""
        room = self._stream.room([chunk.raw for chunk in self._held])
        part = [self._held.popleft() for _ in range(room)]
        if not part:
            return
        self._sent.extend(part)
        if self._away:
            self._probe_due_s = time.monotonic() + PROBE_S
        commands = [command for chunk in part for command in chunk.extra_commands]
        try:
            self._stream.send([chunk.raw for chunk in part], extra_commands=commands)
        except StoreError as error:
            self._requeue(error)

    def _requeue(self, error: StoreError) -> None:
        """Return sent chunks to the queue; retry once now, later behind a probe."""
        log.debug("the journal's stream did not take all: %s", error)
        self._held.extendleft(reversed(self._sent))
        self._sent.clear()
        if isinstance(error, StoreLost) and not (self._lost or self._away):
            self._lost = True
            self._send()
        else:
            self._set_away(True)

    def recover(self) -> None:
        """
        Return sent chunks to the queue, after an error that left their delivery
        unclear.

        The connection is dropped, so that no reply is matched to another chunk. Readers
        drop chunks that arrive twice.
        """
        self._held.extendleft(reversed(self._sent))
        self._sent.clear()
        self._stream.reset()

    def _set_away(self, away: bool) -> None:
        if away:
            self._probe_due_s = time.monotonic() + PROBE_S
        else:
            self._lost = False
        if away != self._away:
            log.warning("the journal's stream is %s", "away" if away else "back")
        self._away = away

    def _spool_chunks(self, spool: JournalSpool) -> None:
        held = list(self._held)
        try:
            spool.write([(chunk.first, chunk.raw) for chunk in held])
        except OSError as error:
            if not self._spool_failed:
                text = "the journal's spool cannot take records: %s"
                log.warning(text, error.strerror)
            self._spool_failed = True
        else:
            self._spool_failed = False
            self._held.clear()
            self._on_durable(held, "spooled")

    def collect(self, wait_s: float) -> None:
        """
        Process the stream's replies; if there are none yet, wait up to `wait_s`
        seconds.
        """
        found = self._stream.collect(wait_s)
        if found.acknowledged:
            self._set_away(False)
            self._on_durable(
                [self._sent.popleft() for _ in range(found.acknowledged)], "written"
            )
        if found.error is not None:
            self._requeue(found.error)
            self.deliver(())

    def settle(self) -> None:
        """Wait until no chunk is in flight: each is acknowledged, spooled or held."""
        while self._sent:
            self.collect(_SETTLE_S)
            self.deliver(())

    def drain(self) -> None:
        """Send some chunks of the spool; when it is empty, the ends of dead writers."""
        spool, now_s = self._spool, time.monotonic()
        if spool is None or not (spool.busy or now_s >= self._look_due_s):
            return
        if not self._may_send():
            return
        self.settle()
        if self._away and now_s < self._probe_due_s:
            return
        try:
            took = spool.drain(self._send_again, until_s=now_s + _DRAIN_S)
            if took and not spool.busy:
                self._look_due_s = now_s + IDLE_S
                clear_heads(spool.folder)
                for mark in dead_marks(spool.folder):
                    chunks = self._pack_rows(mark)
                    if self._send_rows(chunks or ()) and self._stream.end(mark.end):
                        if chunks is None:
                            name = mark.path.name + UNREADABLE
                            mark.path.rename(mark.path.with_name(name))
                        else:
                            mark.path.unlink(missing_ok=True)
        except OSError as error:
            self._look_due_s = now_s + IDLE_S
            log.warning("the journal's spool cannot be read: %s", error.strerror)

    def _pack_rows(self, mark: DeadMark) -> list[Chunk] | None:
        """Pack the rows of a dead writer's mark; None if this version cannot."""
        if mark.rows is None:
            return None
        if mark.heading is None or not mark.rows:
            return []
        writer, commands = mark.end.writer, self._extra_commands or _nothing
        try:
            chunks = [
                pack(run, mark.heading, writer=writer, extra_commands=commands)
                for run in runs(mark.rows)
            ]
        except Exception as error:  # noqa: BLE001 - any version may have written it
            text = "the rows of the killed writer %s cannot be packed: %s"
            log.error(text, writer, trace_of(error))
            return None
        number = sum(one.rows for one in chunks)
        log.info("the killed writer %s left %d records", writer, number)
        return chunks

    def _send_rows(self, chunks: Sequence[Chunk]) -> bool:
        """Send chunks of a dead writer; return whether the stream took all."""
        for begin in range(0, len(chunks), MOST_CHUNKS):
            part = chunks[begin : begin + MOST_CHUNKS]
            commands = [command for one in part for command in one.extra_commands]
            raw = [one.raw for one in part]
            if self._stream.add(raw, extra_commands=commands) < len(raw):
                self._set_away(True)
                return False
        return True

    def _send_again(self, chunks: Sequence[bytes]) -> int:
        found = [self._commands_for(raw) for raw in chunks]
        extra_commands = [command for commands in found for command in commands or ()]
        added = self._stream.add(chunks, extra_commands=extra_commands)
        self._set_away(added < len(chunks))
        self.drained += added
        self._count_unreadable(sum(one is None for one in found[:added]))
        return added

    def _commands_for(self, raw: bytes) -> Sequence[Command] | None:
        """Build the commands to send with a chunk; None if it cannot be read."""
        if self._extra_commands is None:
            return ()
        try:
            return self._extra_commands(decode_chunk(raw), time.time_ns() // 1000)
        except Exception as error:  # noqa: BLE001 - any version may have written it
            log.debug("a chunk of the spool is not read: %s", trace_of(error))
            return None

    def _count_unreadable(self, number: int) -> None:
        if number:
            text = (
                "%d chunks of the journal's spool are in the stream although this "
                "version cannot read them; `tollgate journal run` makes them dead "
                "letters unless it is of a version that can"
            )
            log.error(text, number)
            self.unreadable += number

    def close(self, end: End | None) -> bool:
        """
        Close stream and spool; records that are not durable are lost.

        Args:
            end: The end to send; None for none.

        Returns:
            True if the stream took the end. It is not sent while the spool holds
                records.
        """
        end_stored = False
        if end is not None and (self._spool is None or not self._spool.busy):
            end_stored = self._stream.end(end)
        if self._spool is not None:
            self._spool.close()
        self._stream.close()
        return end_stored


GATHER_S = 0.02
MOST_ROWS = 20_000  # in memory: 13 s of 1,500 a second, 30 MB

ReportCallback = Callable[[JournalCounts, Sequence[float]], None]


class JournalWriter:
    """
    Writes the decisions of one step to the journal.

    Args:
        stream: Stream to send to; closed with the writer.
        spool: Spool for chunks that the stream does not take; None for none. Closed
            with the writer.
        mark: Saves the rows until they are durable, and their number, so that they
            outlive this process; closed with the writer.
        extra_commands: Builds commands to send with a chunk, from its records and the
            clock.
        most_rows: Maximum number of records in memory.
        gather_s: Time in seconds that rows wait for more rows after a send.
        on_report: Called by the thread after each cycle, with the counters, and the
            seconds from decision to acknowledgement or synced disk since the last call.

    Attributes:
        writer: Name of the writer in the records, random.
        counts: Counters of the writer.
    """

    def __init__(
        self,
        heading: Heading,
        stream: JournalStream,
        *,
        spool: JournalSpool | None = None,
        mark: Mark | None = None,
        extra_commands: CommandBuilder | None = None,
        most_rows: int = MOST_ROWS,
        gather_s: float = GATHER_S,
        on_report: ReportCallback | None = None,
    ) -> None:
        self._heading = heading
        self._mark = mark
        self._extra_commands = extra_commands
        self._most_rows = most_rows
        self._gather_s = gather_s
        self._on_report = on_report
        self._lock = threading.Lock()
        self._waiting: list[Numbered] = []
        self._sequence = 0
        self._stopping = False
        self._ended = threading.Event()
        self._lags: list[float] = []
        self._delivery = Delivery(
            stream, spool, extra_commands=extra_commands, on_durable=self._count_durable
        )
        self.writer = mark.writer if mark is not None else secrets.token_hex(8)
        self.counts = JournalCounts()
        self._worker = Worker(
            "journal",
            self._step,
            pause_s=lambda: self._delivery.idle_s(self._gather_s),
            finish=self._end,
            failed=lambda error: self._delivery.recover(),
        )
        self._worker.start()

    def append(self, rows: Rows) -> bool:
        """Take rows without waiting; return whether there was room for them."""
        number = len(rows)
        counts = self.counts
        with self._lock:
            first = self._sequence
            self._sequence += number
            counts.appended += number
            stays = not self._stopping and counts.buffered + number <= self._most_rows
            if self._mark is not None:
                if stays:
                    self._mark.save(first, rows)
                self._mark.set(self._sequence)
            if not stays:
                counts.dropped += number
                return False
            counts.buffered += number
            self._waiting.append((first, rows))
            alone = len(self._waiting) == 1
        if alone:  # otherwise the thread is awake already
            self._worker.wake()
        return True

    def close(self, *, grace_s: float = 2.0) -> None:
        """Write the queued rows, and stop; a second call does nothing."""
        with self._lock:
            self._stopping = True
        self._ended.set()
        if not self._worker.stop(grace_s):
            left = self.counts.buffered
            log.error("the journal did not end in time; %d records are lost", left)

    def _step(self) -> None:
        next_s = time.monotonic() + self._gather_s
        self._cycle()
        self._rest(next_s)

    def _end(self) -> None:
        try:
            self._cycle()
        finally:
            self._finish()

    def _cycle(self) -> None:
        """Send the queued rows, then some chunks of the spool."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        chunks = []
        for run in runs(taken):
            try:
                chunks.append(self._packed(run))
            except Exception as error:  # noqa: BLE001 - must not cost a decision
                log.error("records could not be packed: %s", trace_of(error))
                rows = sum(len(one) for _, one in run)
                self._count(rows, "dropped")
        self._delivery.deliver(chunks)
        self._delivery.drain()

    def _rest(self, until_s: float) -> None:
        """Wait for more rows and for the stream's replies; then process the replies."""
        # Waiting for the reply itself would wake this thread one more time, and take
        # the interpreter from a step that decides.
        self._ended.wait(max(0.0, until_s - time.monotonic()))
        if self._delivery.awaiting:
            self._delivery.collect(0.0)
        self._report()

    def _packed(self, run: Sequence[Numbered]) -> Chunk:
        return pack(
            run,
            self._heading,
            writer=self.writer,
            extra_commands=self._extra_commands or _nothing,
        )

    def _count_durable(self, chunks: Sequence[Chunk], how: str) -> None:
        now_us = time.time_ns() // 1000
        self._lags += [(now_us - chunk.decided_us) / 1e6 for chunk in chunks]
        self._count(sum(chunk.rows for chunk in chunks), how)
        if self._mark is not None:
            with self._lock:
                oldest = self._waiting[0][0] if self._waiting else self._sequence
                if self._delivery.oldest is not None:
                    oldest = min(oldest, self._delivery.oldest)
                self._mark.release(oldest)

    def _count(self, rows: int, how: str) -> None:
        with self._lock:
            self.counts.buffered -= rows
            setattr(self.counts, how, getattr(self.counts, how) + rows)

    def _report(self) -> None:
        self.counts.drained = self._delivery.drained
        self.counts.unreadable = self._delivery.unreadable
        self.counts.full = self._delivery.full
        if self._on_report is not None:
            self._on_report(self.counts, self._lags)
        self._lags = []

    def _finish(self) -> None:
        self._delivery.settle()
        left = self._delivery.rows
        self._count(left, "dropped")
        end: End | None = End(self.writer, self._sequence, killed=False)
        if left and self._mark is not None:
            end = None  # the next writer sends what the mark holds, and then the end
        end_stored = self._delivery.close(end)
        if self._mark is not None:
            self._mark.close(end_stored=end_stored)
        self._report()


def _nothing(records: object, now_us: int) -> Sequence[Command]:
    return ()
