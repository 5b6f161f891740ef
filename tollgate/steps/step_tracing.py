"""Write the spans of a step for the requests that are traced."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tollgate.errors import trace_of
from tollgate.schema import MAX_ID_BYTES
from tollgate.steps import triton
from tollgate.tracing import PIPE_VARIABLE, RATE_VARIABLE
from tollgate.tracing.context import (
    TRACEPARENT,
    TraceContext,
    read_traceparent,
    sample,
)
from tollgate.tracing.request_spans import Part, RequestSpans
from tollgate.tracing.spans import Attribute, Span, SpanWriter

Array = triton.Array
Argument = TypeVar("Argument")
Result = TypeVar("Result")

_TRANSACTION_ID = "tollgate.transaction_id"
_ALL_BAD = "every row is bad"
# From the feature step's end to the decision step's start: the step between them, about
# which nothing else is known here. Its queue time and the queue delay are included.
_MODEL = "model"


class StepTraces:
    """
    Write the spans of one step for each traced request of a batch.

    Args:
        writer: Takes the spans.
        product: Product of the step.
        model: Name of the step.
        rate: One in this many requests without a trace context is sampled.
    """

    def __init__(
        self, writer: SpanWriter, *, product: str, model: str, rate: int
    ) -> None:
        self._writer = writer
        self._product = product
        self._model = model
        self._rate = rate
        self._parts: list[Part] = []
        self._last_us = 0
        self._failed = False

    def begin(self, began_us: int) -> None:
        """Start a batch."""
        self._parts = []
        self._last_us = began_us

    def part(self, name: str) -> None:
        """Record that a part of the batch's work has just ended."""
        now_us = _now_us()
        self._parts.append(Part(name, self._last_us, now_us))
        self._last_us = now_us

    def timed(
        self, name: str, call: Callable[[Argument], Result]
    ) -> Callable[[Argument], Result]:
        """Wrap a function so that each call is recorded as a separate part."""

        def timed_call(given: Argument) -> Result:
            self._last_us = _now_us()
            try:
                return call(given)
            finally:
                self.part(name)

        return timed_call

    def scored(
        self,
        requests: Sequence[Any],
        *,
        ids: Sequence[bytes],
        bounds: Sequence[int],
        rejected: Sequence[int],
        began_us: int,
        worked_us: int,
    ) -> None:
        """
        Write the spans of a feature step.

        Args:
            requests: Of the batch.
            ids: Transaction ids, row by row.
            bounds: First row of each request, then the end of the last.
            rejected: Positions of the requests that no other step will see.
            began_us: Time at which the step took the batch.
            worked_us: Working time that the step reports.
        """
        ended_us = began_us + worked_us

        def spans() -> Iterator[Span]:
            for place, trace in self._traced(requests, lambda at: ids[bounds[at]]):
                request_spans = RequestSpans(trace, ended_us, arrival_us=began_us)
                yield from self._step(
                    request_spans, began_us, ended_us, rows=bounds[-1]
                )
                if place in rejected:
                    attributes = self._request_attributes(bounds, place)
                    yield request_spans.request(
                        self._product, attributes, problem=_ALL_BAD
                    )

        self._write(spans)

    def decided(
        self,
        requests: Sequence[Any],
        context: Array,
        *,
        outputs: Mapping[str, Array],
        bounds: Sequence[int],
        began_us: int,
    ) -> None:
        """
        Write the spans of a decision step, and of each request as a whole.

        Args:
            requests: Of the batch.
            context: Its rows, as the feature step wrote them; [N].
            outputs: The answers; [N, 1] each.
            bounds: First row of each request, then the end of the last.
            began_us: Time at which the step took the batch.
        """
        ended_us = _now_us()

        def spans() -> Iterator[Span]:
            for place, trace in self._traced(
                requests, lambda at: _id_of(context, bounds[at])
            ):
                first, end = bounds[place], bounds[place + 1]
                arrival_us = int(context["arrival_us"][first])
                request_spans = RequestSpans(trace, ended_us, arrival_us=arrival_us)
                scored_us = arrival_us + int(context["features_us"][first])
                yield from request_spans.step(Part(_MODEL, scored_us, began_us), ())
                yield from self._step(
                    request_spans, began_us, ended_us, rows=len(context)
                )
                attributes = self._request_attributes(bounds, place)
                attributes["tollgate.dry_run"] = bool(context["dry_run"][first])
                row_attributes = [
                    _row_attributes(row, _id_of(context, row), outputs)
                    for row in range(first, end)
                ]
                if len(row_attributes) == 1:
                    attributes |= row_attributes[0]
                else:
                    yield from request_spans.rows(row_attributes)
                yield request_spans.request(self._product, attributes)

        self._write(spans)

    def _write(self, spans: Callable[[], Iterator[Span]]) -> None:
        try:
            self._writer.write(spans())
        except Exception as exc:  # noqa: BLE001 - a trace must not fail an answer
            if not self._failed:
                triton.log.error("no trace was written: %s", trace_of(exc))
            self._failed = True

    def _step(
        self, request_spans: RequestSpans, began_us: int, ended_us: int, *, rows: int
    ) -> list[Span]:
        step = Part(self._model, began_us, ended_us)
        attributes = {"tollgate.batch_rows": rows}
        return request_spans.step(step, self._parts, attributes=attributes)

    def _request_attributes(
        self, bounds: Sequence[int], place: int
    ) -> dict[str, Attribute]:
        rows = bounds[place + 1] - bounds[place]
        return {"tollgate.product": self._product, "tollgate.rows": rows}

    def _traced(
        self, requests: Sequence[Any], first_id: Callable[[int], bytes]
    ) -> Iterator[tuple[int, TraceContext]]:
        """Find the positions of the traced requests, and their trace contexts."""
        for place, request in enumerate(requests):
            text = request.parameters()
            if text and TRACEPARENT in text:
                parameters = triton.request_parameters(request)
                given = read_traceparent(str(parameters.get(TRACEPARENT, "")))
                if given is not None:
                    if given[1]:
                        yield place, given[0]
                    continue
            if self._rate:
                picked = sample(first_id(place)[:MAX_ID_BYTES], rate=self._rate)
                if picked is not None:
                    yield place, picked


def open_traces(*, product: str, model: str) -> StepTraces | None:
    """Open the pipe that the environment names; None when it names none."""
    path = os.environ.get(PIPE_VARIABLE, "")
    if not path:
        return None
    try:
        writer = SpanWriter(path)
    except OSError as error:
        triton.log.warning("%s: %s: nothing is traced", path, error.strerror)
        return None
    rate = int(os.environ.get(RATE_VARIABLE, "0"))
    return StepTraces(writer, product=product, model=model, rate=rate)


def _row_attributes(
    row: int, transaction_id: bytes, outputs: Mapping[str, Array]
) -> dict[str, Attribute]:
    """Return the span attributes of a row: no score, no customer, no amount."""
    attributes: dict[str, Attribute] = {
        _TRANSACTION_ID: transaction_id.decode(errors="replace")
    }
    for name in ("decision", "release"):
        attributes[f"tollgate.{name}"] = outputs[name][row, 0].decode()
    attributes["tollgate.degraded"] = int(np.uint32(outputs["degraded"][row, 0]))
    attributes["tollgate.refused"] = bool(outputs["error"][row, 0])
    return attributes


def _id_of(context: Array, row: int) -> bytes:
    """Read a row's transaction id from the context."""
    slot: bytes = context["transaction_id"][row].tobytes()
    return slot[: int(context["transaction_id_length"][row])]


def _now_us() -> int:
    return time.monotonic_ns() // 1000
