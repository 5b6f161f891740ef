"""What a stream consumer tells Prometheus; docs/streams.md has the table."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# From an event's time to its effect in the store: live feeds are milliseconds
# behind, a feed that catches up is hours behind.
LAG_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 3600, 86_400)
APPLY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

_PRODUCT = ("product",)


class StreamMetrics:
    """The metrics of one consumer, in a registry of their own."""

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
        )
        self.partitions = self._gauge(
            "partitions", "Partitions that this consumer reads"
        )
        self.lag_s = self._gauge(
            "lag_seconds", "Age of the newest event applied; 0 when nothing waits"
        )
        self.event_lag_s = self._histogram(
            "event_lag_seconds",
            "Age of a batch's oldest event when it was applied",
            buckets=LAG_BUCKETS_S,
        )
        self.apply_s = self._histogram(
            "apply_seconds", "Time to apply one batch", buckets=APPLY_BUCKETS_S
        )

    def count(self, kind: str, outcome: str, number: int) -> None:
        """Add events of a kind (purchase, label, unknown) with an outcome."""
        if number:
            self._events.labels(self._product, kind, outcome).inc(number)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"tollgate_stream_{name}", text, _PRODUCT, registry=self.registry)
        return gauge.labels(self._product)

    def _histogram(
        self, name: str, text: str, *, buckets: tuple[float, ...]
    ) -> Histogram:
        histogram = Histogram(
            f"tollgate_stream_{name}",
            text,
            _PRODUCT,
            registry=self.registry,
            buckets=buckets,
        )
        return histogram.labels(self._product)
