"""
Count a client's events for Prometheus, and record its calls as OpenTelemetry spans.

Both need the library of that name. The application that calls the client sets up
OpenTelemetry: its sampling and where spans go. Without that setup the client records
nothing and sends no trace context to servers.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import tollgate_client
from tollgate_client.addresses import Address
from tollgate_client.errors import InvalidRequest, SetupError

# Counter -> its only label and its description.
COUNTERS = {
    "decisions": ("source", "rows decided: by model, cached, fallback"),
    "outcomes": ("decision", "rows decided, by word, such as approve"),
    "lists": ("source", "lists of items returned: of server, client"),
    "items": ("source", "items in these lists, such as personal, popular, client"),
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
        client: A DecisionClient, a Recommender, or one of these for asyncio.
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


_HEADER = "traceparent"


class Tracer:
    """
    Create the spans of one client.

    Args:
        product: Name of the Triton ensemble.
        verb: First word of the name of a call's span, such as `decide`.

    Raises:
        SetupError: OpenTelemetry is not installed.
    """

    def __init__(self, product: str, *, verb: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            problem = f"traces need OpenTelemetry: {error.name} is not installed"
            remedy = "pip install opentelemetry-api"
            raise SetupError(problem, remedy=remedy) from error
        self._trace = trace
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("tollgate.clients", tollgate_client.__version__)
        self._product, self._verb = product, verb

    def call(self, traceparent: str) -> CallSpan:
        """Start the span of a call, in the caller's trace or in a new one."""
        context = self._propagator.extract({_HEADER: traceparent})
        span = self._tracer.start_span(
            f"{self._verb} {self._product}",
            context=context if traceparent else None,
            kind=self._trace.SpanKind.CLIENT,
            attributes={"tollgate.product": self._product},
        )
        return CallSpan(span)

    def request(self, calls: Sequence[CallSpan]) -> CallSpan:
        """
        Start the span of a request that several calls share.

        The span belongs to the trace of the first recorded call and has links to the
        others. If no call is recorded, the request is not either.
        """
        recorded = [call for call in calls if call.traceparent]
        if not recorded:
            return CallSpan(self._trace.INVALID_SPAN)
        first, *others = [call.span for call in recorded]
        span = self._tracer.start_span(
            f"request {self._product}",
            context=self._trace.set_span_in_context(first),
            links=[self._trace.Link(one.get_span_context()) for one in others],
            attributes={"tollgate.product": self._product, "tollgate.rows": len(calls)},
        )
        for other in others:
            other.add_link(span.get_span_context())
        return CallSpan(span)


class CallSpan:
    """
    One span; it ends when its context ends.

    Attributes:
        traceparent: Trace context sent to the server; empty when nothing is recorded.
    """

    def __init__(self, span: Any) -> None:
        self.span = span
        self.traceparent = ""
        named = span.get_span_context()
        if named.trace_flags.sampled:
            self.traceparent = f"00-{named.trace_id:032x}-{named.span_id:016x}-01"

    def report(self, rows: Sequence[dict[str, str | int]]) -> None:
        """Record the attributes of each row."""
        if len(rows) == 1:
            self.span.set_attributes(rows[0])
        else:
            self.span.set_attribute("tollgate.rows", len(rows))
            for row in rows:
                self.span.add_event("row", row)

    def __enter__(self) -> CallSpan:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The text of an error may contain values of the request.
        if kind is not None and not issubclass(kind, InvalidRequest):
            self.span.set_attribute("error.type", kind.__name__)
        self.span.end()
