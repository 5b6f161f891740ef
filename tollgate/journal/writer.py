"""
Write every decision to the journal, off the request path.

`append` passes rows to a thread and returns. The thread packs a chunk and sends it at
once, or a few milliseconds after the previous one; it does not wait for replies. If the
stream does not respond or is full, chunks go to the spool. If the spool fails, too,
records stay in memory. Records that find no room there are dropped and counted, and
leave a gap in the sequence numbers.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from tollgate.errors import trace_of
from tollgate.journal.chunks import Chunk, CommandBuilder, Numbered, pack, runs
from tollgate.journal.counts import JournalCounts
from tollgate.journal.delivery import Delivery
from tollgate.journal.entries import End
from tollgate.journal.mark import Mark
from tollgate.journal.rows import Heading, Rows
from tollgate.journal.spool import JournalSpool
from tollgate.journal.stream import JournalStream
from tollgate.store.connection import Command
from tollgate.worker import Worker

log = logging.getLogger(__name__)

GATHER_S = 0.005
MOST_ROWS = 20_000  # in memory: 13 s of 1,500 a second, 30 MB

ReportCallback = Callable[[JournalCounts, Sequence[float]], None]


class JournalWriter:
    """
    Writes the decisions of one step to the journal.

    Args:
        heading: Values that all its records share.
        stream: Stream to send to; closed with the writer.
        spool: Spool for chunks that the stream does not take; None for none. Closed
            with the writer.
        mark: Counts the records handed over, and outlives this process; closed with the
            writer.
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
        """
        Take rows, without waiting.

        Returns:
            True if there was room for them.
        """
        number = len(rows)
        counts = self.counts
        with self._lock:
            first = self._sequence
            self._sequence += number
            if self._mark is not None:
                self._mark.set(self._sequence)
            counts.appended += number
            if self._stopping or counts.buffered + number > self._most_rows:
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
        self._count(self._delivery.rows, "dropped")
        end_stored = self._delivery.close(
            End(self.writer, self._sequence, killed=False)
        )
        if self._mark is not None:
            self._mark.close(end_stored=end_stored)
        self._report()


def _nothing(records: object, now_us: int) -> Sequence[Command]:
    return ()
