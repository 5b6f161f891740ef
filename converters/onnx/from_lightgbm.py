"""
Convert trained LightGBM models to ONNX that gives the same answers.

LightGBM compares float64 thresholds and has three kinds of missing value; a tree in
ONNX has float32 thresholds and one kind. So this module rewrites the model's own text
in terms that ONNX supports, before onnxmltools writes the trees. Every threshold is
rounded down to float32, which changes the path of no float32 row, and every split says
where NaN goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from lightgbm import Booster
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType

from converters.onnx.graph import (
    OPSET,
    Margin,
    Repairs,
    number_graph,
    tree_attributes,
    tree_graph,
)
from converters.sources.files.lightgbm_file import KINDS, NUMBERS
from converters.trees.lightgbm_trees import (
    CATEGORY,
    DEFAULT_LEFT,
    TREE_START,
    header,
    tree_texts,
    values,
)
from converters.trees.tree_ensemble import round_down
from tollgate.errors import ConversionError
from tollgate.repository.models.targets import ML_DOMAIN
from tollgate.schema import FEATURES

_NO_MISSING, _ZERO_MISSING, _NAN_MISSING = 0, 1, 2


def onnx_from_lightgbm(booster: Booster, *, wide: bool = False) -> bytes:
    """
    Convert a classifier or regressor; the same model gives the same bytes.

    Args:
        wide: True if its features are float64, as LightGBM compares them; else float32.

    Returns:
        A serialized graph: input `features` [N, F], one output
        `probabilities` float32 [N, K], K classes, P(class 0) first; [N, 1] for a
        number.

    Raises:
        ConversionError: A model of this kind cannot be converted faithfully.
    """
    text = served_text(booster)
    sigmoid = refuse_unfaithful(text)
    columns = int(header(text, "max_feature_idx")) + 1
    outputs = int(header(text, "num_class"))
    rounds = len(tree_texts(text)) // int(header(text, "num_tree_per_iteration"))
    averaged = re.search(r"^average_output$", text, re.MULTILINE) is not None
    exact: list[float] | None = [] if wide else None
    link = number_link(text)
    leaves: list[float] | None = None if link is None else []
    plain, zero_is_missing = plain_text(text, exact=exact, leaves=leaves)
    trees = _converted_trees(plain, columns=columns)
    if exact is not None:
        # Replace each written threshold, a position in the list, by its exact value.
        trees["nodes_values"] = [
            exact[int(value) - 1] if mode == b"BRANCH_LEQ" else value
            for value, mode in zip(
                trees["nodes_values"], trees["nodes_modes"], strict=True
            )
        ]
    repairs = Repairs(
        zero_is_missing=zero_is_missing,
        categories=category_columns(text),
        codes_truncate=True,
    )
    if link is not None and leaves is not None:
        trees["target_weights"] = [
            leaves[int(value) - 1] for value in trees["target_weights"]
        ]
        return number_graph(
            trees,
            name="lightgbm",
            columns=columns,
            link=link,
            rounds=rounds if averaged else 1,
            exact=True,
            repairs=repairs,
            wide=wide,
        )
    return tree_graph(
        trees,
        name="lightgbm",
        columns=columns,
        margin=Margin(
            base=(0.0,) * outputs, factor=sigmoid / rounds if averaged else sigmoid
        ),
        repairs=repairs,
        wide=wide,
    )


def served_text(booster: Booster) -> str:
    """Return the text of the trees that `predict` uses, after early stopping."""
    return str(booster.model_to_string())


def refuse_unfaithful(text: str) -> float:
    """
    Return the sigmoid's factor; raise if the model cannot be converted.

    Raises:
        ConversionError: A model of this kind cannot be converted faithfully.
    """
    objective = header(text, "objective", default="none given")
    kind, _, settings = objective.partition(" ")
    if kind not in KINDS:
        raise ConversionError(
            f"objective is {kind!r}; converted are {', '.join(KINDS)}"
        )
    if re.search(r"^is_linear=1$", text, re.MULTILINE):
        raise ConversionError(
            "linear_tree: leaves are linear models, which a tree in ONNX cannot hold; "
            "train with linear_tree=False"
        )
    if not TREE_START.search(text):
        raise ConversionError("the model has no trees")
    found = re.search(r"sigmoid:([-\d.eE+]+)", settings)
    return float(found[1]) if found and kind == "binary" else 1.0


def number_link(text: str) -> str | None:
    """Return the function from a sum of leaves to a number; None for classes."""
    kind, _, settings = header(text, "objective", default="").partition(" ")
    return "square" if "sqrt" in settings.split() else NUMBERS.get(kind)


def category_columns(text: str) -> tuple[int, ...]:
    """List the columns that at least one tree splits by category code."""
    found = {
        int(feature)
        for tree in tree_texts(text)
        for feature, way in zip(
            values(tree, "split_feature"), values(tree, "decision_type"), strict=True
        )
        if int(way) & CATEGORY
    }
    return tuple(sorted(found))


def plain_text(
    text: str,
    *,
    exact: list[float] | None = None,
    leaves: list[float] | None = None,
) -> tuple[str, tuple[int, ...]]:
    """
    Rewrite a text with float32 thresholds and NaN as the only missing value.

    Args:
        text: Text of the model.
        exact: List that receives the float64 thresholds; the text then contains the
            position of each one, from 1, which float32 holds. None writes thresholds
            rounded down to float32.
        leaves: The same for the values of leaves, as those of a plain regression; None
            leaves them unchanged.

    Returns:
        The text, and the columns whose zeros must become NaN before the trees.

    Raises:
        ConversionError: Zero counts as missing in one split of a column and not in
            another.
    """
    ways: dict[int, set[bool]] = {}
    parts = re.split(r"(?m)^(?=Tree=\d+$|end of trees)", text)
    # Drop the byte counts of the trees: they would be wrong now, and nothing needs
    # them.
    parts[0] = re.sub(r"(?m)^tree_sizes=.*\n", "", parts[0])
    if leaves is not None:
        parts = [
            re.sub(r"(?m)^(\[?objective[=:] ?)[^\]\n]*", r"\1regression", part)
            for part in parts
        ]
    for number, part in enumerate(parts):
        if not part.startswith("Tree="):
            continue
        thresholds, decisions = [], []
        for feature, threshold, way in _splits(part):
            if way & CATEGORY:
                thresholds.append(f"{threshold:.17g}")
                decisions.append(way)
                continue
            missing = way >> 2
            ways.setdefault(feature, set()).add(missing == _ZERO_MISSING)
            left = bool(way & DEFAULT_LEFT)
            if missing == _NO_MISSING:
                left = threshold >= 0  # NaN is read as 0
            if exact is None:
                thresholds.append(f"{_outside_zero(float(round_down(threshold))):.17g}")
            else:
                exact.append(_outside_zero(threshold, kind=np.float64))
                thresholds.append(str(len(exact)))
            decisions.append((_NAN_MISSING << 2) | (DEFAULT_LEFT if left else 0))
        if leaves is not None:
            first = len(leaves) + 1
            leaves += map(float, values(part, "leaf_value"))
            line = " ".join(map(str, range(first, len(leaves) + 1)))
            part = re.sub(r"(?m)^leaf_value=.*$", f"leaf_value={line}", part)
        line = " ".join(thresholds)
        part = re.sub(r"(?m)^threshold=.*$", f"threshold={line}", part)
        line = " ".join(map(str, decisions))
        parts[number] = re.sub(r"(?m)^decision_type=.*$", f"decision_type={line}", part)
    for feature, kinds in sorted(ways.items()):
        if len(kinds) > 1:
            raise ConversionError(
                f"column {feature}: zero_as_missing holds for some splits only, "
                "which one input cannot express"
            )
    zero = tuple(sorted(feature for feature, kinds in ways.items() if True in kinds))
    return "".join(parts), zero


def _splits(tree: str) -> Iterator[tuple[int, float, int]]:
    """Yield feature, threshold and decision type of every split."""
    for feature, threshold, way in zip(
        values(tree, "split_feature"),
        values(tree, "threshold"),
        values(tree, "decision_type"),
        strict=True,
    ):
        yield int(feature), float(threshold), int(way)


def _outside_zero(threshold: float, *, kind: Any = np.float32) -> float:
    """Move a threshold out of the range that LightGBM treats as 0: |x| <= 1e-35."""
    zero = kind(np.float32(1e-35))
    if not -zero <= threshold < zero:
        return threshold
    return float(zero if threshold >= 0 else np.nextafter(-zero, kind(-np.inf)))


def _converted_trees(text: str, *, columns: int) -> dict[str, Any]:
    """Convert the trees with onnxmltools; return them as regressor attributes."""
    converted = convert_lightgbm(
        Booster(model_str=text),
        name="lightgbm",
        initial_types=[(FEATURES, FloatTensorType([None, columns]))],
        target_opset=OPSET,
        zipmap=False,
    )
    (node,) = (n for n in converted.graph.node if n.domain == ML_DOMAIN)
    return tree_attributes(node)
