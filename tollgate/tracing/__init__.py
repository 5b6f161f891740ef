"""Traces of single requests: spans of the steps, on their way to a collector."""

from __future__ import annotations

import msgspec

PIPE_VARIABLE = "TOLLGATE_SPANS"  # where a step writes its spans; unset: it makes none
RATE_VARIABLE = "TOLLGATE_TRACE_RATE"  # as `Tracing.rate`


class Tracing(msgspec.Struct, frozen=True):
    """
    Whether and where to traces are sent.

    Attributes:
        endpoint: Of a collector for OTLP over HTTP, without /v1/traces; empty for what
            the OTEL_EXPORTER_OTLP_* variables say.
        rate: Of so many requests that bring no trace context one is traced; 0: none.
            Those that bring one are traced as it says.
    """

    endpoint: str = ""
    rate: int = 0
