"""Export the metrics of a stream consumer; docs/streams.md has the table."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tollgate.store.lookups import FEEDS

# From an event's time to its effect in the store: live feeds are milliseconds behind, a
# feed that catches up is hours behind.
LAG_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 3600, 86_400)
APPLY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
# Watermarks are exported once a second, and compared with limits of minutes.
AGE_BUCKETS_S = (1, 5, 30, 60, 300, 900, 3_600, 21_600, 86_400)

_PRODUCT = ("product",)
_FEED = ("product", "feed")


class StreamMetrics:
    """Hold the metrics of one consumer, in a separate registry."""

    def __init__(self, product: str) -> None:
        self.registry = CollectorRegistry()
        self._product = product
        self._events = Counter(
            "tollgate_stream_events",
            "Events taken from the feed, by kind and outcome",
            ("product", "kind", "outcome"),
            registry=self.registry,
        )
        self.retries = Counter(
            "tollgate_stream_retries",
            "Steps that the store or the feed did not answer",
            _PRODUCT,
            registry=self.registry,
        ).labels(product)
        self.backlog = self._gauge(
            "backlog", "Events that wait in this consumer's share of the feed"
        ).labels(product)
        self.partitions = self._gauge(
            "partitions", "Partitions that this consumer reads"
        ).labels(product)
        self._lag_s = self._gauge(
            "lag_seconds",
            "Age of the newest event applied; 0 when nothing waits",
            labels=_FEED,
        )
        self._event_lag_s = self._histogram(
            "event_lag_seconds",
            "Age of a batch's oldest event when it was applied",
            buckets=LAG_BUCKETS_S,
            labels=_FEED,
        )
        self._mark_s = self._gauge(
            "feed_watermark_seconds",
            "Event time that all partitions of the feed have come to",
            labels=_FEED,
        )
        self._mark_age_s = self._histogram(
            "feed_age_seconds",
            "Age of the feed's watermark, each second",
            buckets=AGE_BUCKETS_S,
            labels=_FEED,
        )
        self.apply_s = self._histogram(
            "apply_seconds", "Time to apply one batch", buckets=APPLY_BUCKETS_S
        ).labels(product)

    def count(self, kind: str, outcome: str, number: int) -> None:
        """Add events of a kind (purchase, label, unknown) with an outcome."""
        if number:
            self._events.labels(self._product, kind, outcome).inc(number)

    def lag(self, feed: str, *, oldest_s: float, newest_s: float) -> None:
        """Export the ages of the oldest and the newest event of a batch."""
        self._event_lag_s.labels(self._product, feed).observe(oldest_s)
        self._lag_s.labels(self._product, feed).set(newest_s)

    def no_lag(self) -> None:
        """Export a lag of 0: no event is pending."""
        for feed in FEEDS:
            self._lag_s.labels(self._product, feed).set(0)

    def feed(self, feed: str, *, watermark_us: int, now_us: int) -> None:
        """
        Export a feed's watermark and its age; both arguments are µs since the epoch.
        """
        self._mark_s.labels(self._product, feed).set(watermark_us / 1e6)
        age_s = max(0, now_us - watermark_us) / 1e6
        self._mark_age_s.labels(self._product, feed).observe(age_s)

    def _gauge(
        self, name: str, text: str, *, labels: tuple[str, ...] = _PRODUCT
    ) -> Gauge:
        return Gauge(f"tollgate_stream_{name}", text, labels, registry=self.registry)

    def _histogram(
        self,
        name: str,
        text: str,
        *,
        buckets: tuple[float, ...],
        labels: tuple[str, ...] = _PRODUCT,
    ) -> Histogram:
        return Histogram(
            f"tollgate_stream_{name}",
            text,
            labels,
            registry=self.registry,
            buckets=buckets,
        )
