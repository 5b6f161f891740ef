"""
Choose the rows on which a converted tree model could differ from its source.

The output of a tree model changes only at its split thresholds. So this module builds
rows for every split of every tree: just below its threshold, exactly on it, and just
above.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from converters.model import F32, Probes
from converters.trees.tree_ensemble import AT_MOST, Tree, smallest_right

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
SPECIAL_VALUES = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e30, -1e30),
    *(_LARGEST, -_LARGEST, _SMALLEST, -_SMALLEST),
)
CATEGORY_BASES = 16  # sample rows that get each category
_UNSEEN_CODES = (-1.0, -0.5, 0.5, 1.5, 63.0, 64.0, 1e6, 16777216.0)
SPECIAL_BASES = 4  # sample rows that get each special value in each column


def probes(samples: F32, trees: list[Tree]) -> Probes:
    """
    Collect sample rows, rows around every split, and rows of extreme values.

    Args:
        samples: Rows as served, at least one; float32 [N, F].
        trees: The source model's trees.
    """
    return assemble(
        {
            "sample": samples,
            "split": split_rows(samples, trees),
            "category": category_rows(samples, trees),
            "special": special_rows(samples),
        }
    )


def assemble(parts: dict[str, F32]) -> Probes:
    """Join rows of several kinds."""
    return Probes(
        rows=np.ascontiguousarray(np.concatenate(list(parts.values()))),
        kind=np.repeat(list(parts), [len(rows) for rows in parts.values()]),
    )


def split_rows(samples: F32, trees: list[Tree]) -> F32:
    """
    Generate three rows that reach each split: below, on and above its threshold.

    Each is a sample row, changed only in the columns that the path tests.

    Returns:
        float32 [3 S, F] for S splits.
    """
    bases = np.nan_to_num(samples, nan=0.0, posinf=0.0, neginf=0.0)
    made = []
    number = 0
    for tree in trees:
        found = list(_paths(tree, samples.shape[1]))
        if not found:
            continue
        nodes, low, high = (np.asarray(part) for part in zip(*found, strict=True))
        at = (number + np.arange(len(nodes))) % len(bases)
        right = smallest_right(tree)[nodes]
        on = np.where(tree.comparison[nodes] == AT_MOST, _below(right), right)
        with np.errstate(over="ignore"):  # above the largest number is infinity
            above = np.nextafter(on, np.float32(np.inf))
        three = np.repeat(np.clip(bases[at], low, high)[:, None], 3, axis=1)
        feature = tree.feature[nodes]
        three[np.arange(len(nodes)), :, feature] = np.stack(
            [_below(on), on, above], axis=1
        )
        made.append(three.reshape(-1, samples.shape[1]))
        number += len(nodes)
    return np.concatenate(made) if made else samples[:0]


def category_rows(samples: F32, trees: list[Tree]) -> F32:
    """Generate rows with every category that a tree tests, and codes none tests."""
    seen: dict[int, set[int]] = {}
    for tree in trees:
        for node, codes in tree.codes.items():
            seen.setdefault(int(tree.feature[node]), set()).update(codes)
    return code_rows(samples, seen)


def code_rows(samples: F32, seen: Mapping[int, Collection[float]]) -> F32:
    """
    Generate sample rows with every category of a column, and with unknown codes.

    The unknown codes are the one after the last, negative ones, and fractions.
    """
    made = []
    for column, found in sorted(seen.items()):
        values = [*sorted(found), max(found, default=0) + 1, *_UNSEEN_CODES]
        rows = np.repeat(samples[:CATEGORY_BASES], len(values), axis=0)
        rows[:, column] = np.tile(values, len(samples[:CATEGORY_BASES]))
        made.append(rows)
    return np.concatenate(made) if made else samples[:0]


def special_rows(samples: F32) -> F32:
    """
    Generate rows with NaN, infinities, signed zeros, huge and tiny values.

    Each value fills a whole row once, and each single column of a few sample rows.
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
    smallest = smallest_right(tree)
    largest = _below(smallest)
    left, right, features = (
        one.tolist() for one in (tree.left, tree.right, tree.feature)
    )
    stack = [(0, lowest, -lowest)]
    while stack:
        node, low, high = stack.pop()
        if left[node] < 0:
            continue
        if node in tree.codes:  # either path, whatever the other columns hold
            stack += [(left[node], low, high), (right[node], low, high)]
            continue
        yield node, low, high
        feature = features[node]
        left_high, right_low = high.copy(), low.copy()
        left_high[feature] = min(high[feature], largest[node])
        right_low[feature] = max(low[feature], smallest[node])
        stack.append((left[node], low, left_high))
        stack.append((right[node], right_low, high))


def _below(threshold: F32) -> F32:
    """Return the next float32 numbers below."""
    found: F32 = np.nextafter(threshold, np.float32(-np.inf))
    return found
