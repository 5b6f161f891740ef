"""
Trace the work of steps: spans of single requests for a collector, and spans of batches.

Spans of batches are written only while a reader is connected.
"""

from __future__ import annotations

import msgspec

PIPE_VARIABLE = "TOLLGATE_SPANS"  # a step's pipe for spans; unset: no spans
RATE_VARIABLE = "TOLLGATE_TRACE_RATE"  # the value of `Tracing.rate`
BATCHES_VARIABLE = "TOLLGATE_BATCHES"  # a step's pipe for batches; unset: none
TRACE_FOLDER = "traces"  # in the state folder; both pipes are in it
BATCHES_FILE = "batches"


class Tracing(msgspec.Struct, frozen=True):
    """
    Settings of the export of traces.

    Attributes:
        endpoint: Address of a collector for OTLP over HTTP, without /v1/traces; empty
            for the one in the OTEL_EXPORTER_OTLP_* variables.
        rate: One in so many requests without a trace context is traced; 0: none. A
            request with a trace context is traced if its header says so.
    """

    endpoint: str = ""
    rate: int = 0
