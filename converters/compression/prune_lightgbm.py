"""
Remove trees, or levels of trees, from a LightGBM model.

This module edits the model's text and lets lightgbm load the result. A split that
becomes a leaf gets its `internal_value`, which lightgbm stores in the same form as leaf
values: shrunk, and with six digits.
"""

from __future__ import annotations

import re

from lightgbm import Booster

from converters.compression.prune import cut_below
from converters.trees.lightgbm_trees import header, tree_from_text, tree_texts, values
from tollgate.errors import ConversionError

_OF_SPLITS = ("split_feature", "split_gain", "threshold", "decision_type")
_OF_NODES = ("value", "weight", "count")


def pruned_text(booster: Booster, *, trees: int | None, depth: int | None) -> str:
    """
    Return the text of a model with fewer or shallower trees.

    Args:
        booster: The model, up to its early stop.
        trees: Maximum number of trees, in whole rounds of one tree per class. A random
            forest divides by its number of rounds, so the mean stays a mean.
        depth: Maximum number of splits on a path.

    Raises:
        ConversionError: Fewer trees than one round.
    """
    text = str(booster.model_to_string())
    if trees is not None and trees < len(tree_texts(text)):
        of_round = int(header(text, "num_tree_per_iteration"))
        if trees < of_round:
            raise ConversionError(
                f"{trees} trees are less than one round: this model adds {of_round} "
                "a round"
            )
        text = str(booster.model_to_string(num_iteration=trees // of_round))
    if depth is None:
        return text
    parts = re.split(r"(?m)^(?=Tree=\d+$|end of trees)", text)
    # Drop the byte counts of the trees: they would be wrong now, and nothing needs
    # them.
    parts[0] = re.sub(r"(?m)^tree_sizes=.*\n", "", parts[0])
    return "".join(
        _shallow(part, depth=depth) if part.startswith("Tree=") else part
        for part in parts
    )


def _shallow(tree: str, *, depth: int) -> str:
    """Cut one tree; lightgbm numbers splits from 0, and leaves as -1, -2, ..."""
    splits = len(values(tree, "split_feature"))
    leaves = int(header(tree, "num_leaves"))
    cut = cut_below(tree_from_text(tree), depth=depth)
    if not cut.ended:
        return tree
    inner = [at for at, left in enumerate(cut.left) if left >= 0]
    outer = [at for at, left in enumerate(cut.left) if left < 0]
    number = {at: order for order, at in enumerate(inner)}
    number |= {at: ~order for order, at in enumerate(outer)}
    lines = {"num_leaves": str(len(outer))}
    for name in _OF_SPLITS:
        held = values(tree, name)
        lines[name] = " ".join(held[cut.nodes[at]] for at in inner)
    for name, side in (("left_child", cut.left), ("right_child", cut.right)):
        lines[name] = " ".join(str(number[side[at]]) for at in inner)
    for name in _OF_NODES:
        held = values(tree, f"internal_{name}") + values(tree, f"leaf_{name}")
        if len(held) != splits + leaves and name != "value":
            continue  # older texts lack weights
        lines[f"internal_{name}"] = " ".join(held[cut.nodes[at]] for at in inner)
        lines[f"leaf_{name}"] = " ".join(held[cut.nodes[at]] for at in outer)
    for name, line in lines.items():
        tree = re.sub(rf"(?m)^{name}=.*$", f"{name}={line}", tree)
    return tree
