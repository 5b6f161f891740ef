"""Check that an explanation describes a model, because its file may be damaged."""

from __future__ import annotations

from typing import Any

import numpy as np

from tollgate.errors import RepositoryError
from tollgate.explanation.document import Explanation, Linear, Trees

_MOST_CODES = 1 << 24  # float32 holds every whole number up to here


def check(explanation: Explanation) -> None:
    """
    Raise RepositoryError, with an empty source, unless every array fits the others.

    A valid explanation can be evaluated for any rows: no index points outside an array,
    no path is endless, no number of a model is NaN or infinite.
    """
    classes, outputs = len(explanation.classes), explanation.outputs
    _require(classes >= 2, "classes", f"are {classes}; a decision needs two")
    _require(
        classes == 2 or explanation.link != "logistic",
        "link",
        f"is logistic for {classes} classes",
    )
    _require(bool(explanation.features), "features", "are none")
    _shape(explanation.base, (outputs,), "base")
    _finite(explanation.base, "base")
    parts = [explanation.trees, explanation.linear, explanation.reason or None]
    _require(
        sum(one is not None for one in parts) == 1,
        "reason",
        "stands next to a model, or is missing where there is none",
    )
    columns = len(explanation.features)
    if explanation.trees is not None:
        _check_structure(explanation.trees, columns=columns)
        _check_numbers(explanation.trees, columns=columns, outputs=outputs)
    if explanation.linear is not None:
        _check_linear(explanation.linear, columns=columns, outputs=outputs)


def _check_structure(trees: Trees, *, columns: int) -> None:
    """Check that every node but a root is the child of one earlier node of its tree."""
    nodes, count = len(trees.left), len(trees.output)
    for name in ("left", "feature", "threshold", "missing_left", "by_code", "cover"):
        _shape(getattr(trees, name), (nodes,), name)
    start = trees.start.astype(np.int64)
    _shape(start, (count + 1,), "start")
    _require(count > 0, "start", "there are no trees")
    _require(
        start[0] == 0 and start[-1] == nodes and bool((np.diff(start) > 0).all()),
        "start",
        f"does not ascend from 0 to {nodes}",
    )
    left = trees.left.astype(np.int64)
    splits = np.flatnonzero(left != -1)
    first = left[splits]
    end = start[np.searchsorted(start, splits, side="right")]
    _require(
        bool(((first > splits) & (first + 1 < end)).all()),
        "left",
        "leads out of a tree, or back",
    )
    inner = np.ones(nodes, dtype=bool)
    inner[start[:-1]] = False
    children = np.sort(np.concatenate([first, first + 1]))
    _require(
        np.array_equal(children, np.flatnonzero(inner)),
        "left",
        "leaves a node out, or reaches it twice",
    )
    _require(
        bool(((trees.feature >= 0) == (left >= 0)).all())
        and bool((trees.feature >= -1).all())
        and bool((trees.feature < columns).all()),
        "feature",
        f"is none of the {columns} where a split is, or not -1 at a leaf",
    )


def _check_numbers(trees: Trees, *, columns: int, outputs: int) -> None:
    nodes, several = len(trees.left), bool((trees.output == -1).any())
    if several:
        _require(bool((trees.output == -1).all()), "output", "is -1 for some trees")
        _require(outputs > 1, "output", "is -1 where there is one margin")
    else:
        inside = (trees.output >= 0) & (trees.output < outputs)
        _require(bool(inside.all()), "output", f"is none of the {outputs} margins")
    _shape(trees.value, (nodes, outputs if several else 1), "value")
    _finite(trees.value, "value")
    _finite(trees.cover, "cover")
    _require(bool((trees.cover >= 0).all()), "cover", "is negative")
    _require(not np.isnan(trees.threshold).any(), "threshold", "is NaN")
    _require(not (trees.by_code & (trees.left < 0)).any(), "by_code", "is set at leaf")
    _shape(trees.code, (len(trees.code_node),), "code")
    at = trees.code_node.astype(np.int64)
    _require(
        bool(((at >= 0) & (at < nodes)).all()) and bool(trees.by_code[at].all()),
        "code_node",
        "is no split by code",
    )
    _require(
        bool(((trees.code >= 0) & (trees.code < _MOST_CODES)).all())
        and bool((np.diff(at * _MOST_CODES + trees.code) > 0).all()),
        "code",
        "is negative, too large, or out of order",
    )
    _require(
        all(0 <= one < columns for one in trees.zero_is_missing),
        "zero_is_missing",
        f"is none of the {columns} features",
    )


def _check_linear(linear: Linear, *, columns: int, outputs: int) -> None:
    width = len(linear.source)
    for name in ("source", "slope", "offset", "by_category", "filled", "mean"):
        _shape(getattr(linear, name), (width,), name)
    _shape(linear.category, (width,), "category")
    _shape(linear.coefficient, (outputs, width), "coefficient")
    for name in ("slope", "offset", "mean", "coefficient"):
        _finite(getattr(linear, name), name)
    inside = (linear.source >= 0) & (linear.source < columns)
    _require(bool(inside.all()), "source", f"is none of the {columns} features")


def _shape(array: Any, shape: tuple[int, ...], where: str) -> None:
    _require(
        array.shape == shape, where, f"is {list(array.shape)}; needed is {list(shape)}"
    )


def _finite(array: Any, where: str) -> None:
    _require(bool(np.isfinite(array).all()), where, "is not finite")


def _require(holds: bool, where: str, problem: str) -> None:
    if not holds:
        raise RepositoryError("", problem, where=where)
