"""
Send the spans of a server's steps to a collector, from outside of the steps.

One thread empties the pipe a few times a second and sends its content. While a
collector does not respond, the thread waits, the pipe fills, and the steps drop new
spans.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tollgate
from tollgate.errors import SetupError, install_remedy
from tollgate.tracing import PIPE_VARIABLE, RATE_VARIABLE, Tracing
from tollgate.tracing.spans import Span, read_spans
from tollgate.worker import Worker

log = logging.getLogger(__name__)

PIPE_FILE = "spans"
TRACES_PATH = "/v1/traces"

# Size and pause limit the rate: 512 KB per second, some 200 requests.
_PIPE_BYTES = 1 << 18
_INTERVAL_S = 0.5
_TIMEOUT_S = 5.0  # of a collector; after it, spans are dropped
_AT_ONCE = 512  # spans in a request, as in OpenTelemetry's batches
_STOP_S = 2.0


class SpanCollector:
    """
    Send the spans that steps write, for as long as this context lasts.

    Raises:
        SetupError: OpenTelemetry is not installed.
    """

    def __init__(self, tracing: Tracing, *, folder: Path) -> None:
        self._tracing = tracing
        self._path = folder / PIPE_FILE
        self._exporter = _exporter(tracing.endpoint)
        self._pipe = -1
        self._rest = b""  # start of an incomplete line
        self._answers = True
        self._worker = Worker(
            "traces", self._send, pause_s=_INTERVAL_S, finish=self._send
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that a step needs."""
        return {
            PIPE_VARIABLE: str(self._path),
            RATE_VARIABLE: str(self._tracing.rate),
        }

    def __enter__(self) -> SpanCollector:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        os.mkfifo(self._path, mode=0o600)
        # Open for both: so it never reaches its end, whichever steps have it open.
        self._pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._worker.start()
        return self

    def _send(self) -> None:
        """Send all spans in the pipe; those that an error interrupts are lost."""
        content, self._rest = self._rest, b""
        with contextlib.suppress(BlockingIOError):
            content += os.read(self._pipe, _PIPE_BYTES)
        spans, self._rest = read_spans(content)
        for start in range(0, len(spans), _AT_ONCE):
            part = spans[start : start + _AT_ONCE]
            self._note(self._exporter.export(part), len(part))

    def _note(self, problem: str, spans: int) -> None:
        """Log once that the collector does not respond, and once that it does again."""
        if problem and self._answers:
            log.warning("%d spans were not accepted: %s", spans, problem)
        elif not problem and not self._answers:
            log.warning("the collector takes spans again")
        self._answers = not problem

    def __exit__(self, *_: object) -> None:
        self._worker.stop(_STOP_S)
        self._exporter.close()
        if self._worker.stop(_STOP_S):
            os.close(self._pipe)
        self._path.unlink(missing_ok=True)


class _Exporter:
    """Adapt our spans to OpenTelemetry's exporter for OTLP over HTTP."""

    def __init__(self, exporter: Any, resource: Any, scope: Any) -> None:
        self._exporter = exporter
        self._resource = resource
        self._scope = scope

    def export(self, spans: Sequence[Span]) -> str:
        """Send spans; return why they were not accepted, or "" if they were."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        result = self._exporter.export([self._written(span) for span in spans])
        return "" if result is SpanExportResult.SUCCESS else "no answer in time"

    def _written(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import (
            SpanContext,
            SpanKind,
            Status,
            StatusCode,
            TraceFlags,
        )

        def named(number: str) -> Any:
            return SpanContext(
                trace_id=int(span.trace_id, 16),
                span_id=int(number, 16),
                is_remote=False,
                trace_flags=TraceFlags(TraceFlags.SAMPLED),
            )

        failed = Status(StatusCode.ERROR, span.problem)
        return ReadableSpan(
            span.name,
            context=named(span.span_id),
            parent=named(span.parent_id) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.SERVER if span.server else SpanKind.INTERNAL,
            status=failed if span.problem else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def close(self) -> None:
        """Cancel requests to the collector."""
        self._exporter.shutdown()


def _exporter(endpoint: str) -> _Exporter:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    except ImportError as error:
        problem = f"traces need OpenTelemetry: {error.name} is not installed"
        raise SetupError(problem, remedy=install_remedy("traces")) from error
    # It logs every request that failed; `SpanCollector` logs the failure once.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    attributes = {"service.version": tollgate.__version__, "host.name": platform.node()}
    named = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in named:
        attributes["service.name"] = "tollgate"
    given = f"{endpoint.rstrip('/')}{TRACES_PATH}" if endpoint else None
    timeout_s = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _TIMEOUT_S
    return _Exporter(
        OTLPSpanExporter(endpoint=given, timeout=timeout_s),
        Resource.create(attributes),
        InstrumentationScope("tollgate", tollgate.__version__),
    )
