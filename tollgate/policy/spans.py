"""
Represent sets of whole numbers as spans, and combine spans into boxes.

Every condition of a policy confines one variable to some spans: money is cents, a
category its hash, a truth value 0 or 1, and a float its position among all floats. So
the conditions of a rule or a segment form a box. Arithmetic of whole numbers then
decides whether two of them can hold at once, or one can hold at all: no float lies
between two neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

# Disjoint, ascending; ends included.
Spans = tuple[tuple[int, int], ...]
Box = Mapping[str, Spans]  # variable -> spans; other variables are unrestricted

_MOST_BOXES = 4096  # with more boxes, the rest counts as reachable


def meet(one: Spans, other: Spans) -> Spans:
    """Return the intersection of two sets of spans."""
    found = (
        (max(low, lowest), min(high, highest))
        for low, high in one
        for lowest, highest in other
    )
    return tuple(sorted((low, high) for low, high in found if low <= high))


def without(one: Spans, other: Spans) -> Spans:
    """Return the first set of spans without the second."""
    left = list(one)
    for lowest, highest in other:
        cut: list[tuple[int, int]] = []
        for low, high in left:
            if highest < low or high < lowest:
                cut.append((low, high))
                continue
            if low < lowest:
                cut.append((low, lowest - 1))
            if highest < high:
                cut.append((highest + 1, high))
        left = cut
    return tuple(left)


def common(one: Box, other: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    found = dict(one)
    for name, spans in other.items():
        found[name] = meet(found[name], spans) if name in found else spans
    return found if all(found.values()) else None


def remove(box: Box, other: Box, *, domains: Mapping[str, Spans]) -> list[Box]:
    """Subtract a box from another; return the rest, as disjoint boxes."""
    if common(box, other) is None:
        return [box]
    left: list[Box] = []
    core = dict(box)
    for name, spans in other.items():
        mine = core.get(name, domains[name])
        if outside := without(mine, spans):
            left.append({**core, name: outside})
        core[name] = meet(mine, spans)
    return left


def remove_all(
    boxes: Iterable[Box], others: Iterable[Box], *, domains: Mapping[str, Spans]
) -> list[Box]:
    """Subtract boxes from boxes; above a maximum of pieces, leave the rest uncut."""
    left = list(boxes)
    for other in others:
        if len(left) > _MOST_BOXES:
            break
        left = [part for box in left for part in remove(box, other, domains=domains)]
    return left


def place32(value: float) -> int:
    """Number a float32 by its position among all of them."""
    bits = int(np.float32(value).view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF)


def place64(value: float) -> int:
    """Number a float64 by its position among all of them."""
    bits = int(np.float64(value).view(np.int64))
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF)
