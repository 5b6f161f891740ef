"""Read the trees of a LightGBM model from its text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from converters.trees.tree_ensemble import AT_MOST, IN, Tree, comparisons
from tollgate.errors import ConversionError

# Bits of decision_type in the model's text (LightGBM's include/LightGBM/tree.h).
CATEGORY = 1
DEFAULT_LEFT = 2
TREE_START = re.compile(r"^Tree=\d+$", re.MULTILINE)


def header(text: str, name: str, *, default: str = "0") -> str:
    """Return the value of the first line that starts with `name=`."""
    found = re.search(rf"^{name}=(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else default


def tree_texts(text: str) -> list[str]:
    """Return the section of each tree."""
    body = text.partition("\nend of trees")[0]
    return TREE_START.split(body)[1:]


def values(tree: str, name: str) -> list[str]:
    """Return the list in a tree's section; empty if there is none."""
    found = re.search(rf"^{name}=(.*)$", tree, re.MULTILINE)
    return found[1].split() if found else []


def trees_from_lightgbm(text: str) -> list[Tree]:
    """
    Read all trees of a model's text.

    Raises:
        ConversionError: The lists of a tree differ in length.
    """
    per_round = int(header(text, "num_tree_per_iteration"))
    return [
        tree_from_text(part, output=number % per_round)
        for number, part in enumerate(tree_texts(text))
    ]


def tree_from_text(text: str, *, output: int = 0) -> Tree:
    """
    Read the section of one tree; its leaves come after its splits.

    Raises:
        ConversionError: Its lists differ in length.
    """
    features = [int(one) for one in values(text, "split_feature")]
    splits, leaves = len(features), int(header(text, "num_leaves"))
    decisions = np.asarray(
        [int(one) for one in values(text, "decision_type")], dtype=int
    )
    number = _numbers(text, "threshold", size=splits)
    # The threshold of a split by category is the position of its codes.
    codes = {
        node: _split_codes(text, int(number[node]))
        for node in np.flatnonzero(decisions & CATEGORY).tolist()
    }
    number[list(codes)] = 0

    def children(name: str) -> Any:
        found = _numbers(text, name, size=splits).astype(np.int64)
        found = np.where(found >= 0, found, splits + ~found)
        return np.concatenate([found, np.full(leaves, -1)])

    def with_leaves(array: Any) -> Any:
        return np.concatenate([array, np.zeros(leaves, dtype=np.asarray(array).dtype)])

    left = children("left_child")
    leaf_value = _numbers(text, "leaf_value", size=leaves)
    return Tree(
        left=left,
        right=children("right_child"),
        comparison=comparisons(left, AT_MOST, codes=codes, among=IN),
        feature=with_leaves(np.asarray(features, dtype=np.int64)),
        threshold=with_leaves(number),
        missing_left=with_leaves(
            (decisions & DEFAULT_LEFT > 0) & (decisions & CATEGORY == 0)
        ),
        codes=codes,
        value=np.concatenate([np.zeros(splits), leaf_value])[:, None],
        cover=_cover(text, splits=splits, leaves=leaves),
        output=output,
        wide=True,
    )


def _split_codes(tree: str, number: int) -> tuple[int, ...]:
    """Return the categories that a split sends left, from bits of 32-bit words."""
    bounds = [int(one) for one in values(tree, "cat_boundaries")]
    words = [int(one) for one in values(tree, "cat_threshold")]
    chosen = words[bounds[number] : bounds[number + 1]]
    return tuple(
        32 * at + bit
        for at, word in enumerate(chosen)
        for bit in range(32)
        if word >> bit & 1
    )


def _cover(text: str, *, splits: int, leaves: int) -> Any:
    """Return the row counts of all nodes; None if the text has none."""
    if not splits:
        return np.ones(1)
    counts = [*values(text, "internal_count"), *values(text, "leaf_count")]
    if len(counts) != splits + leaves:
        return None
    return np.asarray([float(one) for one in counts])


def _numbers(text: str, name: str, *, size: int) -> Any:
    found = np.asarray([float(one) for one in values(text, name)])
    if len(found) != size:
        raise ConversionError(f"a tree has {len(found)} {name}; needed are {size}")
    return found
