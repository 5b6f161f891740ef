"""
Record a client's calls as OpenTelemetry spans, if OpenTelemetry is installed.

The application that calls the client sets up OpenTelemetry: its sampling and where
spans go. Without that setup the client records nothing and sends no trace context to
servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import tollgate_client
from tollgate.errors import InvalidRequest, SetupError, install_remedy
from tollgate.schema import TRANSACTION_ID
from tollgate_client.decision import Outcome

_HEADER = "traceparent"


class Tracer:
    """
    Create the spans of one client.

    Args:
        product: Product that the client calls.

    Raises:
        SetupError: OpenTelemetry is not installed.
    """

    def __init__(self, product: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            problem = f"traces need OpenTelemetry: {error.name} is not installed"
            raise SetupError(problem, remedy=install_remedy("traces")) from error
        self._trace = trace
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("tollgate.clients", tollgate_client.__version__)
        self._product = product

    def call(self, traceparent: str) -> CallSpan:
        """Start the span of a call, in the caller's trace or in a new one."""
        context = self._propagator.extract({_HEADER: traceparent})
        span = self._tracer.start_span(
            f"decide {self._product}",
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
        span: The OpenTelemetry span.
        traceparent: Trace context sent to the server; empty when nothing is recorded.
    """

    def __init__(self, span: Any) -> None:
        self.span = span
        self.traceparent = ""
        named = span.get_span_context()
        if named.trace_flags.sampled:
            self.traceparent = f"00-{named.trace_id:032x}-{named.span_id:016x}-01"

    def report(
        self, purchases: Sequence[Mapping[str, object]], outcomes: Sequence[Outcome]
    ) -> None:
        """
        Record each purchase's id and outcome on the span: no score, customer or amount.
        """
        if not self.traceparent:
            return
        rows = [
            _attributes(purchase, outcome)
            for purchase, outcome in zip(purchases, outcomes, strict=True)
        ]
        if len(rows) == 1:
            self.span.set_attributes(rows[0])
        else:
            self.span.set_attribute("tollgate.rows", len(rows))
            for row in rows:
                self.span.add_event("row", row)

    def __enter__(self) -> CallSpan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The text of an error may contain values of the request.
        if kind is not None and not issubclass(kind, InvalidRequest):
            self.span.set_attribute("error.type", kind.__name__)
        self.span.end()


def _attributes(
    purchase: Mapping[str, object], outcome: Outcome
) -> dict[str, str | int]:
    given = purchase.get(TRANSACTION_ID, "")
    text = given.decode(errors="replace") if isinstance(given, bytes) else str(given)
    found: dict[str, str | int] = {"tollgate.transaction_id": text}
    if isinstance(outcome, InvalidRequest):
        return found | {"tollgate.refused": True}
    return found | {
        "tollgate.decision": outcome.decision,
        "tollgate.source": outcome.source,
        "tollgate.degraded": outcome.degraded,
        "tollgate.release": outcome.release,
    }
