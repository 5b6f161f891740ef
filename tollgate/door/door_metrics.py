"""Count the door's requests and rows for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from tollgate.metrics import counter, family, gauge, histogram

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram
    from prometheus_client.core import Metric

    from tollgate_client.telemetry import Counters

REQUEST_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1),
    *(0.25, 0.5, 1, 2.5, 5, 10),
)
_CALLS = "tollgate_door_calls_total"


class DoorMetrics:
    """
    The metrics of one door.

    Args:
        clients: Returns the counters of the client of each product.
    """

    def __init__(self, clients: Callable[[], Mapping[str, Counters]]) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = counter("tollgate_door_requests_total", registry)
        self._rows = counter("tollgate_door_rows_total", registry)
        self._seconds = histogram(
            "tollgate_door_request_seconds", registry, buckets=REQUEST_BUCKETS_S
        )
        self.rows_in_flight = gauge("tollgate_door_rows_in_flight", registry)
        self.row_limit = gauge("tollgate_door_rows_limit", registry)
        registry.register(_Calls(clients))
        # Finding the child of some labels costs more than counting.
        self._request_child = lru_cache(256)(self._find_request)
        self._row_child = lru_cache(256)(self._find_row)
        self._seconds_child = lru_cache(64)(self._find_seconds)

    def request(self, route: str, status: int, took_s: float) -> None:
        """Count a request and its duration, by one of the door's routes."""
        self._request_child(route, status).inc()
        self._seconds_child(route).observe(took_s)

    def row(self, product: str, source: str) -> None:
        """Count a row: `model`, `cached`, `fallback`, or `refused`."""
        self._row_child(product, source).inc()

    def _find_request(self, route: str, status: int) -> Counter:
        return self._requests.labels(route=route, status=str(status))

    def _find_row(self, product: str, source: str) -> Counter:
        return self._rows.labels(product=product, source=source)

    def _find_seconds(self, route: str) -> Histogram:
        return self._seconds.labels(route=route)


class _Calls:
    """Exports the requests to servers, which the clients count."""

    def __init__(self, clients: Callable[[], Mapping[str, Counters]]) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        """Read the clients' counters, once for each scrape."""
        calls = family(_CALLS)
        for product, counters in self._clients().items():
            for (name, outcome), count in counters.snapshot().items():
                if name == "calls":
                    calls.add_metric([product, outcome], count)
        yield calls
