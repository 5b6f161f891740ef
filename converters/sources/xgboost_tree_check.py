"""Check one tree of an XGBoost file: its lists agree and its nodes form a tree."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.sources.xgboost_fields import BadField, count_at, numbers_at, whole_at
from tollgate.errors import ConversionError

LARGEST_CODE = 1 << 24  # whole numbers that float32 holds
_NONE = -1


class FileTree(msgspec.Struct, frozen=True, eq=False):
    """
    One tree as stored in its file.

    Attributes:
        left: Next node for a row below the threshold; -1 in leaves.
        right: Next node for other rows, and for listed categories.
        feature: Column of each split.
        value: Threshold of a split, value of a leaf; float32.
        missing_left: True if a missing value goes to the left.
        codes: Categories that each node sends to the right.
    """

    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    feature: npt.NDArray[np.int64]
    value: npt.NDArray[np.float32]
    missing_left: npt.NDArray[np.bool_]
    codes: dict[int, npt.NDArray[np.int64]]

    @property
    def leaves(self) -> npt.NDArray[np.float32]:
        """Return the values of the leaves."""
        return self.value[self.left < 0]


def checked_tree(
    tree: dict[str, Any], *, at: str, number: int, columns: int
) -> FileTree:
    """
    Read a tree; raise BadField or ConversionError.

    Args:
        tree: JSON object of the tree.
        at: Path of the object.
        number: Position of the tree.
        columns: Number of features.
    """
    param = tree.get("tree_param")
    if not isinstance(param, dict):
        raise BadField(f"{at}.tree_param", "is missing")
    if count_at(param, "size_leaf_vector", at=f"{at}.tree_param", default=0) > 1:
        raise ConversionError(
            "multi_strategy is 'multi_output_tree', whose leaves hold a number per "
            "class; train with 'one_output_per_tree'"
        )
    size = count_at(param, "num_nodes", at=f"{at}.tree_param")
    if not size:
        raise BadField(f"{at}.tree_param.num_nodes", "is 0")
    own = tree.get("id")
    if isinstance(own, bool) or not isinstance(own, (int, np.integer)) or own != number:
        raise BadField(f"{at}.id", f"is {own!r}; trees stand in the order of their ids")
    left = whole_at(tree, "left_children", at=at, size=size, low=_NONE, high=size)
    right = whole_at(tree, "right_children", at=at, size=size, low=_NONE, high=size)
    reached = _reached(left, right, at=at)
    if "parents" in tree:  # xgboost follows them without a check
        parents = whole_at(tree, "parents", at=at, size=size)
        inner = np.flatnonzero(reached & (left >= 0))
        for side in (left[inner], right[inner]):
            if (parents[side] != inner).any():
                raise BadField(f"{at}.parents", "are not those of the children")
    feature = whole_at(tree, "split_indices", at=at, size=size)
    splits = reached & (left >= 0)
    if ((feature < 0) | (feature >= columns))[splits].any():
        node = int(np.flatnonzero(splits & ((feature < 0) | (feature >= columns)))[0])
        raise BadField(
            f"{at}.split_indices[{node}]",
            f"is {feature[node]}; there are {columns} columns",
        )
    if "split_type" in tree:
        kind = whole_at(tree, "split_type", at=at, size=size, low=0, high=2)
    else:
        kind = np.zeros(size, np.int64)
    codes = _codes(tree, at=at, size=size)
    for node in np.flatnonzero(splits):
        if (int(node) in codes) != bool(kind[node]):
            raise BadField(
                f"{at}.split_type[{node}]",
                f"is {kind[node]}, which categories_nodes contradicts",
            )
    value = numbers_at(tree, "split_conditions", at=at, size=size, finite=False)
    odd = reached & ~np.isfinite(value) & ~(splits & (kind == 1))
    if odd.any():
        node = int(odd.argmax())
        raise BadField(f"{at}.split_conditions[{node}]", f"is {value[node]}")
    return FileTree(
        left=left,
        right=right,
        feature=feature,
        value=value,
        missing_left=whole_at(
            tree, "default_left", at=at, size=size, low=0, high=2
        ).astype(bool),
        codes={node: found for node, found in codes.items() if splits[node]},
    )


def _reached(
    left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], *, at: str
) -> npt.NDArray[np.bool_]:
    """Walk down the tree; each node must have exactly one parent."""
    reached = np.zeros(len(left), bool)
    level = np.zeros(1, np.int64)
    while len(level):
        if reached[level].any() or len(np.unique(level)) < len(level):
            raise BadField(f"{at}.left_children", "leads to a node by two ways")
        reached[level] = True
        leaf = left[level] < 0
        if (leaf != (right[level] < 0)).any():
            # Files before 2.1 write 0 here; the right child of a leaf is not read.
            level_right = right[level]
            if ((level_right < 0) & ~leaf).any():
                raise BadField(f"{at}.right_children", "is missing where left is not")
        level = np.concatenate([left[level][~leaf], right[level][~leaf]])
    return reached


def _codes(
    tree: dict[str, Any], *, at: str, size: int
) -> dict[int, npt.NDArray[np.int64]]:
    names = [f"categories{part}" for part in ("", "_nodes", "_segments", "_sizes")]
    if not any(name in tree for name in names):
        return {}
    listed = whole_at(tree, names[0], at=at, low=0, high=LARGEST_CODE)
    nodes = whole_at(tree, names[1], at=at, low=0, high=size)
    starts = whole_at(tree, names[2], at=at, size=len(nodes), low=0)
    counts = whole_at(tree, names[3], at=at, size=len(nodes), low=1)
    if (np.diff(nodes) <= 0).any():
        raise BadField(f"{at}.{names[1]}", "does not ascend")
    wanted = np.concatenate([[0], np.cumsum(counts)])
    if list(starts) != list(wanted[:-1]) or wanted[-1] != len(listed):
        raise BadField(f"{at}.{names[2]}", "does not divide the categories")
    return {
        int(node): listed[start : start + count]
        for node, start, count in zip(nodes, starts, counts, strict=True)
    }
