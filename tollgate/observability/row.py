"""Describe one metric: a row of the table of metrics."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]


class MetricRow(msgspec.Struct, frozen=True):
    """
    One metric.

    Attributes:
        name: Name in queries; a histogram without _bucket, _sum and _count.
        kind: Prometheus type: counter, gauge, histogram.
        unit: Unit of its value.
        labels: Names of its labels, without `le`.
        text: Its meaning.
        since: First version of Tollgate that has it.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    text: str
    since: str = "0.1.0"

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of its series."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)
