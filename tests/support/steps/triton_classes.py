"""Substitutes for the classes of Triton's Python backend that steps use."""

from __future__ import annotations

from typing import Any

import msgspec


class Tensor(msgspec.Struct, frozen=True, eq=False):
    """Substitute for Triton's tensor."""

    called: str
    array: Any

    def name(self) -> str:
        """Return its name."""
        return self.called

    def as_numpy(self) -> Any:
        """Return the array."""
        return self.array

    def shape(self) -> tuple[int, ...]:
        """Return its shape."""
        return tuple(self.array.shape)


class Response(msgspec.Struct, frozen=True, eq=False):
    """Substitute for Triton's response."""

    tensors: list[Tensor] | None = None
    error: Any = None


class Request(msgspec.Struct, frozen=True, eq=False):
    """Substitute for Triton's request."""

    tensors: dict[str, Tensor]
    parameters_json: str = "{}"

    def inputs(self) -> list[Tensor]:
        """Return its tensors."""
        return list(self.tensors.values())

    def parameters(self) -> str:
        """Return its parameters, as Triton writes them."""
        return self.parameters_json


class MetricFamily:
    """Substitute for Triton's metric family; its metrics record nothing."""

    COUNTER = GAUGE = HISTOGRAM = 0

    def __init__(self, *, name: str, description: str, kind: int) -> None:
        """Accept the arguments of Triton's class."""

    def Metric(self, *, labels: object, buckets: object = None) -> MetricFamily:
        """Return a metric."""
        return self

    def increment(self, by: float) -> None:
        """Do nothing."""

    observe = set = increment
