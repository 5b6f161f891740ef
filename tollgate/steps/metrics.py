"""
What the feature step tells Prometheus, through Triton's own metrics page.

An update is a message to the server, 10 µs each (docs/performance-log.md). So the
duration of a store call is told at once, everything else once a second, together with
the next batch; a breaker that changed its mind is told at once, too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tollgate.schema import Degraded
from tollgate.steps.sharing import DryShare
from tollgate.steps.triton import Array
from tollgate.store.breaker import State
from tollgate.store.ladder import Ladder
from tollgate.store.tables import FOUND

EARLIER = ("same", "conflict", "corrupt")
OUTCOMES = ("answered", "partial", "late", "unknown", "failed", "not_made")

_INTERVAL_S = 1.0
# Finest where a deadline of 5 ms is decided.
_CALL_BUCKETS_S = (
    *(0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005),
    *(0.0075, 0.01, 0.025, 0.05),
)
_AGE_BUCKETS_S = (1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)

# Name -> kind and description; docs/reliability.md has the same table.
FAMILIES = {
    "tollgate_store_call_seconds": ("HISTOGRAM", "Duration of a call of the store"),
    "tollgate_store_calls_total": ("COUNTER", "Batches by what the store did"),
    "tollgate_store_breaker_state": ("GAUGE", "0 closed, 1 half-open, 2 open"),
    "tollgate_store_breaker_opened_total": ("COUNTER", "How often it opened"),
    "tollgate_degraded_rows_total": ("COUNTER", "Rows by degraded bit"),
    "tollgate_last_known_values_total": ("COUNTER", "Look-ups, by found or not"),
    "tollgate_last_known_bytes": ("GAUGE", "Memory of the last known values"),
    "tollgate_table_values_total": ("COUNTER", "Values of tables, by where found"),
    "tollgate_table_bytes": ("GAUGE", "Memory of values of tables"),
    "tollgate_spool_rows_total": ("COUNTER", "Rows not applied, by kept or not"),
    "tollgate_earlier_decisions_total": (
        "COUNTER",
        "Rows with an earlier decision: same, conflict, corrupt",
    ),
    "tollgate_shared_rows_total": ("COUNTER", "Dry rows answered without the store"),
    "tollgate_feed_watermark_seconds": ("GAUGE", "Event time a feed has come to"),
    "tollgate_feed_age_seconds": ("HISTOGRAM", "Age of a feed's watermark, each s"),
    "tollgate_gc_collections_total": (
        "COUNTER",
        "Collections of the step's garbage collector",
    ),
}


class StepMetrics:
    """
    The metrics of one feature step.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        ladder: What they are about.
        share: And this.
        labels: Of every metric; product, model and version.
        clock: Monotonic, seconds.
    """

    def __init__(
        self,
        pb: Any,
        ladder: Ladder,
        share: DryShare,
        *,
        labels: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pb = pb
        self._ladder = ladder
        self._share = share
        self._labels = dict(labels)
        self._clock = clock
        self._families = {
            name: pb.MetricFamily(
                name=name, description=text, kind=getattr(pb.MetricFamily, kind)
            )
            for name, (kind, text) in FAMILIES.items()
        }
        self._metrics: dict[tuple[str, str], Any] = {}
        self._told: dict[tuple[str, str], int] = {}
        self._degraded = np.zeros(len(Degraded), np.int64)
        self._shifts = np.array([bit.value.bit_length() - 1 for bit in Degraded])
        self._calls = self._metric("tollgate_store_call_seconds", {})
        self._due_s = 0.0
        self._state = State.CLOSED
        self._tell()

    def batch(self, degraded: Array) -> None:
        """
        Tell what a batch has come to.

        Args:
            degraded: Degraded bits of its rows; uint32 [N].
        """
        call_s = self._ladder.counts.call_s
        if call_s is not None:
            self._calls.observe(call_s)
        if degraded.any():
            self._degraded += ((degraded[:, None] >> self._shifts) & 1).sum(axis=0)
        now_s = self._clock()
        state = self._ladder.breaker.state
        if now_s >= self._due_s or state is not self._state:
            self._due_s = now_s + _INTERVAL_S
            self._state = state
            self._tell()

    def _tell(self) -> None:
        ladder = self._ladder
        counts = ladder.counts
        for outcome in OUTCOMES:
            self._raise("tollgate_store_calls_total", counts.calls[outcome], outcome)
        for found, number in (("yes", counts.known), ("no", counts.unknown)):
            self._raise("tollgate_last_known_values_total", number, found)
        for found in FOUND:
            number = ladder.tables.counts[found]
            self._raise("tollgate_table_values_total", number, found)
        for kept, number in (("yes", counts.spooled), ("no", counts.spool_full)):
            self._raise("tollgate_spool_rows_total", number, kept)
        for found in EARLIER:
            number = counts.earlier[found]
            self._raise("tollgate_earlier_decisions_total", number, found)
        self._raise("tollgate_shared_rows_total", self._share.rows, "")
        for bit, number in zip(Degraded, self._degraded.tolist(), strict=True):
            self._raise("tollgate_degraded_rows_total", number, str(bit.name))
        for generation, one in enumerate(gc.get_stats()):
            number = one["collections"]
            self._raise("tollgate_gc_collections_total", number, str(generation))
        self._raise("tollgate_store_breaker_opened_total", ladder.breaker.opened, "")
        self._metric("tollgate_store_breaker_state", {}).set(int(self._state))
        self._metric("tollgate_last_known_bytes", {}).set(ladder.last_known.bytes_held)
        held = ladder.tables.memory.bytes_held
        self._metric("tollgate_table_bytes", {}).set(held)
        ages_us = ladder.feeds.ages_us(time.time_ns() // 1000)
        for feed, watermark_us in ladder.feeds.watermark_us.items():
            named = {"feed": feed}
            mark = self._metric("tollgate_feed_watermark_seconds", named)
            mark.set(watermark_us / 1e6)
            age = self._metric("tollgate_feed_age_seconds", named)
            age.observe(ages_us[feed] / 1e6)

    def _raise(self, family: str, number: int, value: str) -> None:
        """Bring a counter up to a number; one that has not moved costs nothing."""
        before = self._told.get((family, value))
        if before == number:
            return
        named = {_LABELS[family]: value} if family in _LABELS else {}
        metric = self._metric(family, named)
        metric.increment(number - (before or 0))
        self._told[family, value] = number

    def _metric(self, family: str, named: Mapping[str, str]) -> Any:
        key = (family, ",".join(named.values()))
        if key not in self._metrics:
            labels = self._labels | dict(named)
            buckets = _BUCKETS.get(family)
            make = self._families[family].Metric
            self._metrics[key] = (
                make(labels=labels)
                if buckets is None
                else make(labels=labels, buckets=list(buckets))
            )
        return self._metrics[key]


_BUCKETS = {
    "tollgate_store_call_seconds": _CALL_BUCKETS_S,
    "tollgate_feed_age_seconds": _AGE_BUCKETS_S,
}
# The label that tells a family's metrics apart.
_LABELS = {
    "tollgate_store_calls_total": "outcome",
    "tollgate_degraded_rows_total": "bit",
    "tollgate_last_known_values_total": "found",
    "tollgate_table_values_total": "found",
    "tollgate_spool_rows_total": "kept",
    "tollgate_earlier_decisions_total": "found",
    "tollgate_gc_collections_total": "generation",
}
