"""
Write every decision down, off the path of its answer.

`append` hands rows to a thread and returns. The thread gathers for a few milliseconds,
packs a chunk and adds it to the stream; when the stream has no answer, or is full, to
the spool. When both refuse, records wait in memory, and what finds no room there is
dropped, counted, and leaves a gap in the numbers.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from tollgate.errors import trace_of
from tollgate.journal.chunks import Beside, Chunk, Numbered, pack, runs
from tollgate.journal.counts import JournalCounts
from tollgate.journal.mark import Mark, dead_marks
from tollgate.journal.record import decode_chunk
from tollgate.journal.rows import Heading, Rows
from tollgate.journal.spool import JournalSpool
from tollgate.journal.stream import End, JournalStream
from tollgate.store.connection import Command

log = logging.getLogger(__name__)

GATHER_S = 0.005
PROBE_S = 0.5  # between looks at a stream that is away
IDLE_S = 1.0  # between looks at what writers that are gone left behind
MOST_ROWS = 20_000  # in memory: 13 s of 1,500 a second, 30 MB
_DRAIN_S = 0.005  # of a cycle, so that new records need not wait long

Told = Callable[[JournalCounts, Sequence[float]], None]


class JournalWriter:
    """
    Writes the decisions of one step.

    Args:
        heading: What they share.
        stream: Where to; closed with the writer.
        spool: Where else; None for nowhere. Closed with the writer.
        mark: Keeps count of what was handed over, beyond the life of this process;
            closed with the writer.
        beside: Makes commands to send beside a chunk, of its records and the clock.
        most_rows: Records that may wait in memory.
        gather_s: How long rows wait for others.
        told: Called by the thread after each cycle, with the counters and the lags
            from decision to acknowledgement or synced disk since the last call, s.

    Attributes:
        writer: Its name in the records, drawn anew by each.
        counts: What it counts.
    """

    def __init__(
        self,
        heading: Heading,
        stream: JournalStream,
        *,
        spool: JournalSpool | None = None,
        mark: Mark | None = None,
        beside: Beside | None = None,
        most_rows: int = MOST_ROWS,
        gather_s: float = GATHER_S,
        told: Told | None = None,
    ) -> None:
        self._heading = heading
        self._stream = stream
        self._spool = spool
        self._mark = mark
        self._beside = beside
        self._most_rows = most_rows
        self._gather_s = gather_s
        self._told = told
        self._lock = threading.Lock()
        self._waiting: list[Numbered] = []
        self._held: deque[Chunk] = deque()  # packed; nobody took it yet
        self._sequence = 0
        self._away = self._spool_failed = False
        self._probe_due_s = 0.0
        self._look_due_s = 0.0
        self._stopping = False
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._lags: list[float] = []
        self.writer = mark.writer if mark is not None else secrets.token_hex(8)
        self.counts = JournalCounts()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def append(self, rows: Rows) -> bool:
        """
        Take rows, without waiting.

        Returns:
            Whether there was room for them.
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
        if alone:  # else the thread knows
            self._wake.set()
        return True

    def close(self, *, grace_s: float = 2.0) -> None:
        """Write what waits, and end; a second call does nothing."""
        with self._lock:
            self._stopping = True
        self._ended.set()
        self._wake.set()
        self._thread.join(grace_s)
        if self._thread.is_alive():
            left = self.counts.buffered
            log.error("the journal did not end in time; %d records are lost", left)

    def _run(self) -> None:
        while True:
            if self._wake.wait(self._idle_s()):
                self._wake.clear()
                self._ended.wait(self._gather_s)
            stopping = self._stopping  # before what waits is taken
            self._cycle()
            if stopping:
                self._finish()
                return

    def _idle_s(self) -> float:
        """Tell how long to wait for new records, with what there is to do."""
        if not self._held and (self._spool is None or not self._spool.busy):
            return IDLE_S
        left_s = self._probe_due_s - time.monotonic()
        return max(self._gather_s, left_s if self._blocked() else 0.0)

    def _blocked(self) -> bool:
        return self._away or self._stream.full

    def _cycle(self) -> None:
        """Write what waits, then some of what the spool holds."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        for run in runs(taken):
            try:
                self._held.append(self._packed(run))
            except Exception as error:  # noqa: BLE001 - a record costs no decision
                log.error("records could not be packed: %s", trace_of(error))
                rows = sum(len(one) for _, one in run)
                self._count(rows, "dropped")
        if self._held:
            self._write()
        now_s = time.monotonic()
        if self._spool is not None and (self._spool.busy or now_s >= self._look_due_s):
            self._drain(self._spool, now_s)
        self.counts.full = self._stream.full
        if self._told is not None:
            self._told(self.counts, self._lags)
        self._lags = []

    def _packed(self, run: Sequence[Numbered]) -> Chunk:
        return pack(
            run, self._heading, writer=self.writer, beside=self._beside or _nothing
        )

    def _write(self) -> None:
        """Hand over what is held: to the stream, or behind what it did not take."""
        held = list(self._held)
        beside = [command for chunk in held for command in chunk.beside]
        sent = 0
        if self._may_send(beside) and not (self._spool and self._spool.waiting):
            sent = self._send([chunk.raw for chunk in held], beside)
            self._done(held[:sent], "written")
        if sent < len(held) and self._spool is not None:
            rest = held[sent:]
            try:
                self._spool.write([(chunk.first, chunk.raw) for chunk in rest])
            except OSError as error:
                if not self._spool_failed:
                    text = "the journal's spool cannot take records: %s"
                    log.warning(text, error.strerror)
                self._spool_failed = True
            else:
                self._spool_failed = False
                self._done(rest, "spooled")

    def _may_send(self, beside: Sequence[Command] = ()) -> bool:
        """Tell whether to try the stream now; one that is full gets the rest."""
        if self._away:
            return time.monotonic() >= self._probe_due_s
        if self._stream.full and (beside or time.monotonic() >= self._probe_due_s):
            self._probe_due_s = time.monotonic() + PROBE_S
            self._stream.look(beside=beside)
        return not self._stream.full

    def _send(self, chunks: Sequence[bytes], beside: Sequence[Command]) -> int:
        sent = self._stream.add(chunks, beside=beside)
        away = sent < len(chunks)
        if away:
            self._probe_due_s = time.monotonic() + PROBE_S
        if away != self._away:
            log.warning("the journal's stream is %s", "away" if away else "back")
        self._away = away
        return sent

    def _done(self, chunks: Sequence[Chunk], how: str) -> None:
        now_us = time.time_ns() // 1000
        for chunk in chunks:
            self._held.popleft()
            self._lags.append((now_us - chunk.decided_us) / 1e6)
        self._count(sum(chunk.rows for chunk in chunks), how)

    def _count(self, rows: int, how: str) -> None:
        with self._lock:
            self.counts.buffered -= rows
            setattr(self.counts, how, getattr(self.counts, how) + rows)

    def _drain(self, spool: JournalSpool, now_s: float) -> None:
        """Send some of what the spool holds; behind it, the ends of dead writers."""
        if not self._may_send():
            return
        try:
            took = spool.drain(self._send_again, until_s=now_s + _DRAIN_S)
            if took and not spool.busy:
                self._look_due_s = now_s + IDLE_S
                spool.clear_heads()
                for path, end in dead_marks(spool.folder):
                    if self._stream.end(end):
                        path.unlink(missing_ok=True)
        except OSError as error:
            self._look_due_s = now_s + IDLE_S
            log.warning("the journal's spool cannot be read: %s", error.strerror)

    def _send_again(self, chunks: Sequence[bytes]) -> int:
        beside: list[Command] = []
        if self._beside is not None:
            now_us = time.time_ns() // 1000
            for raw in chunks:
                beside += self._beside(decode_chunk(raw), now_us)
        sent = self._send(chunks, beside)
        self.counts.drained += sent
        return sent

    def _finish(self) -> None:
        left = sum(chunk.rows for chunk in self._held)
        self._count(left, "dropped")
        told = False
        if self._spool is None or not self._spool.busy:
            told = self._stream.end(End(self.writer, self._sequence, killed=False))
        if self._mark is not None:
            self._mark.close(told=told)
        if self._spool is not None:
            self._spool.close()
        self._stream.close()
        if self._told is not None:
            self._told(self.counts, self._lags)


def _nothing(records: object, now_us: int) -> Sequence[Command]:
    return ()
