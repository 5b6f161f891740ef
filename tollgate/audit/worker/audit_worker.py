"""
The journal worker: reads decisions from the stream and seals them into segments.

The worker acknowledges an entry when its records are on disk and linked. If a worker is
killed before that, the next one receives the entry again. It recognises records that
are sealed already by writer and sequence number, so no record is lost or stored twice.
docs/audit.md has the table of its metrics.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import Link, WriterEnd, now_us, utc_us
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.worker.chunk_source import ChunkSource, StreamEntry
from tollgate.audit.worker.late_checks import flag_new
from tollgate.audit.worker.reasons import ReasonSealer
from tollgate.audit.worker.retention import retain
from tollgate.audit.worker.sealing import Sealer, missing_in
from tollgate.errors import JournalError, StoreError, TollgateError
from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.journal.stream_entries import decode_end
from tollgate.metrics import counter, gauge, histogram
from tollgate.worker import run_until_idle

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge


log = logging.getLogger(__name__)

SEAL_ROWS = 50_000  # some 10 MB, sealed within a second
SEAL_DETAILS_BYTES = 32 << 20  # of details in a segment: 10,000 records of 3 KB
SEAL_S = 30.0
WORKER_LOCK = ".worker.lock"

_RETAIN_EVERY_S = 3_600.0
_PASSING = (StoreError, JournalError)  # Redis is unreachable, or the disk is full
_POLLED = 64  # entries per read
_RETRY_S = (0.1, 0.5, 1.0, 5.0)  # then the last pause repeats


class SealCounts(msgspec.Struct):
    """Counts of a worker since it started."""

    chunks: int = 0
    records: int = 0
    segments: int = 0
    dead_letters: int = 0
    retries: int = 0


class JournalWorker:
    """
    Seals the decisions of one product.

    Args:
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
        self._rows = self._details_bytes = 0
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
            self._rows >= self._seal_rows
            or self._details_bytes >= SEAL_DETAILS_BYTES
            or time.monotonic() >= self._due_s
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
                self.tally.dead_letters += 1
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
        self._details_bytes += sum(map(len, records.details))

    def _seal(self) -> None:
        """Seal the entries taken; a repeated call continues where one failed."""
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
        self._batch, self._ends = [], []
        self._rows = self._details_bytes = 0

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


# A segment is sealed after at most 30 s; a worker that was down has a larger lag.
LAG_BUCKETS_S = (1, 5, 10, 20, 30, 45, 60, 120, 300, 900, 3_600, 21_600, 86_400)


class WorkerMetrics:
    """Metrics of one worker, in a separate registry."""

    def __init__(self, product: str) -> None:
        from prometheus_client import CollectorRegistry

        self.registry = registry = CollectorRegistry()

        def own_counter(name: str) -> Counter:
            return counter(f"tollgate_journal_{name}", registry).labels(product)

        def own_gauge(name: str) -> Gauge:
            return gauge(f"tollgate_journal_{name}", registry).labels(product)

        self._records = own_counter("sealed_records_total")
        self._segments = own_counter("segments_total")
        self._doubled = own_counter("doubled_records_total")
        self.dead_letters = own_counter("dead_letters_total")
        self.retries = own_counter("retries_total")
        self._lost = own_gauge("lost_records")
        self._last_sealed = own_gauge("last_sealed_timestamp_seconds")
        self._lag_s = histogram(
            "tollgate_journal_sealed_lag_seconds", registry, buckets=LAG_BUCKETS_S
        ).labels(product)

    def known(self, links: Sequence[Link]) -> None:
        """Set the gauges that follow from the links of a chain."""
        self._lost.set(sum(missing_in(links).values()))
        times = [link.sealed for link in links if link.kind == "segment"]
        if times:
            self._last_sealed.set(utc_us(times[-1]) / 1e6)

    def sealed(
        self,
        batch: Sequence[Records],
        new: Sequence[Link],
        *,
        chain: Sequence[Link],
        doubled: int,
    ) -> None:
        """Count sealed decisions; `doubled` were left out as sealed before."""
        now_s = time.time()
        for records in batch:
            self._lag_s.observe(max(0.0, now_s - int(records.decided_us.min()) / 1e6))
        self._records.inc(sum(link.rows for link in new))
        self._segments.inc(sum(link.kind == "segment" for link in new))
        self._doubled.inc(doubled)
        self.known(chain)


class SealFollowUp:
    """
    Runs the work that follows each seal: late checks, reasons and hourly retention.

    Args:
        repository: Model repository with the rest of their files; None for none.
        keep_s: Retention of segments in seconds; None keeps them forever.
        say: Called with a message if a step fails; the next seal tries it again.
    """

    def __init__(
        self,
        chain: Chain,
        releases: ReleaseArchive,
        *,
        repository: Path | None,
        keep_s: float | None,
        say: Callable[[str], None],
    ) -> None:
        self._chain = chain
        self._releases = releases
        self._reason_sealer = ReasonSealer(chain, releases, repository=repository)
        self._keep_s = keep_s
        self._say = say
        self._due_s = 0.0

    def __call__(self) -> None:
        """Run late checks and reasons once, and retention if an hour has passed."""
        try:
            flag_new(self._chain, self._releases)
            self._reason_sealer.seal_new()
            if self._keep_s is not None and time.monotonic() >= self._due_s:
                self._due_s = time.monotonic() + _RETAIN_EVERY_S
                retain(self._chain, before_us=now_us() - int(self._keep_s * 1e6))
        except JournalError as exc:
            self._say(f"tollgate: {exc}")
