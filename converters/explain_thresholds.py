"""
Translate a tree's thresholds behind scalers into values of the features themselves.

If a step works on each column separately and never reverses the order of two values,
every split remains a split of one feature. The steps themselves determine, by
bisection, the last float32 that goes left, so the rounding inside a scaler is
reproduced exactly.

A split by a column that is 1 for one category and 0 for all else tests whether the
feature is that category.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from converters.boundaries import numbered, ordered
from converters.explain_steps import Column
from converters.model import F32
from converters.trees import IN, Tree
from tollgate.errors import ConversionError

_FARTHEST = np.float32(1e30)  # a scaler may refuse values that overflow beyond
_HALVINGS = 33
_CODES = 1 << 24  # float32 holds every whole number up to here


def behind_steps(
    trees: Sequence[Tree],
    *,
    steps: Sequence[Any],
    columns: Sequence[Column],
    given: Callable[[F32], Any],
    width: int,
) -> list[Tree]:
    """
    Rewrite trees in features and thresholds of the input.

    Args:
        trees: Trees as the last step holds them.
        steps: Steps before the trees.
        columns: Columns after the steps.
        given: Function that converts float32 rows to the input of the first step.
        width: F, the number of features.

    Raises:
        ConversionError: A step changes a feature other than by scaling it, or by
            testing one of its categories, a whole number from 0.
    """
    if any(one.slope <= 0 for one in columns):
        raise ConversionError("a scaler in front of its trees turns the order around")
    for one in columns:
        if one.by_category and not (
            0 <= one.category < _CODES and one.category % 1 == 0
        ):
            raise ConversionError(
                f"category {one.category:g} is encoded in front of its trees; splits "
                "are stored by codes, whole numbers from 0"
            )

    def transformed(rows: F32) -> Any:
        found = given(rows)
        try:
            with np.errstate(all="ignore"):
                for step in steps:
                    if step is not None and step != "passthrough":
                        found = step.transform(found)
        except ValueError as error:
            message = str(error).splitlines()[0]
            raise ConversionError(
                f"its steps refuse large numbers: {message}"
            ) from error
        dense = found.toarray() if hasattr(found, "toarray") else found
        return np.asarray(dense, dtype=np.float32)

    source = np.asarray([one.source for one in columns])
    filled = transformed(np.full((1, width), np.nan, dtype=np.float32))[0]
    by_category = np.asarray([one.by_category for one in columns])
    limits = _limits(trees, among=~by_category)
    last = _last_left(transformed, limits=limits, source=source, width=width)
    return [
        _by_code(
            _translated(
                tree,
                limits=limits,
                last=last,
                source=source,
                filled=filled,
                among=~by_category,
            ),
            tree,
            columns=columns,
        )
        for tree in trees
    ]


def _limits(trees: Sequence[Tree], *, among: Any) -> Any:
    """List the distinct thresholds of these columns, as complex pairs."""
    pairs = [_pairs(one)[_splits(one, among)] for one in trees]
    return np.unique(np.concatenate(pairs))


def _splits(tree: Tree, among: Any) -> Any:
    """Return which nodes are splits by one of these columns; bool [nodes]."""
    return tree.is_split & among[np.where(tree.is_split, tree.feature, 0)]


def _pairs(tree: Tree) -> Any:
    """Return column + threshold i per node: numpy sorts and finds such pairs."""
    found = np.empty(len(tree.left), dtype=np.complex128)
    found.real, found.imag = tree.feature, tree.threshold
    return found


def _last_left(
    transformed: Callable[[F32], Any], *, limits: Any, source: Any, width: int
) -> F32:
    """Return the largest input that goes left, per limit; -inf if none, inf if all."""
    column = limits.real.astype(int)
    feature = source[column]
    # Limits of different features share a row: a step processes each column separately.
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
    tree: Tree,
    *,
    limits: Any,
    last: F32,
    source: Any,
    filled: F32,
    among: Any,
) -> Tree:
    """Rewrite one tree in features and thresholds of the input."""
    numeric = _splits(tree, among)
    of = np.where(tree.is_split, tree.feature, 0)
    threshold = np.zeros(len(of), dtype=np.float32)
    threshold[numeric] = last[np.searchsorted(limits, _pairs(tree)[numeric])]
    value = filled[of]  # the column's value where its feature is missing
    missing_left = np.where(np.isnan(value), tree.missing_left, value <= tree.threshold)
    return msgspec.structs.replace(
        tree,
        feature=source[of],
        threshold=threshold,
        missing_left=missing_left,
    )


def _by_code(tree: Tree, original: Tree, *, columns: Sequence[Column]) -> Tree:
    """Rewrite splits by a category's column as tests of the code."""
    left, right = np.array(tree.left), np.array(tree.right)
    missing_left = np.array(tree.missing_left)
    threshold, codes = np.array(tree.threshold), dict(tree.codes)
    comparison = np.array(tree.comparison)
    for node in np.flatnonzero(left >= 0).tolist():
        column = columns[int(original.feature[node])]
        if not column.by_category:
            continue
        limit = original.threshold[node]
        inside = column.slope + column.offset <= limit
        outside = column.offset <= limit
        if inside == outside:  # every code goes the same way
            threshold[node] = np.inf if inside else -np.inf
            continue
        codes[node] = (int(column.category),)
        comparison[node] = IN
        if outside:  # the code goes right: a test by code sends it left
            left[node], right[node] = right[node], left[node]
            missing_left[node] = not missing_left[node]
    return msgspec.structs.replace(
        tree,
        left=left,
        right=right,
        missing_left=missing_left,
        threshold=threshold,
        comparison=comparison,
        codes=codes,
    )
