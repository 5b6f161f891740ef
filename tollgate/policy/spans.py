"""
Sets of whole numbers as spans, and boxes made of them.

Every condition of a policy confines one variable to some spans: money is cents, a
category its hash, a truth 0 or 1, and a float its place among all floats. So what a
rule or a segment asks for is a box, and whether two of them can hold at once, or one
can hold at all, is arithmetic of whole numbers: no float lies between two neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

# Disjoint, ascending; ends included.
Spans = tuple[tuple[int, int], ...]
Box = Mapping[str, Spans]  # variable -> spans; what is not named is free

_MOST_BOXES = 4096  # beyond it, what is left is taken to be reachable


def meet(one: Spans, other: Spans) -> Spans:
    """Keep what is in both."""
    found = (
        (max(low, lowest), min(high, highest))
        for low, high in one
        for lowest, highest in other
    )
    return tuple(sorted((low, high) for low, high in found if low <= high))


def without(one: Spans, other: Spans) -> Spans:
    """Keep what is in the first and not in the second."""
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
    """Take the box of what is in both; None when nothing is."""
    found = dict(one)
    for name, spans in other.items():
        found[name] = meet(found[name], spans) if name in found else spans
    return found if all(found.values()) else None


def remove(box: Box, other: Box, *, domains: Mapping[str, Spans]) -> list[Box]:
    """Cut a box out of another; what is left, as disjoint boxes."""
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
    """Cut many boxes out of many; when they become too many, some are left uncut."""
    left = list(boxes)
    for other in others:
        if len(left) > _MOST_BOXES:
            break
        left = [part for box in left for part in remove(box, other, domains=domains)]
    return left


def place32(value: float) -> int:
    """Number a float32 by its place among all of them."""
    bits = int(np.float32(value).view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF)


def place64(value: float) -> int:
    """Number a float64 by its place among all of them."""
    bits = int(np.float64(value).view(np.int64))
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF)
