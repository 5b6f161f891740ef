"""Make the spans of one request: the request, its steps, a step's work, its rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from tollgate.tracing.context import TraceContext, span_id
from tollgate.tracing.spans import Attribute, Span


class Part(msgspec.Struct, frozen=True):
    """One operation of a step on a complete batch; µs on the monotonic clock."""

    name: str
    start_us: int
    end_us: int


class RequestSpans:
    """
    Make the spans of one traced request; times are µs on the monotonic clock.

    Args:
        ended_us: Time when the request ended.
        arrival_us: Time when a step first took the request.
    """

    def __init__(
        self, context: TraceContext, ended_us: int, *, arrival_us: int
    ) -> None:
        self._context = context
        self._arrival_us = arrival_us
        self._ended_us = ended_us
        self._since_ns = time.time_ns() - time.monotonic_ns()
        self._id = span_id(context, arrival_us)

    def request(
        self, name: str, attributes: Mapping[str, Attribute], *, problem: str = ""
    ) -> Span:
        """Return the root span, which contains all others."""
        return self._span(
            Part(name, self._arrival_us, self._ended_us),
            self._id,
            self._context.parent_id,
            attributes=attributes,
            server=True,
            problem=problem,
        )

    def step(
        self,
        step: Part,
        parts: Sequence[Part],
        *,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> list[Span]:
        """Return the span of a step, followed by the spans of its parts."""
        number = span_id(self._context, self._arrival_us, step.name)
        found = [self._span(step, number, self._id, attributes=attributes)]
        for place, part in enumerate(parts):
            inner = span_id(self._context, number, part.name, place)
            found.append(self._span(part, inner, number))
        return found

    def rows(self, each: Sequence[Mapping[str, Attribute]]) -> list[Span]:
        """Return a span for each row, so that a search by transaction finds it."""
        part = Part("row", self._arrival_us, self._ended_us)
        return [
            self._span(
                part,
                span_id(self._context, self._arrival_us, "row", place),
                self._id,
                attributes=attributes,
            )
            for place, attributes in enumerate(each)
        ]

    def _span(
        self,
        part: Part,
        number: str,
        parent_id: str,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        server: bool = False,
        problem: str = "",
    ) -> Span:
        return Span(
            trace_id=self._context.trace_id,
            span_id=number,
            parent_id=parent_id,
            name=part.name,
            start_ns=part.start_us * 1000 + self._since_ns,
            end_ns=part.end_us * 1000 + self._since_ns,
            attributes=attributes or {},
            server=server,
            problem=problem,
        )
