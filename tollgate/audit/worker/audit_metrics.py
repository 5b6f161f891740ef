"""Export the Prometheus metrics of the journal worker; docs/audit.md has the table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tollgate.audit.chain.clock import utc_us
from tollgate.audit.chain.links import Link
from tollgate.audit.worker.sealing import missing_in
from tollgate.journal.decision_record import Records

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge

# A segment is sealed after at most 30 s; a worker that was down has a larger lag.
LAG_BUCKETS_S = (1, 5, 10, 20, 30, 45, 60, 120, 300, 900, 3_600, 21_600, 86_400)


class WorkerMetrics:
    """
    Metrics of one worker, in a separate registry.

    Args:
        product: Product whose decisions the worker seals.
    """

    def __init__(self, product: str) -> None:
        from prometheus_client import CollectorRegistry, Histogram

        self.registry = CollectorRegistry()
        self._product = product
        self._records = self._counter("sealed_records", "Decisions that were sealed")
        self._segments = self._counter("segments", "Segments that were sealed")
        self._doubled = self._counter(
            "doubled_records", "Decisions that came again, and were left out"
        )
        self.dead_letters = self._counter(
            "dead_letters", "Entries of the stream that are no record"
        )
        self.retries = self._counter(
            "retries", "Times that Redis or the disk were tried again"
        )
        self._lost = self._gauge(
            "lost_records", "Decisions with a number that never came, in the chain"
        )
        self._last_sealed = self._gauge(
            "last_sealed_timestamp_seconds", "When decisions were sealed last"
        )
        self._lag_s = Histogram(
            "tollgate_journal_sealed_lag_seconds",
            "Age of the oldest decision of a chunk when it was sealed",
            ("product",),
            buckets=LAG_BUCKETS_S,
            registry=self.registry,
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
        """
        Count sealed decisions.

        Args:
            batch: Decisions as they came from the stream.
            new: Links that were added.
            chain: All links of the chain.
            doubled: Number of decisions left out because they were sealed before.
        """
        now_s = time.time()
        for records in batch:
            self._lag_s.observe(max(0.0, now_s - int(records.decided_us.min()) / 1e6))
        self._records.inc(sum(link.rows for link in new))
        self._segments.inc(sum(link.kind == "segment" for link in new))
        self._doubled.inc(doubled)
        self.known(chain)

    def _counter(self, name: str, text: str) -> Counter:
        from prometheus_client import Counter

        full = f"tollgate_journal_{name}"
        metric = Counter(full, text, ("product",), registry=self.registry)
        return metric.labels(self._product)

    def _gauge(self, name: str, text: str) -> Gauge:
        from prometheus_client import Gauge

        full = f"tollgate_journal_{name}"
        metric = Gauge(full, text, ("product",), registry=self.registry)
        return metric.labels(self._product)
