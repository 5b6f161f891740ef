"""Split the leaf values of trees into parts whose sums float32 holds exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from converters.model import F64

# A float32 adds whole numbers up to 2**24 without rounding; one bit is a reserve.
_EXACT_BITS = 23


def exact_parts(values: F64, *, tree: npt.NDArray[np.int64]) -> list[F64]:
    """
    Split leaf values into parts whose sums float32 holds exactly, in any order.

    Each part is a multiple of a power of two, so coarse that no sum of one leaf per
    tree needs more than 24 bits; the next part is the remainder. The sum of a row is
    then the same alone and in a batch, and the same as in float64.

    Args:
        values: Value that each node adds; float64 [M, K].
        tree: Number of each node's tree; int [M].

    Returns:
        One to three float64 [M, K] that hold exact float32; their sum is the values.
    """
    parts: list[F64] = []
    left = values
    for _ in range(3):
        largest = np.zeros((int(tree.max()) + 1, values.shape[1]))
        np.maximum.at(largest, tree, np.abs(left))
        most = float(largest.sum(axis=0).max())
        if most == 0 and parts:
            break
        unit = 2.0 ** (np.ceil(np.log2(most)) - _EXACT_BITS) if most else 1.0
        part = np.round(left / unit) * unit
        parts.append(part)
        left = left - part
    return parts


def split_targets(trees: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """
    Give a regressor of one target a target for each part of its leaf values.

    Args:
        trees: Attributes of a TreeEnsembleRegressor; `target_weights` in float64.

    Returns:
        The attributes, and the number of targets: their sum is the value.
    """
    weights = np.asarray(trees["target_weights"], np.float64)
    tree = np.asarray(trees["target_treeids"], np.int64)
    parts = exact_parts(weights[:, None], tree=tree)
    repeated = ("target_treeids", "target_nodeids")
    found = trees | {name: list(trees[name]) * len(parts) for name in repeated}
    found["target_ids"] = np.repeat(np.arange(len(parts)), len(tree)).tolist()
    found["target_weights"] = np.concatenate(parts)[:, 0].tolist()
    return found, len(parts)
