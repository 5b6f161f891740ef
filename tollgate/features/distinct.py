"""Count the distinct values of windows, exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


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
