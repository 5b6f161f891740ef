"""Convert trees to the arrays that `explain.npz` stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from converters.trees import IN, NOT_IN, Tree, largest_left
from tollgate.errors import ConversionError
from tollgate.explanation import Trees

# Unpacked, a node takes 35 bytes and 8 per value; explaining its rows takes about 1 kB
# per node when paths test 15 features (measured).
MOST_NODES = 1_000_000
MOST_VALUES = 16_000_000


def stored_trees(
    trees: Sequence[Tree],
    *,
    missing: float | None = None,
    zero_is_missing: tuple[int, ...] = (),
    codes_truncate: bool = False,
    codes_exact: bool = False,
) -> Trees:
    """
    Join all trees, their nodes ordered by level.

    Args:
        trees: At least one, with covers; leaves hold contributions to the margins.
        missing: Number that stands for a missing value, in addition to NaN.
        zero_is_missing: Columns in which 0 stands for a missing value.
        codes_truncate: True if codes lose their fraction toward zero, otherwise
            downward.
        codes_exact: True if a code with a fraction matches no category.

    Raises:
        ConversionError: They have too many nodes to be stored.
    """
    nodes = sum(len(one.left) for one in trees)
    if nodes > MOST_NODES or sum(np.size(one.value) for one in trees) > MOST_VALUES:
        raise ConversionError(
            f"its trees have {nodes:,} nodes; contributions are stored for at most "
            f"{MOST_NODES:,}, of {MOST_VALUES:,} values"
        )
    parts: dict[str, list[Any]] = {name: [] for name in _ARRAYS}
    start = [0]
    for tree in trees:
        for name, array in _by_level(tree, first=start[-1]).items():
            parts[name].append(array)
        start.append(start[-1] + len(parts["left"][-1]))
    return Trees(
        start=np.asarray(start, dtype=np.int32),
        output=np.asarray([one.output for one in trees], dtype=np.int32),
        missing=missing,
        zero_is_missing=zero_is_missing,
        codes_truncate=codes_truncate,
        codes_exact=codes_exact,
        **{
            name: np.concatenate(parts[name]).astype(dtype)
            for name, dtype in _ARRAYS.items()
        },
    )


_ARRAYS: dict[str, Any] = {
    "left": np.int32,
    "feature": np.int32,
    "threshold": np.float32,
    "missing_left": np.bool_,
    "by_code": np.bool_,
    "code_node": np.int32,
    "code": np.int32,
    "cover": np.float64,
    "value": np.float64,
}


def _by_level(tree: Tree, *, first: int) -> dict[str, Any]:
    """Return the arrays of a tree; its root gets the number `first`."""
    assert tree.cover is not None
    by_code = np.isin(tree.comparison, (IN, NOT_IN))
    # In the file, the codes of a split always go to the left.
    swapped = tree.comparison == NOT_IN
    left = np.where(swapped, tree.right, tree.left)
    right = np.where(swapped, tree.left, tree.right)
    levels = [np.zeros(1, dtype=np.int64)]
    while True:
        splits = levels[-1][left[levels[-1]] >= 0]
        if not len(splits):
            break
        levels.append(np.stack([left[splits], right[splits]], axis=1).ravel())
    order = np.concatenate(levels)  # drop nodes that no path reaches
    split = left[order] >= 0
    child = np.full(len(order), -1, dtype=np.int64)
    child[split] = first + 1 + 2 * np.arange(int(split.sum()))
    code_pairs = [
        (first + at, code)
        for at in np.flatnonzero(by_code[order]).tolist()
        for code in sorted(set(tree.codes[int(order[at])]))
    ]
    codes = np.asarray(code_pairs, dtype=np.int64).reshape(-1, 2)
    number = split & ~by_code[order]
    return {
        "left": child,
        "feature": np.where(split, tree.feature[order], -1),
        "threshold": np.where(number, largest_left(tree)[order], np.float32(0)),
        "missing_left": (tree.missing_left ^ swapped)[order] & split,
        "by_code": by_code[order],
        "code_node": codes[:, 0],
        "code": codes[:, 1],
        "cover": tree.cover[order],
        "value": np.where(split[:, None], 0.0, tree.value[order]),
    }
