"""
Say a tree's thresholds in the features themselves, where scalers stand before it.

A step that works on each column by itself and never turns the order of two values
around leaves every split a split of one feature. Which float32 is the last that goes
left is asked of the steps themselves, by halves: so rounding inside a scaler is met
exactly as it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from converters.boundaries import numbered, ordered
from converters.explain_steps import Column
from converters.explain_trees import SourceTree
from converters.model import F32
from tollgate.errors import ConversionError

_FARTHEST = np.float32(1e30)  # a scaler may refuse what overflows beyond
_HALVINGS = 33


def behind_steps(
    trees: Sequence[SourceTree],
    *,
    steps: Sequence[Any],
    columns: Sequence[Column],
    given: Callable[[F32], Any],
    width: int,
) -> list[SourceTree]:
    """
    Return the trees with features and thresholds of the input.

    Args:
        trees: As the last step knows them.
        steps: In front of it.
        columns: What the steps hand on.
        given: Makes of float32 rows what the first step was trained on.
        width: F, the number of features.

    Raises:
        ConversionError: A step makes more of a feature than the same in another scale.
    """
    if any(one.by_category or one.slope <= 0 for one in columns):
        raise ConversionError(
            "categories are encoded in front of its trees, so that a split is none of "
            "a feature"
        )

    def transformed(rows: F32) -> Any:
        found = given(rows)
        try:
            with np.errstate(all="ignore"):
                for step in steps:
                    if step is not None and step != "passthrough":
                        found = step.transform(found)
        except ValueError as error:
            said = str(error).splitlines()[0]
            raise ConversionError(f"its steps refuse large numbers: {said}") from error
        return np.asarray(found, dtype=np.float32)

    source = np.asarray([one.source for one in columns])
    filled = transformed(np.full((1, width), np.nan, dtype=np.float32))[0]
    limits = _limits(trees)
    last = _last_left(transformed, limits=limits, source=source, width=width)
    return [
        _translated(tree, limits=limits, last=last, source=source, filled=filled)
        for tree in trees
    ]


def _limits(trees: Sequence[SourceTree]) -> Any:
    """List which thresholds there are in which column; complex, one per pair."""
    pairs = [_pairs(one)[np.asarray(one.left) >= 0] for one in trees]
    return np.unique(np.concatenate(pairs))


def _pairs(tree: SourceTree) -> Any:
    """Return column + threshold i per node: numpy sorts and finds those as pairs."""
    found = np.empty(len(tree.left), dtype=np.complex128)
    found.real, found.imag = tree.feature, tree.threshold
    return found


def _last_left(
    transformed: Callable[[F32], Any], *, limits: Any, source: Any, width: int
) -> F32:
    """Return the largest input that goes left, per limit; -inf or inf if none, all."""
    column = limits.real.astype(int)
    feature = source[column]
    # Limits of different features share a row: a step sees each column by itself.
    place = np.zeros(len(limits), dtype=int)
    for one in np.unique(feature):
        place[feature == one] = np.arange(int((feature == one).sum()))
    rows = np.zeros((int(place.max(initial=0)) + 1, width), dtype=np.float32)

    def goes_left(value: F32) -> Any:
        rows[place, feature] = value
        return transformed(rows)[place, column] <= limits.imag

    farthest = np.full(len(limits), _FARTHEST)
    never, always = ~goes_left(-farthest), goes_left(farthest)
    low, high = ordered(-farthest), ordered(farthest)
    for _ in range(_HALVINGS):
        middle = (low + high + 1) // 2
        holds = goes_left(numbered(middle))
        low, high = np.where(holds, middle, low), np.where(holds, high, middle - 1)
    found = numbered(low)
    found[always], found[never] = np.inf, -np.inf
    return found


def _translated(
    tree: SourceTree, *, limits: Any, last: F32, source: Any, filled: F32
) -> SourceTree:
    """Return one tree in features and thresholds of the input."""
    is_split = np.asarray(tree.left) >= 0
    of = np.where(is_split, np.asarray(tree.feature), 0)
    threshold = np.zeros(len(of), dtype=np.float32)
    threshold[is_split] = last[np.searchsorted(limits, _pairs(tree)[is_split])]
    value = filled[of]  # what stands in a column whose feature is missing
    missing_left = np.asarray(tree.missing_left, dtype=bool)
    return msgspec.structs.replace(
        tree,
        feature=source[of],
        threshold=threshold,
        missing_left=np.where(np.isnan(value), missing_left, value <= tree.threshold),
    )
