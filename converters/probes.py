"""
Choose the rows on which a converted tree model could differ from its source.

A tree model changes only at its split thresholds, so a row is sent to every split
of every tree: just below its threshold, exactly on it, and just above.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from xgboost import Booster

F32 = npt.NDArray[np.float32]

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
SPECIAL_VALUES = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e30, -1e30),
    *(_LARGEST, -_LARGEST, _SMALLEST, -_SMALLEST),
)
SPECIAL_BASES = 4  # sample rows that get each special value in each column


class Tree(msgspec.Struct, frozen=True, eq=False):
    """One tree; node n goes `left` if its feature < threshold; leaves have -1."""

    left: list[int]
    right: list[int]
    feature: list[int]
    threshold: F32


class Probes(msgspec.Struct, frozen=True, eq=False):
    """
    Rows to compare on, and why each is there.

    Args:
        rows: float32 [N, F].
        kind: `sample`, `split` or `special`; str [N].
    """

    rows: F32
    kind: npt.NDArray[np.str_]


def trees_of(booster: Booster) -> list[Tree]:
    """Read the trees from the booster's own JSON, not through the converter."""
    document = json.loads(booster.save_raw("json"))
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    return [
        Tree(
            left=tree["left_children"],
            right=tree["right_children"],
            feature=tree["split_indices"],
            threshold=np.asarray(tree["split_conditions"], dtype=np.float32),
        )
        for tree in trees
    ]


def probes(samples: F32, trees: list[Tree]) -> Probes:
    """
    Collect sample rows, rows around every split, and rows of extreme values.

    Args:
        samples: Rows as served, at least one; float32 [N, F].
        trees: The source model's trees.
    """
    parts = {
        "sample": samples,
        "split": split_rows(samples, trees),
        "special": special_rows(samples),
    }
    return Probes(
        rows=np.ascontiguousarray(np.concatenate(list(parts.values()))),
        kind=np.repeat(list(parts), [len(rows) for rows in parts.values()]),
    )


def split_rows(samples: F32, trees: list[Tree]) -> F32:
    """
    Make three rows for every split that reach it: below, on and above its threshold.

    Each is a sample row, changed only in the columns that the path tests.

    Returns:
        float32 [3 S, F] for S splits.
    """
    bases = np.nan_to_num(samples, nan=0.0, posinf=0.0, neginf=0.0)
    made = []
    number = 0
    for tree in trees:
        for node, low, high in _paths(tree, samples.shape[1]):
            base = np.clip(bases[number % len(bases)], low, high)
            threshold = tree.threshold[node]
            three = np.repeat(base[None], 3, axis=0)
            three[:, tree.feature[node]] = (
                _below(threshold),
                threshold,
                np.nextafter(threshold, np.float32(np.inf)),
            )
            made.append(three)
            number += 1
    return np.concatenate(made) if made else samples[:0]


def special_rows(samples: F32) -> F32:
    """
    Make rows with NaN, infinities, signed zeros, huge and tiny values.

    Each value stands once in every column, and in each single column of a few
    sample rows.
    """
    columns = samples.shape[1]
    values = np.asarray(SPECIAL_VALUES, dtype=np.float32)
    whole = np.repeat(values[:, None], columns, axis=1)
    single = np.tile(samples[:SPECIAL_BASES], (len(values) * columns, 1, 1))
    column = np.tile(np.arange(columns), len(values))
    single[np.arange(len(single)), :, column] = np.repeat(values, columns)[:, None]
    return np.concatenate([whole, single.reshape(-1, columns)])


def _paths(tree: Tree, columns: int) -> Iterator[tuple[int, F32, F32]]:
    """Yield every split with the lowest and highest values that lead to it; [F]."""
    lowest = np.full(columns, -_LARGEST, dtype=np.float32)
    stack = [(0, lowest, -lowest)]
    while stack:
        node, low, high = stack.pop()
        if tree.left[node] < 0:
            continue
        yield node, low, high
        feature, threshold = tree.feature[node], tree.threshold[node]
        left_high, right_low = high.copy(), low.copy()
        left_high[feature] = min(high[feature], _below(threshold))
        right_low[feature] = max(low[feature], threshold)
        stack.append((tree.left[node], low, left_high))
        stack.append((tree.right[node], right_low, high))


def _below(threshold: np.float32) -> np.float32:
    """Return the next float32 below."""
    return np.float32(np.nextafter(threshold, np.float32(-np.inf)))
