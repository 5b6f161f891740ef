"""A row of the table of metrics."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]


class Row(msgspec.Struct, frozen=True):
    """
    One metric.

    Attributes:
        name: As queries name it; a histogram without _bucket, _sum and _count.
        kind: What Prometheus does with it.
        unit: Of its value.
        labels: Their names, without `le`.
        text: What it says.
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
        """Names of its series."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)
