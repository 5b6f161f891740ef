"""
What steps tell of their work: spans of single requests for a collector, and, while
somebody looks, of every batch.
"""

from __future__ import annotations

import msgspec

PIPE_VARIABLE = "TOLLGATE_SPANS"  # where a step writes its spans; unset: it makes none
RATE_VARIABLE = "TOLLGATE_TRACE_RATE"  # as `Tracing.rate`
BATCHES_VARIABLE = "TOLLGATE_BATCHES"  # the pipe of batches; unset: a step tells none
TRACE_FOLDER = "traces"  # in the state folder; both pipes are in it
BATCHES_FILE = "batches"


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
