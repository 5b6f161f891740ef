"""Extract the explanation of a LightGBM classifier: its trees and their covers."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from converters.explain_trees import stored_trees
from converters.lightgbm_trees import header, trees_from_lightgbm
from converters.model import Facts
from converters.onnx_from_lightgbm import plain_text, refuse_unfaithful
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
    trees = trees_from_lightgbm(plain)
    if any(one.cover is None for one in trees):
        raise ConversionError("its text has no row counts (leaf_count) in the trees")
    if re.search(r"^average_output$", text, re.MULTILINE):
        factor /= len(trees) // int(header(text, "num_tree_per_iteration"))
    return Explanation(
        features=facts.feature_names,
        classes=facts.classes,
        link="logistic" if outputs == 1 else "softmax",
        base=np.zeros(outputs),
        trees=stored_trees(
            [msgspec.structs.replace(one, value=factor * one.value) for one in trees],
            zero_is_missing=zero_is_missing,
            codes_truncate=True,
        ),
    )
