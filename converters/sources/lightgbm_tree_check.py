"""Check one tree of a LightGBM text, and evaluate it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.sources.xgboost_fields import BadField
from tollgate.errors import ConversionError

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


def checked_tree(
    block: Mapping[str, str], *, at: str, number: int, columns: int
) -> TextTree:
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
