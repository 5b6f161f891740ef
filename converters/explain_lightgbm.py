"""Extract the explanation of a LightGBM classifier: its trees and their covers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from converters.explain_trees import SourceTree, packed
from converters.model import Facts
from converters.onnx_from_lightgbm import (
    CATEGORY,
    DEFAULT_LEFT,
    header,
    plain_text,
    refuse_unfaithful,
    split_codes,
    tree_texts,
    values,
)
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation


def explain_lightgbm(text: str, *, facts: Facts) -> Explanation:
    """
    Describe the trees of a model's text.

    Covers are row counts, as LightGBM's own `pred_contrib` uses them. The leaves here
    include the factor of the sigmoid and the divisor of random forests.

    Raises:
        ConversionError: The text has no covers, or too many nodes.
    """
    factor = refuse_unfaithful(text)
    outputs = int(header(text, "num_class"))
    plain, zero_is_missing = plain_text(text)
    parts = tree_texts(plain)
    per_round = int(header(text, "num_tree_per_iteration"))
    if re.search(r"^average_output$", text, re.MULTILINE):
        factor /= len(parts) // per_round
    return Explanation(
        features=facts.feature_names,
        classes=facts.classes,
        link="logistic" if outputs == 1 else "softmax",
        base=np.zeros(outputs),
        trees=packed(
            [
                _tree(part, factor=factor, output=number % per_round)
                for number, part in enumerate(parts)
            ],
            zero_is_missing=zero_is_missing,
            codes_truncate=True,
        ),
    )


def _tree(text: str, *, factor: float, output: int) -> SourceTree:
    """Read one tree; leaves come after the splits."""
    features = [int(one) for one in values(text, "split_feature")]
    splits, leaves = len(features), int(header(text, "num_leaves"))
    ways = np.asarray([int(one) for one in values(text, "decision_type")], dtype=int)
    number = _numbers(text, "threshold", size=splits)
    counts = values(text, "leaf_count"), values(text, "internal_count")
    if splits and [len(one) for one in counts] != [leaves, splits]:
        raise ConversionError("its text keeps no row counts (leaf_count) in the trees")
    cover = (
        np.asarray([float(one) for one in (*counts[1], *counts[0])])
        if splits
        else np.ones(1)
    )

    def children(name: str) -> Any:
        found = _numbers(text, name, size=splits).astype(int)
        found = np.where(found >= 0, found, splits + ~found)
        return np.concatenate([found, np.full(leaves, -1)])

    def whole(array: Any) -> Any:
        return np.concatenate([array, np.zeros(leaves, dtype=np.asarray(array).dtype)])

    return SourceTree(
        left=children("left_child"),
        right=children("right_child"),
        feature=whole(np.asarray(features, dtype=int)),
        threshold=whole(number.astype(np.float32)),
        missing_left=whole((ways & DEFAULT_LEFT > 0) & (ways & CATEGORY == 0)),
        cover=cover,
        value=np.concatenate(
            [np.zeros(splits), factor * _numbers(text, "leaf_value", size=leaves)]
        ),
        codes={
            node: split_codes(text, int(number[node]))
            for node in np.flatnonzero(ways & CATEGORY).tolist()
        },
        output=output,
    )


def _numbers(text: str, name: str, *, size: int) -> Any:
    found = np.asarray([float(one) for one in values(text, name)])
    if len(found) != size:
        raise ConversionError(f"a tree has {len(found)} {name}; needed are {size}")
    return found
