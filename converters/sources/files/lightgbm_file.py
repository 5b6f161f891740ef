"""
Read LightGBM's text line by line, before lightgbm reads it.

lightgbm ignores keys that it does not know, takes the last of two equal keys, and
trusts the byte counts of `tree_sizes`. Here every key is known or refused, and
contradictory numbers are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.sources.files.format_fields import LIGHTGBM, unknown_field
from converters.sources.files.xgboost_file import BadField
from tollgate.errors import ConversionError

# Check one tree of a LightGBM text, and evaluate it.

_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)")
# Numbers that affect no prediction, and are passed on.
_NOTES = (
    *("split_gain", "leaf_weight", "leaf_count", "internal_value", "internal_weight"),
    *("internal_count", "shrinkage"),
)
_ZERO = 1e-35  # lightgbm treats |x| up to this float32 as zero
_CATEGORY, _DEFAULT_LEFT, _ZERO_MISSING, _NAN_MISSING = 1, 2, 1, 2


class TextTree(msgspec.Struct, frozen=True, eq=False):
    """
    One tree: splits by position, leaves as -1, -2, ...

    Attributes:
        feature: Column of each split.
        threshold: float64.
        decision: Bits: 1 categories, 2 missing goes left, 4 zero or 8 NaN is missing.
        left: Next node for a row up to the threshold, and for listed categories.
        right: Next node for other rows.
        leaf_value: float64.
        codes: Categories that each node sends to the left.
    """

    feature: npt.NDArray[np.int64]
    threshold: npt.NDArray[np.float64]
    decision: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    leaf_value: npt.NDArray[np.float64]
    codes: dict[int, npt.NDArray[np.int64]]

    def leaves(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Return the leaf of each row."""
        at = np.zeros(len(rows), np.int64)
        if not len(self.feature):
            return at
        each = np.arange(len(rows))
        while (inner := at >= 0).any():
            node = at[inner]
            value = rows[each[inner], self.feature[node]].astype(np.float64)
            decision = self.decision[node]
            kind = decision >> 2
            gap = np.isnan(value)
            # lightgbm first converts to sparse rows, where such numbers are 0.
            value = np.where(np.abs(value) <= np.float32(_ZERO), 0.0, value)
            value = np.where(gap & (kind != _NAN_MISSING), 0.0, value)
            lost = (gap & (kind == _NAN_MISSING)) | (
                (np.abs(value) <= np.float32(_ZERO)) & (kind == _ZERO_MISSING)
            )
            left = value <= self.threshold[node]
            left = np.where(lost, decision & _DEFAULT_LEFT > 0, left)
            for split in np.unique(node):
                if int(split) in self.codes:
                    here = node == split
                    whole = np.trunc(rows[each[inner], self.feature[node]][here])
                    left[here] = np.isin(whole, self.codes[int(split)])
            at[inner] = np.where(left, self.left[node], self.right[node])
        return ~at


def checked_tree(block: Mapping[str, str], *, at: str, columns: int) -> TextTree:
    """Read the lines of a tree; raise BadField or ConversionError."""
    leaves = _one(block, "num_leaves", at=at)
    if leaves < 1:
        raise BadField(f"{at}: num_leaves", f"is {leaves}")
    linear = block.get("is_linear", "0")
    if linear == "1":
        raise ConversionError(
            "linear_tree: leaves are linear models, which a tree in ONNX cannot hold; "
            "train with linear_tree=False"
        )
    if linear != "0":
        raise BadField(f"{at}: is_linear", f"is {linear}, neither 0 nor 1")
    splits = leaves - 1
    feature = _whole(block, "split_feature", at=at, size=splits, low=0, high=columns)
    decision = _whole(block, "decision_type", at=at, size=splits, low=0, high=12)
    left = _whole(block, "left_child", at=at, size=splits, low=-leaves, high=splits)
    right = _whole(block, "right_child", at=at, size=splits, low=-leaves, high=splits)
    threshold = _floats(block, "threshold", at=at, size=splits)
    value = _floats(block, "leaf_value", at=at, size=leaves)
    if not np.isfinite(value).all():
        raise BadField(f"{at}: leaf_value", "is infinite")
    for name in _NOTES:
        size = len(block.get(name, "").split())
        wanted = leaves if name.startswith("leaf") else splits
        wanted = 1 if name == "shrinkage" else wanted
        # Older texts omit some of these.
        if size != wanted and (size or (name in block and name == "shrinkage")):
            raise BadField(f"{at}: {name}", f"has {size} numbers, not {wanted}")
        if not np.isfinite(_floats(block, name, at=at, size=size)).all():
            raise BadField(f"{at}: {name}", "has an infinite number")
    to = np.sort(np.concatenate([left, right]))
    if splits and list(to) != [*range(-leaves, 0), *range(1, splits)]:
        raise BadField(f"{at}: left_child", "does not lead to each node by one way")
    if splits and not _descends(left, right):
        raise BadField(f"{at}: left_child", "leads in a circle")
    return TextTree(
        feature=feature,
        threshold=threshold,
        decision=decision,
        left=left,
        right=right,
        leaf_value=value,
        codes=_codes(block, at=at, decision=decision, threshold=threshold),
    )


def _descends(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> bool:
    seen, level = 0, np.zeros(1, np.int64)
    while len(level):
        seen += len(level)
        if seen > len(left):
            return False
        level = np.concatenate([left[level], right[level]])
        level = level[level >= 0]
    return seen == len(left)


def _codes(
    block: Mapping[str, str],
    *,
    at: str,
    decision: npt.NDArray[np.int64],
    threshold: npt.NDArray[np.float64],
) -> dict[int, npt.NDArray[np.int64]]:
    sets = _one(block, "num_cat", at=at)
    nodes = np.flatnonzero(decision & _CATEGORY)
    if not sets:
        for name in ("cat_boundaries", "cat_threshold"):
            if name in block:
                raise BadField(f"{at}: {name}", "is there, and num_cat is 0")
        if len(nodes):
            raise BadField(f"{at}: num_cat", "is 0, and a split tests categories")
        return {}
    bounds = _whole(block, "cat_boundaries", at=at, size=sets + 1, low=0)
    words = _whole(
        block, "cat_threshold", at=at, size=int(bounds[-1]), low=0, high=1 << 32
    )
    if bounds[0] != 0 or (np.diff(bounds) <= 0).any():
        raise BadField(f"{at}: cat_boundaries", "does not ascend from 0")
    found = {}
    for node in nodes:
        chosen = threshold[node]
        if not (0 <= chosen < sets and chosen == int(chosen)):
            raise BadField(
                f"{at}: threshold", f"is {chosen:g} where one of {sets} sets belongs"
            )
        part = words[bounds[int(chosen)] : bounds[int(chosen) + 1]]
        bits = (part[:, None] >> np.arange(32)) & 1
        found[int(node)] = np.flatnonzero(bits.ravel())
    return found


def _one(block: Mapping[str, str], name: str, *, at: str) -> int:
    default = "0" if name == "num_cat" else "missing"
    text = block.get(name, default)
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise BadField(f"{at}: {name}", f"is {text}, no count")
    return int(text)


def _texts(block: Mapping[str, str], name: str, *, at: str, size: int) -> list[str]:
    found = block.get(name, "").split()
    if len(found) != size:
        raise BadField(f"{at}: {name}", f"has {len(found)} numbers; needed are {size}")
    return found


def _whole(
    block: Mapping[str, str],
    name: str,
    *,
    at: str,
    size: int,
    low: int,
    high: int = 1 << 31,
) -> npt.NDArray[np.int64]:
    found = _texts(block, name, at=at, size=size)
    for one in found:
        if not (_WHOLE.fullmatch(one) and len(one) < 12 and low <= int(one) < high):
            raise BadField(f"{at}: {name}", f"has {one[:40]}, out of range")
    return np.asarray([int(one) for one in found], np.int64)


def _floats(
    block: Mapping[str, str], name: str, *, at: str, size: int
) -> npt.NDArray[Any]:
    found = _texts(block, name, at=at, size=size)
    for one in found:
        if not _NUMBER.fullmatch(one):
            raise BadField(f"{at}: {name}", f"has {one[:40]}, no number")
    return np.asarray([float(one) for one in found], np.float64)


_VERSIONS = ("v2", "v3", "v4")
# Objectives of a number, with the function that turns a sum of leaves into it.
RANKERS = ("lambdarank", "rank_xendcg")  # their answer is a relevance
NUMBERS = {
    **dict.fromkeys(RANKERS, "identity"),
    **dict.fromkeys(
        ("regression", "regression_l1", "huber", "fair", "quantile", "mape"),
        "identity",
    ),
    **dict.fromkeys(("poisson", "gamma", "tweedie"), "exp"),
}
KINDS = ("binary", "multiclass", *NUMBERS)
_ALIASES = {"softmax": "multiclass"}
_FLAGS = ("average_output",)
_PART = re.compile(r"(?m)^(?=Tree=|end of trees$|feature.importances:$)")


class TextModel(msgspec.Struct, frozen=True, eq=False):
    """
    The checked content of a LightGBM text.

    Attributes:
        text: The text without `tree_sizes`, which does not affect predictions.
        columns: Number of features.
        outputs: 1 for two classes, otherwise the number of classes.
        sigmoid: Factor of the margin.
        averaged: True if sums are divided by the number of rounds.
        link: Function from a sum to a number: `identity`, `exp`, or `square` with the
            sign of the sum; None for classes.
        trees: The trees in order, one for each output in turn.
    """

    text: str
    columns: int
    outputs: int
    sigmoid: float
    averaged: bool
    link: str | None
    trees: tuple[TextTree, ...]


def checked_text(text: str) -> str:
    """Return a text that lightgbm reads correctly; raise ConversionError otherwise."""
    return read_lightgbm_text(text).text


def read_lightgbm_text(text: str) -> TextModel:
    """
    Check a model's text.

    Raises:
        ConversionError: It is truncated, of a kind that is not converted, or has a key
            that is not read; the error names the key.
    """
    try:
        return _read(text.replace("\r\n", "\n"))
    except BadField as error:
        raise ConversionError(str(error)) from error


def _read(text: str) -> TextModel:
    head, *parts = _PART.split(text)
    # Since version 3, "end of trees" follows the trees; the importances follow in any
    # version.
    trees = [part for part in parts if part.startswith("Tree=")]
    tail = "".join(part for part in parts if not part.startswith("Tree="))
    if not tail:
        raise ConversionError("is cut off: nothing stands behind the trees")
    if not parts[len(trees) :][0:1] or any(
        part.startswith("Tree=") for part in parts[len(trees) :]
    ):
        raise BadField("end of trees", "stands before the last tree")
    header = _header(head)
    kind, sigmoid = _objective(header)
    blocks = [_block(part, at=f"Tree={at}") for at, part in enumerate(trees)]
    footer = _footer(tail)
    unknown = unknown_field(header | footer, LIGHTGBM)
    for number, block in enumerate(blocks):
        unknown = unknown or _within(unknown_field({"Tree": block}, LIGHTGBM), number)
    if unknown is not None:
        raise BadField(*unknown)
    if not trees:
        raise ConversionError("the model has no trees")
    columns, outputs = _numbers(header, kind=kind)
    averaged = "average_output" in header
    _check_parameters(
        footer["parameters"],
        kind=kind,
        sigmoid=sigmoid,
        classes=outputs,
        averaged=averaged,
    )
    if len(trees) % outputs:
        raise BadField("num_class", f"is {outputs}, for {len(trees)} trees")
    sizes = header.get("tree_sizes")
    if sizes is not None and len(sizes.split()) != len(trees):
        raise BadField(
            "tree_sizes", f"lists {len(sizes.split())} of {len(trees)} trees"
        )
    checked = tuple(
        checked_tree(block, at=f"Tree={number}", columns=columns)
        for number, block in enumerate(blocks)
    )
    if not sum(float(np.abs(one.leaf_value).max()) for one in checked) * sigmoid < (
        float(np.finfo(np.float32).max)
    ):
        raise BadField("leaf_value", "adds up to infinity in float32")
    return TextModel(
        text=re.sub(r"(?m)^tree_sizes=.*\n", "", text),
        columns=columns,
        outputs=outputs,
        sigmoid=sigmoid,
        averaged=averaged,
        link="square" if header["objective"].endswith(" sqrt") else NUMBERS.get(kind),
        trees=checked,
    )


def _within(found: tuple[str, str] | None, number: int) -> tuple[str, str] | None:
    if found is None:
        return None
    return found[0].replace("Tree.", f"Tree={number}: ", 1), found[1]


def _header(text: str) -> dict[str, str]:
    lines = [line for line in text.split("\n") if line]
    if lines[:1] != ["tree"]:
        raise BadField("tree", "is not the first line")
    found: dict[str, str] = {}
    for line in lines[1:]:
        name, equals, value = line.partition("=")
        if not equals and name not in _FLAGS:
            raise BadField(name[:60], "is a line that this version does not know")
        if name in found:
            raise BadField(name, "stands twice")
        found[name] = value.strip()
    if found.get("average_output"):
        raise BadField("average_output", f"is {found['average_output']!r}, not a flag")
    if found.get("version") not in _VERSIONS:
        version = found.get("version", "missing")
        raise ConversionError(
            f"version is {version}; read are {', '.join(_VERSIONS)}: export it to ONNX "
            "with the library that wrote it, and adopt that"
        )
    return found


def _block(part: str, *, at: str) -> dict[str, str]:
    """Read the lines of one tree; the first line numbers it."""
    first, *lines = part.split("\n")
    if first.strip() != at:
        raise BadField(first[:40], f"stands where {at} belongs")
    found: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise BadField(f"{at}: {name[:60]}", "is a line without a value")
        if name in found:
            raise BadField(f"{at}: {name}", "stands twice")
        found[name] = value.strip()
    return found


def _footer(text: str) -> dict[str, Any]:
    """Read the part after the trees: importances, parameters, categories."""
    parameters: dict[str, str] = {}
    found: dict[str, Any] = {"parameters": parameters}
    section, closed = "", True
    for line in text.split("\n"):
        if not line.strip() or line == "end of trees":
            continue
        if line in ("feature_importances:", "feature importances:"):
            section = line[:-1]
            found[section] = ""
        elif line in ("parameters:", "end of parameters"):
            section = "" if line.startswith("end") else "parameters"
            closed = not section
        elif line.startswith("pandas_categorical:"):
            if "pandas_categorical" in found:
                raise BadField("pandas_categorical", "stands twice")
            found["pandas_categorical"] = _words(line.partition(":")[2])
        elif section == "parameters" and line.startswith("[") and line.endswith("]"):
            name, _, value = line[1:-1].partition(":")
            if name in parameters:
                raise BadField(f"parameters: {name}", "stands twice")
            parameters[name] = value.strip()
        elif not (section.startswith("feature") and re.fullmatch(r".*=\d+", line)):
            raise BadField(line[:60], "is a line that this version does not know")
    if not closed:
        raise ConversionError("is cut off: the parameters have no end")
    return found


def _words(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadField("pandas_categorical", "is no JSON") from error
    if found is None:
        return ""
    if not isinstance(found, list) or not all(isinstance(x, list) for x in found):
        raise BadField("pandas_categorical", "is no list of lists")
    for number, words in enumerate(found):
        if len({json.dumps(one) for one in words}) != len(words):
            raise BadField(f"pandas_categorical[{number}]", "has a category twice")
    return ""


def _objective(header: Mapping[str, str]) -> tuple[str, float]:
    kind, *settings = (header.get("objective") or "none").split()
    if kind not in KINDS:
        raise ConversionError(
            f"objective is {kind!r}; converted are {', '.join(KINDS)}"
        )
    if kind in NUMBERS:
        if settings not in ([], ["sqrt"]) or (settings and kind != "regression"):
            raise BadField("objective", f"has {settings[0]!r}, which is not read")
        return kind, 1.0
    found: dict[str, str] = {}
    for one in settings:
        name, _, value = one.partition(":")
        if name not in ("sigmoid", "num_class") or name in found:
            raise BadField("objective", f"has {one!r}, which is not read")
        found[name] = value
    if kind == "multiclass":
        if "sigmoid" in found:
            raise BadField("objective", "is 'multiclass' and has a sigmoid")
        if found.get("num_class") != header.get("num_class"):
            raise BadField(
                "objective",
                f"has num_class:{found.get('num_class')}, num_class is "
                f"{header.get('num_class')}",
            )
        return kind, 1.0
    try:
        sigmoid = float(found.get("sigmoid", "missing"))
    except ValueError:
        sigmoid = 0.0
    if "num_class" in found or not 0 < sigmoid < 1e6:
        raise BadField(
            "objective", f"is {header['objective']!r}; needed is a sigmoid above 0"
        )
    return kind, sigmoid


def _numbers(header: Mapping[str, str], *, kind: str) -> tuple[int, int]:
    """Return the numbers of columns and outputs."""
    found = {}
    for name in ("num_class", "num_tree_per_iteration", "max_feature_idx"):
        value = header.get(name, "missing")
        if not (value.isascii() and value.isdigit() and len(value) < 8):
            raise BadField(name, f"is {value}, no count")
        found[name] = int(value)
    classes, columns = found["num_class"], found["max_feature_idx"] + 1
    if found["num_tree_per_iteration"] != classes:
        raise BadField(
            "num_tree_per_iteration",
            f"is {found['num_tree_per_iteration']}, num_class is {classes}",
        )
    if (kind != "multiclass") != (classes == 1) or not classes:
        raise BadField("num_class", f"is {classes}, the objective is {kind!r}")
    for name in ("feature_names", "feature_infos"):
        parts = header.get(name, "").split()
        if name in header and len(parts) != columns:
            raise BadField(name, f"has {len(parts)} for {columns} columns")
        if name == "feature_names" and len(set(parts)) != len(parts):
            raise BadField(name, "has a name twice")
    return columns, classes


def _check_parameters(
    parameters: Mapping[str, str],
    *,
    kind: str,
    sigmoid: float,
    classes: int,
    averaged: bool,
) -> None:
    boosting = parameters.get("boosting", "")
    if boosting and averaged != (boosting in ("rf", "random_forest")):
        flag = "is there" if averaged else "is not there"
        raise BadField(
            "average_output", f"{flag}, and parameters: boosting: {boosting}"
        )
    wanted = parameters.get("objective", kind)
    wanted = _ALIASES.get(wanted, wanted)
    if wanted != kind:
        raise BadField("objective", f"is {kind!r}, parameters: objective: {wanted}")
    if parameters.get("linear_tree", "0") not in ("0", "false"):
        raise ConversionError(
            "linear_tree: leaves are linear models, which a tree in ONNX cannot hold; "
            "train with linear_tree=False"
        )
    for name, own in (("sigmoid", sigmoid), ("num_class", float(classes))):
        if name == "sigmoid" and kind != "binary":
            continue
        try:
            value = float(parameters.get(name, own))
        except ValueError:
            value = float("nan")
        if value != own:
            raise BadField(
                f"parameters: {name}", f"is {parameters[name]}, above it is {own:g}"
            )
