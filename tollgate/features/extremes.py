"""Find the smallest, largest and newest values of windows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_NOTHING = {True: np.iinfo(np.int64).min, False: np.iinfo(np.int64).max}


def extremes(values: I64, known: Bool, *, begin: I64, end: I64, largest: bool) -> I64:
    """
    Find the smallest or the largest known value of each window.

    Every window is covered by two runs of a power of two of entries. Runs are doubled
    from one length to the next, and each window is computed at its own length: with E
    entries, R windows and the longest of L entries that is E · log L + R steps.

    Args:
        values: int64 [E].
        known: True for the entries that count; bool [E].
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].
        largest: True to find the largest value, False the smallest.

    Returns:
        int64 [R]; for an empty window the smallest int64 if `largest`, else the largest
        int64.
    """
    fold = np.maximum if largest else np.minimum
    runs = np.where(known, values, _NOTHING[largest])
    found = np.full(begin.shape, _NOTHING[largest])
    length = end - begin
    # frexp(n) is (f, e) with n = f * 2^e and 0.5 <= f < 1; exact, and 0 for nothing.
    level = np.frexp(length.astype(np.float64))[1] - 1
    for at in range(int(level.max(initial=-1)) + 1):
        step = 1 << at
        if at:
            half = step >> 1
            runs = fold(runs[:-half], runs[half:])
        (rows,) = (level == at).nonzero()
        found[rows] = fold(runs[begin[rows]], runs[end[rows] - step])
    return found


def latest(known: Bool, *, begin: I64, end: I64) -> I64:
    """
    Find the newest known entry of each window.

    Args:
        known: True for the entries that count; bool [E].
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].

    Returns:
        Its position; -1 where a window has none; int64 [R].
    """
    newest = np.full(len(known) + 1, -1, np.int64)
    newest[1:] = np.where(known, np.arange(len(known)), -1)
    np.maximum.accumulate(newest, out=newest)
    at = newest[end]
    return np.where(at >= begin, at, -1)
