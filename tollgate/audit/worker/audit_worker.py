"""
The journal worker: reads decisions from the stream and seals them into segments.

The worker acknowledges an entry when its records are on disk and linked. If a worker is
killed before that, the next one receives the entry again. It recognises records that
are sealed already by writer and sequence number, so no record is lost or stored twice.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import WriterEnd
from tollgate.audit.worker.chunk_source import ChunkSource, StreamEntry
from tollgate.audit.worker.sealing import Sealer
from tollgate.errors import JournalError, StoreError, TollgateError
from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.journal.stream_entries import decode_end
from tollgate.worker import run_until_idle

if TYPE_CHECKING:
    from tollgate.audit.worker.audit_metrics import WorkerMetrics

log = logging.getLogger(__name__)

SEAL_ROWS = 50_000  # some 10 MB, sealed within a second
SEAL_S = 30.0
WORKER_LOCK = ".worker.lock"

_PASSING = (StoreError, JournalError)  # Redis is unreachable, or the disk is full
_POLLED = 64  # entries per read
_RETRY_S = (0.1, 0.5, 1.0, 5.0)  # then the last pause repeats


class SealCounts(msgspec.Struct):
    """Counts of a worker since it started."""

    chunks: int = 0
    records: int = 0
    segments: int = 0
    buried: int = 0
    retries: int = 0


class JournalWorker:
    """
    Seals the decisions of one product.

    Args:
        source: Stream to read from.
        sealer: Sealer to pass records to.
        chain: Chain of the sealer.
        seal_rows: Number of records that makes a segment full.
        seal_s: Age in seconds at which a smaller segment is sealed.
        on_sealed: Called after records are sealed and acknowledged.
        metrics: Prometheus metrics to update; None for none.
        on_step: Called with the name of each step; tests stop there.
    """

    def __init__(
        self,
        source: ChunkSource,
        sealer: Sealer,
        *,
        chain: Chain,
        seal_rows: int = SEAL_ROWS,
        seal_s: float = SEAL_S,
        on_sealed: Callable[[], None] = lambda: None,
        metrics: WorkerMetrics | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._source = source
        self._sealer = sealer
        self._chain = chain
        self._seal_rows = seal_rows
        self._seal_s = seal_s
        self._on_sealed = on_sealed
        self._metrics = metrics
        self._on_step = on_step
        self._ids: list[bytes] = []
        self._batch: list[Records] = []
        self._ends: list[WriterEnd] = []
        self._rows = 0
        self._entries: list[StreamEntry] = []  # last batch of entries
        self._decoded = 0  # number of these that are decoded
        self._due_s = 0.0
        self.tally = SealCounts()

    def run(
        self, stopped: threading.Event, *, until_idle_s: float | None = None
    ) -> None:
        """
        Work until `stopped` is set, or until no entry came for a while.

        Entries taken are sealed before the end, unless Redis or the disk is
        unavailable.
        """
        self._until_done(self._require_chain, stopped, passing=StoreError)
        wait_s = 0.2 if until_idle_s is not None else 0.5
        run_until_idle(
            "journal-worker",
            lambda: self.step(stopped, wait_s=wait_s),
            stopped=stopped,
            until_idle_s=until_idle_s,
        )
        self._until_done(self._seal, stopped)

    def step(self, stopped: threading.Event, *, wait_s: float) -> int:
        """Read entries and seal when due; return the number of entries read."""

        def polled() -> None:
            self._entries = self._source.poll(most=_POLLED, wait_s=wait_s)
            self._decoded = 0

        # After an unexpected error, continue with the remaining entries of the last
        # batch.
        rest = self._decoded < len(self._entries)
        if rest or self._until_done(polled, stopped):
            self._until_done(self._decode, stopped)
        if self._ids and (
            self._rows >= self._seal_rows or time.monotonic() >= self._due_s
        ):
            self._until_done(self._seal, stopped)
        return len(self._entries)

    def _require_chain(self) -> None:
        mark = self._chain.mark()
        self._source.require_chain(mark, self._chain.hashes)
        self._source.note(mark)
        if self._metrics is not None:
            self._metrics.known(self._chain.links)

    def _decode(self) -> None:
        entries = self._entries
        if entries and not self._ids:
            self._due_s = time.monotonic() + self._seal_s
        for one in entries[self._decoded :]:
            try:
                self._decode_entry(one)
            except JournalError as exc:
                self._source.add_dead_letter(one, str(exc))
                log.warning("entry %s is a dead letter: %s", one.id.decode(), exc)
                self.tally.buried += 1
                if self._metrics is not None:
                    self._metrics.dead_letters.inc()
            self._ids.append(one.id)
            self._decoded += 1
        self.tally.chunks += len(entries)

    def _decode_entry(self, entry: StreamEntry) -> None:
        if entry.end:
            end = decode_end(entry.end)
            self._ends.append(WriterEnd(end.writer, end.sequence, end.killed))
            return
        records = decode_chunk(entry.chunk)
        if records.product != self._chain.links[0].product:
            raise JournalError("a chunk", f"is of product {records.product}")
        self._batch.append(records)
        self._rows += len(records)

    def _seal(self) -> None:
        """
        Seal the entries taken; a repeated call continues where the first one failed.
        """
        if not self._ids:
            return
        if self._batch or self._ends:
            self._seal_batch()
            self._on_step("sealed")
        self._source.note(self._chain.mark())
        self._source.acknowledge(self._ids)
        self._on_step("acknowledged")
        self._ids = []
        self._on_sealed()

    def _seal_batch(self) -> None:
        doubled = self._sealer.doubled
        links = self._sealer.seal(self._batch, ends=self._ends)
        self.tally.segments += sum(link.kind == "segment" for link in links)
        self.tally.records += sum(link.rows for link in links)
        if self._metrics is not None:
            self._metrics.sealed(
                self._batch,
                links,
                chain=self._chain.links,
                doubled=self._sealer.doubled - doubled,
            )
        self._batch, self._ends, self._rows = [], [], 0

    def _until_done(
        self,
        work: Callable[[], None],
        stopped: threading.Event,
        *,
        passing: type[TollgateError] | tuple[type[TollgateError], ...] = _PASSING,
    ) -> bool:
        """Retry until `work` succeeds; return False if `stopped` is set before."""
        for pause_s in itertools.chain(_RETRY_S, itertools.repeat(_RETRY_S[-1])):
            try:
                work()
            except passing as exc:
                log.warning("%s", exc)
                self.tally.retries += 1
                if self._metrics is not None:
                    self._metrics.retries.inc()
                if stopped.wait(pause_s):
                    return False
            else:
                return True
        return False
