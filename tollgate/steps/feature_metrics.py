"""
Export the metrics of the feature step through Triton's metrics endpoint.

An update of a metric is a message to the server (docs/performance-log.md), so no batch
sends one: a batch only adds to numbers here, and a thread exports them once a second.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tollgate.engine.row_batches import DryShare
from tollgate.schema import Degraded
from tollgate.steps.metric_buffer import MetricBuffer, export_each_second
from tollgate.steps.second_lookup import SecondLookup
from tollgate.steps.triton import Array
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.lookups import FOUND

EARLIER = ("same", "conflict", "corrupt")
OUTCOMES = ("answered", "partial", "late", "unknown", "failed", "not_made")

# Finest around the deadline of 5 ms.
_CALL_BUCKETS_S = (
    *(0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005),
    *(0.0075, 0.01, 0.025, 0.05),
)
_AGE_BUCKETS_S = (1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)

# Names and descriptions; docs/reliability.md has the same table.
COUNTERS = {
    "tollgate_store_calls_total": "Batches by what the store did",
    "tollgate_store_breaker_opened_total": "How often it opened",
    "tollgate_degraded_rows_total": "Rows by degraded bit",
    "tollgate_last_known_values_total": "Look-ups, by found or not",
    "tollgate_table_values_total": "Values of tables, by where found",
    "tollgate_spool_rows_total": "Rows not applied, by kept or not",
    "tollgate_earlier_decisions_total": (
        "Rows with an earlier decision: same, conflict, corrupt"
    ),
    "tollgate_second_lookup_rows_total": "Rows looked up again, by found or not",
    "tollgate_shared_rows_total": "Dry rows answered without the store",
    "tollgate_gc_collections_total": "Collections of the step's garbage collector",
}
HISTOGRAMS = {
    "tollgate_store_call_seconds": ("Duration of a call of the store", _CALL_BUCKETS_S),
    "tollgate_feed_age_seconds": ("Age of a feed's watermark, each s", _AGE_BUCKETS_S),
}
GAUGES = {
    "tollgate_store_breaker_state": "0 closed, 1 half-open, 2 open",
    "tollgate_last_known_bytes": "Memory of the last known values",
    "tollgate_table_bytes": "Memory of values of tables",
    "tollgate_feed_watermark_seconds": "Event time a feed has come to",
}


class StepMetrics:
    """
    Count and export the metrics of one feature step.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        chain: The fallback chain whose counts are exported.
        share: The shared dry runs whose counts are exported.
        second: The second look-ups whose counts are exported.
        labels: Labels of every metric; product, model and version.
    """

    def __init__(
        self,
        pb: Any,
        chain: FallbackChain,
        share: DryShare,
        second: SecondLookup,
        *,
        labels: Mapping[str, str],
    ) -> None:
        self._chain = chain
        self._share = share
        self._second = second
        self._labels = dict(labels)
        self._counters = MetricBuffer(
            pb, counters=COUNTERS, histograms=HISTOGRAMS, labels=labels
        )
        self._gauges = {
            name: pb.MetricFamily(
                name=name, description=text, kind=pb.MetricFamily.GAUGE
            )
            for name, text in GAUGES.items()
        }
        self._set: dict[tuple[str, ...], Any] = {}
        self._exported: dict[tuple[str, str], int] = {}
        self._degraded = np.zeros(len(Degraded), np.int64)
        self._shifts = np.array([bit.value.bit_length() - 1 for bit in Degraded])
        self.export()
        self._worker = export_each_second(self.export, name="feature-metrics")

    def count(self, degraded: Array) -> None:
        """Count degraded bits of rows that are answered; uint32 [N]."""
        if np.count_nonzero(degraded):
            self._degraded += ((degraded[:, None] >> self._shifts) & 1).sum(axis=0)

    def close(self) -> None:
        """Export the remaining numbers."""
        self._worker.stop()

    def export(self) -> None:
        """Export the numbers of all batches."""
        chain = self._chain
        counts = chain.counts
        for outcome in OUTCOMES:
            self._raise("tollgate_store_calls_total", counts.calls[outcome], outcome)
        for found, number in (("yes", counts.known), ("no", counts.unknown)):
            self._raise("tollgate_last_known_values_total", number, found)
        for found in FOUND:
            number = chain.tables.counts[found]
            self._raise("tollgate_table_values_total", number, found)
        for spooled, number in (("yes", counts.spooled), ("no", counts.spool_full)):
            self._raise("tollgate_spool_rows_total", number, spooled)
        for found in EARLIER:
            number = counts.earlier[found]
            self._raise("tollgate_earlier_decisions_total", number, found)
        for found, number in (("yes", self._second.found), ("no", self._second.lost)):
            self._raise("tollgate_second_lookup_rows_total", number, found)
        self._raise("tollgate_shared_rows_total", self._share.rows, "")
        for bit, number in zip(Degraded, self._degraded.tolist(), strict=True):
            self._raise("tollgate_degraded_rows_total", number, str(bit.name))
        for generation, one in enumerate(gc.get_stats()):
            number = one["collections"]
            self._raise("tollgate_gc_collections_total", number, str(generation))
        self._raise("tollgate_store_breaker_opened_total", chain.breaker.opened, "")
        if calls := len(counts.durations_s):
            values = np.array([counts.durations_s.popleft() for _ in range(calls)])
            self._counters.observe("tollgate_store_call_seconds", (), values=values)
        self._gauge("tollgate_store_breaker_state", int(chain.breaker.state))
        self._gauge("tollgate_last_known_bytes", chain.last_known.bytes_held)
        self._gauge("tollgate_table_bytes", chain.tables.memory.bytes_held)
        self._export_feeds()
        self._counters.export(pause=time.sleep)

    def _export_feeds(self) -> None:
        now_us = time.time_ns() // 1000
        marks_us = dict(self._chain.feeds.watermark_us)  # the step may add feeds
        for feed, mark_us in marks_us.items():
            self._gauge("tollgate_feed_watermark_seconds", mark_us / 1e6, feed=feed)
            age_s = np.array([max(0, now_us - mark_us) / 1e6])
            named = (("feed", feed),)
            self._counters.observe("tollgate_feed_age_seconds", named, values=age_s)

    def _raise(self, family: str, number: int, value: str) -> None:
        """Raise a counter to a number; the first call exports it even if it is 0."""
        before = self._exported.get((family, value))
        if before == number:
            return
        named = ((_LABELS[family], value),) if family in _LABELS else ()
        self._counters.add(family, named, number=number - (before or 0))
        self._exported[family, value] = number

    def _gauge(self, family: str, value: float, **named: str) -> None:
        key = (family, *named.values())
        if key not in self._set:
            labels = {**self._labels, **named}
            self._set[key] = self._gauges[family].Metric(labels=labels)
        self._set[key].set(value)


# The label that distinguishes a counter's values.
_LABELS = {
    "tollgate_store_calls_total": "outcome",
    "tollgate_degraded_rows_total": "bit",
    "tollgate_last_known_values_total": "found",
    "tollgate_table_values_total": "found",
    "tollgate_spool_rows_total": "kept",
    "tollgate_earlier_decisions_total": "found",
    "tollgate_second_lookup_rows_total": "found",
    "tollgate_gc_collections_total": "generation",
}
