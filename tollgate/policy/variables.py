"""Describe the variables of conditions: their columns, and their whole-number form."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from tollgate.policy.spans import Spans, place32, place64
from tollgate.schema import MAX_CENTS, MISSING, FieldForm

ABSENT: Spans = ((MISSING, MISSING),)
_INF = math.inf
_MOST = 2**63 - 1
_WHOLE = 2**53  # above it, a float64 cannot hold every whole number

Kind = Literal[
    "amount", "score", "label", "feature", "number", "category", "bit", "list"
]


class Variable(msgspec.Struct, frozen=True):
    """
    A variable that a condition may name.

    `column` is that of `features` or `probabilities`, or the number of a bit. The file
    compares with the whole number divided by `scale`; the whole number of an exact
    number is its position among all float64.
    """

    name: str
    kind: Kind
    column: int = -1
    scale: float = 1.0
    vocabulary: tuple[str, ...] = ()
    exact: bool = False

    @property
    def domain(self) -> Spans:
        """Return all its possible values, as whole numbers."""
        if self.kind in ("bit", "list"):
            return ((0, 1),)
        if self.kind == "amount":
            return ((0, MAX_CENTS),)
        if self.kind in ("score", "label"):
            return (*ABSENT, (0, place64(1.0)))
        if self.kind == "feature":
            return (*ABSENT, (place32(-_INF), place32(_INF)))
        if self.exact:
            return (*ABSENT, (place64(-_INF), place64(_INF)))
        if self.kind == "number":
            return (*ABSENT, (-_WHOLE, _WHOLE))
        return ((MISSING, _MOST),)

    def spans(self, low: float, high: float) -> Spans:
        """Return its whole numbers between two numbers, both included."""
        if self.kind in ("score", "label"):
            first, last = place64(max(low, 0.0)), place64(min(high, 1.0))
        elif self.kind == "feature":
            first, last = _least32(low), -_least32(-high)
        elif self.exact:
            first, last = place64(low), place64(high)
        else:
            lowest, highest = self.domain[-1]
            first = _least(low, self.scale, (lowest, highest))
            last = -_least(-high, self.scale, (-highest, -lowest))
        return ((first, last),) if first <= last else ()


def field_variable(field: FieldForm) -> Variable:
    """Build the variable of a declared field."""
    if field.type == "number" and field.decimals is None:
        return Variable(field.name, "number", exact=True)
    if field.type == "number":
        return Variable(field.name, "number", scale=10.0 ** (field.decimals or 0))
    return Variable(field.name, "category", vocabulary=field.vocabulary)


def _least(low: float, scale: float, within: tuple[int, int]) -> int:
    """Find the least whole number that is not below `low` when divided by `scale`."""
    lowest, highest = within
    if low <= lowest / scale:
        return lowest
    if low > highest / scale:
        return highest + 1
    found = math.floor(low * scale)
    while (found - 1) / scale >= low:
        found -= 1
    while found / scale < low:
        found += 1
    return found


def _least32(low: float) -> int:
    """Find the position of the least float32 that is not below a float64."""
    with np.errstate(over="ignore"):
        near = np.float32(low)
    if float(near) < low:
        near = np.nextafter(near, np.float32(_INF))
    return place32(float(near))
