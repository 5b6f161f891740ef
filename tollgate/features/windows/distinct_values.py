"""
Count the different values of windows: exactly, or by a sketch of fixed size.

A sketch (HyperLogLog) has 128 registers. The lowest 7 bits of a value's hash choose
its register, which holds the highest rank of its values: 1 + the number of zeros before
the first one of the hash's bits, at most 15. So the sketch of a window depends on the
set of its values alone, and sketches are joined by the larger rank of each register.
The estimate is Ertl's (arXiv:1702.01284, "improved raw estimation"), which needs no
correction by range.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tollgate.features.spec.tile_form import REGISTERS

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
Ranks = npt.NDArray[np.uint8]

MOST_RANK = 15
STANDARD_ERROR = 1.04 / math.sqrt(REGISTERS)  # of the estimate, as a share

# The sketch of a window in one integer: the sum of 2^(15 - rank) over the registers,
# the number of registers without a value, and that of those with the highest rank.
_SUM_SHIFT, _EMPTY_SHIFT, _COUNT_MASK = 16, 8, 0xFF


def entity_of(starts: I64) -> I64:
    """Number the entity of each entry, given the first entry of each; int64 [E]."""
    return np.arange(len(starts) - 1).repeat(starts[1:] - starts[:-1])


def previous(values: I64, known: Bool, *, entity: I64) -> I64:
    """
    Find the previous entry with the same value among the entries of an entity.

    Args:
        values: int64 [E].
        known: True for the entries that count; bool [E].
        entity: Entity of each entry, ascending; int64 [E].

    Returns:
        Position of the previous entry with the same value; -1 if there is none, or the
        value does not count; int64 [E].
    """
    found = np.full(len(values), -1, np.int64)
    (at,) = known.nonzero()
    # Stable: among equal values positions ascend, and with them the entities.
    order = at[np.argsort(values[at], kind="stable")]
    later, earlier = order[1:], order[:-1]
    same = (values[later] == values[earlier]) & (entity[later] == entity[earlier])
    found[later[same]] = earlier[same]
    return found


def row_order(row_key: I64, own: I64) -> I64 | slice:
    """
    Sort rows so that the ends of their windows ascend.

    Args:
        row_key: Entity and time of each row; int64 [R].
        own: One past the last entry up to each row's own; int64 [R].

    Returns:
        Their positions in that order; a slice of all rows if they are already sorted.
    """
    ascending = (row_key[1:] >= row_key[:-1]) & (own[1:] >= own[:-1])
    return slice(None) if ascending.all() else np.lexsort((own, row_key))


def distinct(
    before: I64, known: Bool, *, begin: I64, end: I64, order: I64 | slice
) -> I64:
    """
    Count the distinct values of each window.

    A value counts at its first entry in the window: at an entry i whose value occurred
    before at p, for windows with p < begin <= i < end. In the order of (entity, time,
    id) begins and ends ascend, so these windows follow each other: from the first with
    end > i and begin > p to the last with begin <= i. Each entry adds one where that
    run begins and subtracts it where the run ends.

    Args:
        before: Position p of the previous entry with the same value, or -1; int64 [E].
        known: True for the entries that count; bool [E].
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].
        order: The order of rows in which both ascend.

    Returns:
        int64 [R].
    """
    rows = len(begin)
    # ended[i]: windows with end <= i; started[i]: with begin < i. As rows ascend, these
    # are also the first window with end > i, and with begin >= i.
    ended = np.bincount(end, minlength=len(known) + 1).cumsum()
    started = np.zeros(len(known) + 2, np.int64)
    np.bincount(begin, minlength=len(known) + 1).cumsum(out=started[1:])
    (at,) = known.nonzero()
    first = np.maximum(ended[at], started[before[at] + 1])
    stop = np.maximum(first, started[at + 1])
    steps = np.bincount(first, minlength=rows + 1)
    steps -= np.bincount(stop, minlength=rows + 1)
    count = np.empty(rows, np.int64)
    count[order] = steps.cumsum()[:-1]
    return count


def registers_of(values: I64) -> tuple[I64, Ranks]:
    """
    Return the register and the rank of each value.

    Args:
        values: Hashes of 64 bits; int64 [E].

    Returns:
        Registers, int64 [E] below 128; ranks, uint8 [E] within 1 … 15.
    """
    # frexp(n) is (f, e) with n = f * 2^e and 0.5 <= f < 1: e bits follow the zeros.
    high = (values >> 32) & 0xFFFF_FFFF
    bits = np.frexp(high.astype(np.float64))[1]
    ranks = np.minimum(33 - bits, MOST_RANK).astype(np.uint8)
    registers: I64 = values & (REGISTERS - 1)
    return registers, ranks


def sketch_windows(
    values: I64,
    known: Bool,
    *,
    starts: I64,
    begin: I64,
    end: I64,
    order: I64 | slice,
    tiles: Ranks | None = None,
) -> I64:
    """
    Sketch the values of each window.

    Args:
        values: Hashes; int64 [E].
        known: True for the entries that count; bool [E].
        starts: First entry of each entity, then the end of the last; int64 [S + 1].
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].
        order: The order of rows in which both ascend, as `row_order` returns it.
        tiles: Ranks of the registers of tiles, 0 for an event; uint8 [E, 128]. None
            without any tile.

    Returns:
        The argument of `estimate`; int64 [R].
    """
    registers, ranks = registers_of(values)
    if tiles is not None:
        return _sketch_tiles(registers, ranks, known, tiles, begin=begin, end=end)
    # Registers of at least a rank are the different registers of the entries with it.
    entity = entity_of(starts)
    begin, end = begin[order], end[order]
    at_least = np.zeros((MOST_RANK + 2, len(begin)), np.int64)
    for rank in range(1, MOST_RANK + 1):
        one = known & (ranks >= rank)
        if not one.any():
            break
        before = previous(registers, one, entity=entity)
        at_least[rank] = distinct(before, one, begin=begin, end=end, order=order)
    at_least[0] = REGISTERS
    return _packed(at_least[:-1] - at_least[1:])


def _sketch_tiles(
    registers: I64, ranks: Ranks, known: Bool, tiles: Ranks, *, begin: I64, end: I64
) -> I64:
    """Sketch windows of entries of which some are tiles; int64 [R]."""
    held = tiles.copy()
    held[known, registers[known]] = ranks[known]
    counts = np.zeros((MOST_RANK + 1, len(begin)), np.int64)
    for row, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        highest = np.maximum.reduce(held[first:last], axis=0, initial=0)
        counts[:, row] = np.bincount(highest, minlength=MOST_RANK + 1)
    return _packed(counts)


def _packed(counts: I64) -> I64:
    """Pack the numbers of registers of each rank; int64 [16, R] to [R]."""
    weights = 1 << np.arange(MOST_RANK, -1, -1, dtype=np.int64)
    total: I64 = weights @ counts
    packed: I64 = total << _SUM_SHIFT | counts[0] << _EMPTY_SHIFT | counts[MOST_RANK]
    return packed


def _sigma(share: float) -> float:
    """Sum x^(2^k) · 2^(k - 1), and x, for the share x of empty registers."""
    if share == 1.0:
        return math.inf
    total, factor, before = share, 1.0, -1.0
    while total != before:
        before = total
        share *= share
        total += share * factor
        factor *= 2.0
    return total


def _tau(share: float) -> float:
    """Correct for the registers beyond the highest rank; `share` is that of others."""
    if share in (0.0, 1.0):
        return 0.0
    total, factor, before = 1.0 - share, 1.0, -1.0
    while total != before:
        before = total
        share = math.sqrt(share)
        factor *= 0.5
        total -= (1.0 - share) ** 2 * factor
    return total / 3.0


_EMPTY = np.array([_sigma(one / REGISTERS) for one in range(REGISTERS + 1)])
_HIGHEST = np.array([_tau(1.0 - one / REGISTERS) for one in range(REGISTERS + 1)])
_SCALE = REGISTERS * REGISTERS / (2.0 * math.log(2.0))


def estimate(sketches: I64) -> F64:
    """
    Estimate the number of different values of windows.

    The standard error is 9.2 % (`STANDARD_ERROR`) up to 500,000 values; of ten values
    or fewer the estimate is mostly exact.

    Args:
        sketches: What `sketch_windows` returned; int64 [R].

    Returns:
        Whole numbers; float64 [R].
    """
    total = sketches >> _SUM_SHIFT
    empty = (sketches >> _EMPTY_SHIFT) & _COUNT_MASK
    highest = sketches & _COUNT_MASK
    # The sum over the registers that are neither empty nor at the highest rank.
    middle = (total - (empty << MOST_RANK) - highest) / 2.0**MOST_RANK
    tail = REGISTERS * _HIGHEST[highest] / 2.0 ** (MOST_RANK - 1)
    found: F64 = np.rint(_SCALE / (middle + tail + REGISTERS * _EMPTY[empty]))
    return found
