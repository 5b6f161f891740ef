"""Divide rows by one column: by value, or by ranges of a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

MISSING = "(missing)"
_MOST_VALUES = 12  # of one column; more numbers become ranges, more texts one group
_RANGES = 5  # with about as many rows each

Mask = npt.NDArray[np.bool_]


def groups_of(values: Sequence[str]) -> Iterator[tuple[str, Mask]]:
    """
    Divide rows by one column; every row is in one group.

    Up to 12 values become one group each, the largest first. More numbers than that are
    divided into five ranges of about as many rows, more texts into the 11 most frequent
    and the rest. Rows without a value come last.

    Args:
        values: Value of each row, as text; empty without one; [N].

    Yields:
        A name for people, and which rows it holds; bool [N].
    """
    text = np.asarray(values, dtype=np.str_)
    there = text != ""
    found, code = np.unique(text[there], return_inverse=True)
    at = np.full(len(text), -1)
    at[there] = code
    if len(found) > _MOST_VALUES and (numbers := _numbers(found)) is not None:
        yield from _ranges(numbers, at=at)
    else:
        yield from _categories(found.tolist(), at=at)
    if not there.all():
        yield MISSING, ~there


def _numbers(found: npt.NDArray[np.str_]) -> npt.NDArray[np.float64] | None:
    """Convert texts to numbers; return None if one of them is none."""
    try:
        numbers = found.astype(np.float64)
    except ValueError:
        return None
    return None if np.isnan(numbers).any() else numbers


def _categories(
    names: list[str], *, at: npt.NDArray[np.int64]
) -> Iterator[tuple[str, Mask]]:
    order = np.argsort(-np.bincount(at[at >= 0], minlength=len(names)), kind="stable")
    pooled = len(names) > _MOST_VALUES
    own = order[: _MOST_VALUES - 1] if pooled else order
    for one in own:
        yield names[one], at == one
    if pooled:
        rest = (at >= 0) & ~np.isin(at, own)
        yield f"({len(names) - len(own)} other values)", rest


def _ranges(
    numbers: npt.NDArray[np.float64], *, at: npt.NDArray[np.int64]
) -> Iterator[tuple[str, Mask]]:
    there = at >= 0
    value = np.full(len(at), np.nan)
    value[there] = numbers[at[there]]
    ordered = np.sort(value[there])
    # Use observed values, so that a bound is as short as it was in the column.
    cut = np.unique(ordered[(len(ordered) - 1) * np.arange(1, _RANGES) // _RANGES])
    cut = cut[cut < ordered[-1]]
    if not len(cut):
        yield "all", there
        return
    place = np.searchsorted(cut, value, side="left")
    bounds = [_bound(one) for one in cut]
    names = [
        f"up to {bounds[0]}",
        *(f"above {low} to {high}" for low, high in pairwise(bounds)),
        f"above {bounds[-1]}",
    ]
    for number, name in enumerate(names):
        yield name, there & (place == number)


def _bound(number: float) -> str:
    """Format a bound for people: whole numbers in full, others with six digits."""
    whole = np.isfinite(number) and number == round(number) and abs(number) < 1e15
    return f"{int(number):,}" if whole else f"{number:.6g}"
