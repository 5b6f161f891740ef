"""Count a client's events and export them to Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tollgate.errors import SetupError
from tollgate_client.addresses import Address

# Counter -> its only label and its description.
COUNTERS = {
    "decisions": ("source", "rows decided: by model, cached, fallback"),
    "refused": ("by", "rows with a mistake of the caller's: found by client, server"),
    "calls": ("outcome", "attempts: answered, refused, late, failed, overloaded"),
    "retries": ("after", "requests sent once more: after late, failed, overloaded"),
    "fallbacks": (
        "after",
        "requests without an answer: after late, failed, open, overloaded",
    ),
}
_PREFIX = "tollgate_client_"


class Counters:
    """Count a client's events; threads may share it, and read it as a mapping."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, label: str, *, count: int = 1) -> None:
        """Increment a counter; `name` is one of COUNTERS."""
        with self._lock:
            self._counts[name, label] += count

    def __getitem__(self, key: tuple[str, str]) -> int:
        return self._counts[key]

    def snapshot(self) -> dict[tuple[str, str], int]:
        """Copy all counters: (name, label) -> count."""
        with self._lock:
            return dict(self._counts)


class Counted(Protocol):
    """The part of a client that Prometheus needs."""

    @property
    def counters(self) -> Counters:
        """Return the client's counters."""

    @property
    def addresses(self) -> Sequence[Address]:
        """Return the client's addresses."""


def register(client: Counted, registry: Any) -> None:
    """
    Export a client's counters and the state of its circuit breakers to Prometheus.

    Args:
        client: A DecisionClient or an AsyncDecisionClient.
        registry: A `prometheus_client.CollectorRegistry`.

    Raises:
        SetupError: prometheus_client is not installed.
    """
    try:
        from prometheus_client import core
    except ModuleNotFoundError as error:
        raise SetupError(
            "prometheus_client is not installed", remedy="pip install prometheus-client"
        ) from error

    class Collector:
        def collect(self) -> Iterator[Any]:
            counts = client.counters.snapshot()
            for name, (label, words) in COUNTERS.items():
                family = core.CounterMetricFamily(
                    f"{_PREFIX}{name}", words, labels=[label]
                )
                for (counted, value), count in counts.items():
                    if counted == name:
                        family.add_metric([value], count)
                yield family
            state = core.GaugeMetricFamily(
                f"{_PREFIX}breaker_state",
                "0 closed, 1 half-open, 2 open",
                labels=["address"],
            )
            opened = core.CounterMetricFamily(
                f"{_PREFIX}breaker_opened",
                "how often it opened",
                labels=["address"],
            )
            for address in client.addresses:
                state.add_metric([address.name], int(address.breaker.state))
                opened.add_metric([address.name], address.breaker.opened)
            yield state
            yield opened

    registry.register(Collector())
