"""A metrics page in the place of Triton's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar


class Page:
    """A metrics page in the place of Triton's: name and labels -> value."""

    COUNTER = "counter"
    values: ClassVar[dict[tuple[str, frozenset[tuple[str, str]]], float]] = {}
    messages: ClassVar[list[float]] = []

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        assert (kind, bool(description)) == (self.COUNTER, True)
        self.name = name

    def Metric(self, *, labels: dict[str, str]) -> Any:
        """Make one metric."""
        key = (self.name, frozenset(labels.items()))
        self.values[key] = 0.0

        def increment(by: float) -> None:
            assert by > 0
            self.values[key] += by
            self.messages.append(by)

        return SimpleNamespace(increment=increment)


PB = SimpleNamespace(MetricFamily=Page)


def value(name: str, **labels: str) -> float:
    """Read the one value that has these labels, besides those of the product's."""
    (found,) = [
        number
        for (family, named), number in Page.values.items()
        if family == name and named == frozenset({"product": "p", **labels}.items())
    ]
    return found
