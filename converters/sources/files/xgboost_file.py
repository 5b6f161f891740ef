"""
Read XGBoost's JSON and UBJSON field by field, before xgboost reads them.

xgboost ignores fields that it does not know: 3.2 reads a DART model of 3.4 without its
weights. Here every field is known or refused, contradictory numbers are refused, and
`weight_drop` is written where each xgboost from 3.0 on reads it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.sources.files.format_fields import XGBOOST, unknown_field
from converters.sources.files.ubjson import decode_ubjson
from tollgate.errors import ConversionError

# Read one field of a decoded model file; an error names the field's path.


class BadField(Exception):
    """A field of a model file has an invalid value."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


def object_at(
    holder: Mapping[str, Any],
    name: str,
    *,
    at: str = "",
    default: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return an object; raise BadField if the field is none."""
    found = holder.get(name, default)
    if not isinstance(found, dict):
        raise BadField(_path(at, name), _not(holder, name, "an object"))
    return found


def text_at(holder: Mapping[str, Any], name: str, *, at: str) -> str:
    """Return a text; raise BadField if the field is none."""
    found = holder.get(name)
    if not isinstance(found, str):
        raise BadField(_path(at, name), _not(holder, name, "a text"))
    return found


def count_at(
    holder: Mapping[str, Any], name: str, *, at: str, default: int | None = None
) -> int:
    """Return a count, which XGBoost writes as a text of digits."""
    if default is not None and name not in holder:
        return default
    found = holder.get(name)
    if not (isinstance(found, str) and found.isascii() and found.isdigit()):
        raise BadField(_path(at, name), _not(holder, name, "a text of digits"))
    if len(found) > 9:
        raise BadField(_path(at, name), f"is {found}, more than any model has")
    return int(found)


def whole_at(
    holder: Mapping[str, Any],
    name: str,
    *,
    at: str,
    size: int | None = None,
    low: int | None = None,
    high: int | None = None,
) -> npt.NDArray[np.int64]:
    """Return a list of whole numbers from `low` to below `high`."""
    found = _array(holder, name, at=at, size=size, kinds="iub")
    found = found.astype(np.int64)
    outside = np.zeros(len(found), bool)
    if low is not None:
        outside |= found < low
    if high is not None:
        outside |= found >= high
    if outside.any():
        at_entry = int(outside.argmax())
        raise BadField(
            f"{_path(at, name)}[{at_entry}]", f"is {found[at_entry]}, out of range"
        )
    return found


def numbers_at(
    holder: Mapping[str, Any],
    name: str,
    *,
    at: str,
    size: int | None = None,
    finite: bool = True,
) -> npt.NDArray[np.float32]:
    """Return a list of numbers as float32, as XGBoost stores them."""
    found = _array(holder, name, at=at, size=size, kinds="iuf")
    with np.errstate(over="ignore"):
        single = found.astype(np.float32)
    odd = ~np.isfinite(single)
    if finite and odd.any():
        at_entry = int(odd.argmax())
        raise BadField(
            f"{_path(at, name)}[{at_entry}]",
            f"is {found[at_entry]}, no finite float32",
        )
    return single


def _array(
    holder: Mapping[str, Any], name: str, *, at: str, size: int | None, kinds: str
) -> npt.NDArray[Any]:
    value = holder.get(name)
    if not isinstance(value, (list, np.ndarray)):
        raise BadField(_path(at, name), _not(holder, name, "a list of numbers"))
    for number, one in enumerate(value if isinstance(value, list) else ()):
        if isinstance(one, (str, dict, list)) or one is None:
            raise BadField(f"{_path(at, name)}[{number}]", f"is {one!r}, no number")
    found = np.asarray(value)
    if not len(found):
        found = found.astype(np.int64)
    if found.ndim != 1 or found.dtype.kind not in kinds:
        raise BadField(_path(at, name), "has entries of another type")
    if size is not None and len(found) != size:
        raise BadField(_path(at, name), f"has {len(found)} entries; needed are {size}")
    return found


def _path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _not(holder: Mapping[str, Any], name: str, wanted: str) -> str:
    if name not in holder:
        return f"is missing; needed is {wanted}"
    text = repr(holder[name])
    return f"is {text if len(text) < 40 else type(holder[name]).__name__}, not {wanted}"


# Check one tree of an XGBoost file: its lists agree and its nodes form a tree.

LARGEST_CODE = 1 << 24  # whole numbers that float32 holds
_NONE = -1


class FileTree(msgspec.Struct, frozen=True, eq=False):
    """
    One tree as stored in its file.

    Attributes:
        left: Next node for a row below the threshold; -1 in leaves.
        right: Next node for other rows, and for listed categories.
        feature: Column of each split.
        value: Threshold of a split, value of a leaf; float32.
        missing_left: True if a missing value goes to the left.
        codes: Categories that each node sends to the right.
    """

    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    feature: npt.NDArray[np.int64]
    value: npt.NDArray[np.float32]
    missing_left: npt.NDArray[np.bool_]
    codes: dict[int, npt.NDArray[np.int64]]

    @property
    def leaves(self) -> npt.NDArray[np.float32]:
        """Return the values of the leaves."""
        return self.value[self.left < 0]


def checked_tree(
    tree: dict[str, Any], *, at: str, number: int, columns: int
) -> FileTree:
    """
    Read a tree; raise BadField or ConversionError.

    Args:
        at: Path of the object.
    """
    param = tree.get("tree_param")
    if not isinstance(param, dict):
        raise BadField(f"{at}.tree_param", "is missing")
    if count_at(param, "size_leaf_vector", at=f"{at}.tree_param", default=0) > 1:
        raise ConversionError(
            "multi_strategy is 'multi_output_tree', whose leaves hold a number per "
            "class; train with 'one_output_per_tree'"
        )
    size = count_at(param, "num_nodes", at=f"{at}.tree_param")
    if not size:
        raise BadField(f"{at}.tree_param.num_nodes", "is 0")
    own = tree.get("id")
    if isinstance(own, bool) or not isinstance(own, (int, np.integer)) or own != number:
        raise BadField(f"{at}.id", f"is {own!r}; trees stand in the order of their ids")
    left = whole_at(tree, "left_children", at=at, size=size, low=_NONE, high=size)
    right = whole_at(tree, "right_children", at=at, size=size, low=_NONE, high=size)
    reached = _reached(left, right, at=at)
    if "parents" in tree:  # xgboost follows them without a check
        parents = whole_at(tree, "parents", at=at, size=size)
        inner = np.flatnonzero(reached & (left >= 0))
        for side in (left[inner], right[inner]):
            if (parents[side] != inner).any():
                raise BadField(f"{at}.parents", "are not those of the children")
    feature = whole_at(tree, "split_indices", at=at, size=size)
    splits = reached & (left >= 0)
    if ((feature < 0) | (feature >= columns))[splits].any():
        node = int(np.flatnonzero(splits & ((feature < 0) | (feature >= columns)))[0])
        raise BadField(
            f"{at}.split_indices[{node}]",
            f"is {feature[node]}; there are {columns} columns",
        )
    if "split_type" in tree:
        kind = whole_at(tree, "split_type", at=at, size=size, low=0, high=2)
    else:
        kind = np.zeros(size, np.int64)
    codes = _codes(tree, at=at, size=size)
    for node in np.flatnonzero(splits):
        if (int(node) in codes) != bool(kind[node]):
            raise BadField(
                f"{at}.split_type[{node}]",
                f"is {kind[node]}, which categories_nodes contradicts",
            )
    value = numbers_at(tree, "split_conditions", at=at, size=size, finite=False)
    odd = reached & ~np.isfinite(value) & ~(splits & (kind == 1))
    if odd.any():
        node = int(odd.argmax())
        raise BadField(f"{at}.split_conditions[{node}]", f"is {value[node]}")
    return FileTree(
        left=left,
        right=right,
        feature=feature,
        value=value,
        missing_left=whole_at(
            tree, "default_left", at=at, size=size, low=0, high=2
        ).astype(bool),
        codes={node: found for node, found in codes.items() if splits[node]},
    )


def _reached(
    left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], *, at: str
) -> npt.NDArray[np.bool_]:
    """Walk down the tree; each node must have exactly one parent."""
    reached = np.zeros(len(left), bool)
    level = np.zeros(1, np.int64)
    while len(level):
        if reached[level].any() or len(np.unique(level)) < len(level):
            raise BadField(f"{at}.left_children", "leads to a node by two ways")
        reached[level] = True
        leaf = left[level] < 0
        if (leaf != (right[level] < 0)).any():
            # Files before 2.1 write 0 here; the right child of a leaf is not read.
            level_right = right[level]
            if ((level_right < 0) & ~leaf).any():
                raise BadField(f"{at}.right_children", "is missing where left is not")
        level = np.concatenate([left[level][~leaf], right[level][~leaf]])
    return reached


def _codes(
    tree: dict[str, Any], *, at: str, size: int
) -> dict[int, npt.NDArray[np.int64]]:
    names = [f"categories{part}" for part in ("", "_nodes", "_segments", "_sizes")]
    if not any(name in tree for name in names):
        return {}
    listed = whole_at(tree, names[0], at=at, low=0, high=LARGEST_CODE)
    nodes = whole_at(tree, names[1], at=at, low=0, high=size)
    starts = whole_at(tree, names[2], at=at, size=len(nodes), low=0)
    counts = whole_at(tree, names[3], at=at, size=len(nodes), low=1)
    if (np.diff(nodes) <= 0).any():
        raise BadField(f"{at}.{names[1]}", "does not ascend")
    wanted = np.concatenate([[0], np.cumsum(counts)])
    if list(starts) != list(wanted[:-1]) or wanted[-1] != len(listed):
        raise BadField(f"{at}.{names[2]}", "does not divide the categories")
    return {
        int(node): listed[start : start + count]
        for node, start, count in zip(nodes, starts, counts, strict=True)
    }


# Real files of these releases were read and compared with their own predictions.
OLDEST, NEWEST = (1, 0), (3, 4)
RANKERS = ("rank:ndcg", "rank:pairwise", "rank:map")  # their answer is a relevance
CLASSES = ("binary:logistic", "reg:logistic", "multi:softprob", "multi:softmax")
# Objectives of a number, with the function that turns a margin into it, and the
# parameters of training in their files.
NUMBERS = {
    "reg:squarederror": ("identity", "reg_loss_param"),
    "reg:linear": ("identity", "reg_loss_param"),  # its name until 0.90
    "reg:squaredlogerror": ("identity", "reg_loss_param"),
    "reg:absoluteerror": ("identity", "reg_loss_param"),
    "reg:pseudohubererror": ("identity", "pseudo_huber_param"),
    "reg:quantileerror": ("identity", "quantile_loss_param"),
    "count:poisson": ("exp", "poisson_regression_param"),
    "reg:gamma": ("exp", "reg_loss_param"),
    "reg:tweedie": ("exp", "tweedie_regression_param"),
    **dict.fromkeys(RANKERS, ("identity", "lambdarank_param")),
}
OBJECTIVES = (*CLASSES, *NUMBERS)
_OF_DART = (".gbtree.model", ".model")


class XGBoostFile(msgspec.Struct, frozen=True, eq=False):
    """
    The checked content of an XGBoost file.

    Attributes:
        document: The file, with `weight_drop` in the form `dart` of XGBoost 1.0 to 3.2.
        columns: Number of features.
        base_score: Base score as written: a probability or a number for one output,
            else margins; float32.
        link: Function from a margin to the answer.
        outputs: Class of each tree.
        weights: Factor of each tree; float32.
        rewritten: True if the document differs from the file.
        missing: Number that stands for a missing value, if the file has one.
    """

    document: dict[str, Any]
    columns: int
    base_score: npt.NDArray[np.float32]
    trees: tuple[FileTree, ...]
    outputs: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    rewritten: bool
    missing: float | None = None
    link: str = "logistic"


def read_xgboost_file(data: bytes, *, installed: tuple[int, int]) -> XGBoostFile:
    """
    Check a JSON or UBJSON file.

    Args:
        installed: Major and minor version of the xgboost that will predict.

    Raises:
        ConversionError: It is damaged, newer than supported, or has a field that is not
            read; the error names the field.
    """
    try:
        document = decode(data)
        return checked(document, installed=installed)
    except BadField as error:
        raise ConversionError(str(error)) from error


def decode(data: bytes) -> dict[str, Any]:
    """
    Decode JSON or UBJSON to objects, lists and NumPy arrays.

    Raises:
        ConversionError: It is neither, truncated, or has a field twice.
    """
    try:
        if data.lstrip()[1:].lstrip()[:1] in (b'"', b"}"):
            found = json.loads(data, object_pairs_hook=_once)
        else:
            found = decode_ubjson(data)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"xgboost cannot read it: {error}") from error
    if not isinstance(found, dict):
        raise ConversionError("xgboost cannot read it: it is no object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!r} stands twice in one object")
    return found


def encode(document: Mapping[str, Any]) -> bytes:
    """Encode a document as JSON that every xgboost reads."""
    return json.dumps(document, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)


def checked(document: dict[str, Any], *, installed: tuple[int, int]) -> XGBoostFile:
    """Check a decoded document; raise BadField or ConversionError."""
    version = _version(document, installed=installed)
    learner = object_at(document, "learner")
    booster = object_at(learner, "gradient_booster", at="learner")
    kind = text_at(booster, "name", at="learner.gradient_booster")
    if kind not in ("gbtree", "dart"):
        raise ConversionError(
            f"booster is {kind!r}; only 'gbtree' and 'dart' are converted"
        )
    objective = object_at(learner, "objective", at="learner")
    name = text_at(objective, "name", at="learner.objective")
    if name not in OBJECTIVES:
        raise ConversionError(
            f"objective is {name!r}; converted are {', '.join(OBJECTIVES)}"
        )
    unknown = unknown_field(document, XGBOOST, rename=_OF_DART)
    if unknown is not None:
        raise BadField(*unknown)
    at, model, weights, rewritten = _trees_and_weights(booster, kind=kind)
    columns, classes, base = _learner_numbers(learner, objective=objective, name=name)
    count = count_at(object_at(model, "gbtree_model_param", at=at), "num_trees", at=at)
    trees = _trees(model, at=at, columns=columns, count=count)
    outputs = whole_at(model, "tree_info", at=at, size=count, low=0, high=classes)
    rounds = _rounds(model, at=at, count=count, outputs=outputs, classes=classes)
    _check_best(learner, rounds=rounds, version=version, model=model)
    _check_columns(learner, columns=columns, trees=trees)
    _check_categories(model, at=at, columns=columns)
    if weights is None:
        factors = np.ones(count, np.float32)
    else:
        place, values = weights
        factors = numbers_at(values, "weight_drop", at=place, size=count)
    most = sum(
        float(np.abs(one.leaves.astype(np.float64)).max(initial=0.0)) * abs(float(way))
        for one, way in zip(trees, factors, strict=True)
    )
    if most > float(np.finfo(np.float32).max):
        raise BadField(f"{at}.trees", "has leaves that add up to infinity in float32")
    return XGBoostFile(
        document=_as_dart(document) if rewritten else document,
        columns=columns,
        base_score=base,
        link=NUMBERS[name][0] if name in NUMBERS else "logistic",
        trees=trees,
        outputs=outputs,
        weights=factors,
        rewritten=rewritten,
        missing=_missing(learner),
    )


def _version(
    document: Mapping[str, Any], *, installed: tuple[int, int]
) -> tuple[int, int]:
    parts = document.get("version")
    found = list(parts) if isinstance(parts, (list, np.ndarray)) else []
    if len(found) != 3 or not all(
        isinstance(one, (int, np.integer)) and not isinstance(one, bool)
        for one in found
    ):
        raise BadField("version", f"is {parts!r}; needed are three whole numbers")
    version = (int(found[0]), int(found[1]))
    version_text = ".".join(str(one) for one in found)
    newest = max(NEWEST, installed)
    if version > newest:
        raise ConversionError(
            f"was written by XGBoost {version_text}; read are files up to "
            f"{newest[0]}.{newest[1]} (installed is {installed[0]}.{installed[1]}): "
            "train or save the model with one of those, or export it to ONNX there "
            "and adopt that"
        )
    if version < OLDEST:
        raise BadField("version", f"is {version_text}; XGBoost writes JSON since 1.0")
    return version


def _trees_and_weights(
    booster: dict[str, Any], *, kind: str
) -> tuple[str, dict[str, Any], tuple[str, dict[str, Any]] | None, bool]:
    """Return path and object of the trees, and the place of the weights or None."""
    path = "learner.gradient_booster"
    if kind == "gbtree":
        for name in ("gbtree", "weight_drop"):
            if name in booster:
                raise BadField(f"{path}.{name}", "belongs to the booster 'dart'")
        model = object_at(booster, "model", at=path)
        at = f"{path}.model"
        if "weight_drop" not in model:
            return at, model, None, False
        return at, model, (at, model), True
    if "model" in booster:
        raise BadField(f"{path}.model", "belongs to the booster 'gbtree'")
    inner = object_at(booster, "gbtree", at=path)
    if text_at(inner, "name", at=f"{path}.gbtree") != "gbtree":
        raise BadField(f"{path}.gbtree.name", "must be 'gbtree'")
    model = object_at(inner, "model", at=f"{path}.gbtree")
    at = f"{path}.gbtree.model"
    if "weight_drop" in model:
        raise BadField(f"{at}.weight_drop", "stands in gradient_booster too")
    return at, model, (path, booster), False


def _as_dart(document: dict[str, Any]) -> dict[str, Any]:
    """Write the weights of a 3.4 model as XGBoost 1.0 to 3.2 do; 3.4 reads both."""
    learner = document["learner"]
    model = dict(learner["gradient_booster"]["model"])
    weights = model.pop("weight_drop")
    booster = {
        "name": "dart",
        "gbtree": {"name": "gbtree", "model": model},
        "weight_drop": weights,
    }
    return document | {"learner": learner | {"gradient_booster": booster}}


def _learner_numbers(
    learner: dict[str, Any], *, objective: dict[str, Any], name: str
) -> tuple[int, int, npt.NDArray[np.float32]]:
    """Return columns, outputs, and the start value of every row."""
    at = "learner.learner_model_param"
    param = object_at(learner, "learner_model_param", at="learner")
    columns = count_at(param, "num_feature", at=at)
    if not columns:
        raise BadField(f"{at}.num_feature", "is 0")
    classes = count_at(param, "num_class", at=at)
    targets = count_at(param, "num_target", at=at, default=1)
    if targets != 1:
        raise ConversionError(
            f"{targets} labels per row; a decision needs one label of 2 classes or more"
        )
    several = name.startswith("multi:")
    if several != (classes >= 2) or (not several and classes > 1):
        raise BadField(f"{at}.num_class", f"is {classes}, the objective is {name!r}")
    own = "softmax_multiclass_param" if several else "reg_loss_param"
    link, own = NUMBERS.get(name, ("logistic", own))
    if other := set(objective) - {"name", own}:
        raise BadField(
            f"learner.objective.{sorted(other)[0]}", f"is not of the objective {name!r}"
        )
    if several and own in objective:
        place = f"learner.objective.{own}"
        again = count_at(
            object_at(objective, own, at="learner.objective"), "num_class", at=place
        )
        if again != classes:
            raise BadField(
                f"{place}.num_class", f"is {again}, learner_model_param has {classes}"
            )
    if (chosen := param.get("boost_from_average", "1")) not in ("0", "1"):
        raise BadField(f"{at}.boost_from_average", f"is {chosen!r}, neither 0 nor 1")
    outputs = classes if several else 1
    return columns, outputs, _base_score(param, outputs=outputs, link=link)


def _base_score(
    param: Mapping[str, Any], *, outputs: int, link: str
) -> npt.NDArray[np.float32]:
    at = "learner.learner_model_param"
    text = text_at(param, "base_score", at=at)
    inside = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text
    try:
        found = np.asarray([json.loads(one) for one in inside.split(",")], np.float32)
    except (ValueError, TypeError) as error:
        raise BadField(f"{at}.base_score", f"is {text!r}, no number") from error
    if len(found) not in (1, outputs) or not np.isfinite(found).all():
        raise BadField(
            f"{at}.base_score",
            f"is {text!r}; needed is a number, or one for each of {outputs} outputs",
        )
    if link == "exp" and not float(found[0]) > 0:
        problem = f"is {text!r}; an answer of this objective is above 0"
        raise BadField(f"{at}.base_score", problem)
    if outputs == 1 and link == "logistic" and not 0 < float(found[0]) < 1:
        raise BadField(
            f"{at}.base_score", f"is {text!r}, no probability between 0 and 1"
        )
    return np.broadcast_to(found, (outputs,)).copy()


def _trees(
    model: dict[str, Any], *, at: str, columns: int, count: int
) -> tuple[FileTree, ...]:
    trees = model.get("trees")
    if not isinstance(trees, list) or not all(isinstance(one, dict) for one in trees):
        raise BadField(f"{at}.trees", "is no list of trees")
    if len(trees) != count:
        raise BadField(
            f"{at}.gbtree_model_param.num_trees", f"is {count} for {len(trees)} trees"
        )
    if not trees:
        raise ConversionError("the model has no trees")
    return tuple(
        checked_tree(tree, at=f"{at}.trees[{number}]", number=number, columns=columns)
        for number, tree in enumerate(trees)
    )


def _rounds(
    model: dict[str, Any],
    *,
    at: str,
    count: int,
    outputs: npt.NDArray[np.int64],
    classes: int,
) -> int:
    """Return the number of rounds; each has as many trees of every class."""
    param = model["gbtree_model_param"]
    if count_at(param, "size_leaf_vector", at=at, default=0) > 1:
        raise BadField(f"{at}.gbtree_model_param.size_leaf_vector", "is more than 1")
    parallel = count_at(param, "num_parallel_tree", at=at, default=1)
    size = max(1, parallel) * classes
    ends = model.get("iteration_indptr")
    if ends is None:
        ends = np.arange(0, count + 1, size)
    else:
        ends = whole_at(model, "iteration_indptr", at=at, low=0, high=count + 1)
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != count or (np.diff(ends) <= 0).any():
        raise BadField(f"{at}.iteration_indptr", f"does not divide {count} trees")
    for number, (start, stop) in enumerate(itertools.pairwise(ends)):
        of_class = np.bincount(outputs[start:stop], minlength=classes)
        if (of_class != of_class[0]).any():
            raise BadField(
                f"{at}.tree_info", f"gives round {number} {of_class.tolist()} trees"
            )
    return len(ends) - 1


def _check_best(
    learner: dict[str, Any], *, rounds: int, version: tuple[int, int], model: Any
) -> None:
    at = "learner.attributes"
    attributes = object_at(learner, "attributes", at="learner", default={})
    for name, value in attributes.items():
        if not isinstance(value, str):
            raise BadField(f"{at}.{name}", f"is {value!r}, no text")
    if "best_iteration" not in attributes:
        return
    best = count_at(attributes, "best_iteration", at=at)
    if best >= rounds:
        raise BadField(f"{at}.best_iteration", f"is {best}; there are {rounds} rounds")
    parallel = model["gbtree_model_param"].get("num_parallel_tree")
    if parallel is None and best + 1 < rounds:
        raise BadField(
            f"{at}.best_iteration",
            f"is {best}, and a file of XGBoost {version[0]}.{version[1]} does not say "
            "how many trees a round has: cut the model there before it is saved",
        )
    if "best_ntree_limit" in attributes and parallel is not None:
        limit = count_at(attributes, "best_ntree_limit", at=at)
        if limit != (best + 1) * max(1, int(parallel)):
            raise BadField(
                f"{at}.best_ntree_limit", f"is {limit}, best_iteration is {best}"
            )


def _missing(learner: dict[str, Any]) -> float | None:
    """Return the missing value that an XGBoost 1.x classifier noted; None for NaN."""
    at = "learner.attributes.scikit_learn"
    note = learner.get("attributes", {}).get("scikit_learn")
    if note is None:
        return None
    try:
        found = json.loads(note)
        value = found.get("missing") if isinstance(found, dict) else None
        missing = math.nan if value is None else float(value)
    except (ValueError, TypeError) as error:
        raise BadField(at, "is no JSON") from error
    return None if math.isnan(missing) else missing


def _check_columns(
    learner: dict[str, Any], *, columns: int, trees: tuple[FileTree, ...]
) -> None:
    for name in ("feature_names", "feature_types"):
        found = learner.get(name, [])
        if not isinstance(found, list) or not all(isinstance(x, str) for x in found):
            raise BadField(f"learner.{name}", "is no list of texts")
        if len(found) not in (0, columns):
            raise BadField(f"learner.{name}", f"has {len(found)} for {columns} columns")
    names = learner.get("feature_names", [])
    if len(set(names)) != len(names):
        raise BadField("learner.feature_names", "has a name twice")
    types = learner.get("feature_types", [])
    for column, kind in enumerate(types):
        if kind not in ("q", "i", "int", "float", "c"):
            raise BadField(f"learner.feature_types[{column}]", f"is {kind!r}")
    for number, tree in enumerate(trees):
        for node in tree.codes:
            column = int(tree.feature[node])
            if types and types[column] != "c":
                raise BadField(
                    f"learner.feature_types[{column}]",
                    f"is {types[column]!r}, but tree {number} tests categories of it",
                )


# XGBoost's numbers for the integer types of typed arrays (its `Value::ValueKind`).
_WHOLE_TYPES: dict[int, type[np.integer[Any]]] = {
    9: np.int8,
    10: np.uint8,
    11: np.int16,
    12: np.uint16,
    13: np.int32,
    14: np.uint32,
    15: np.int64,
}


def _check_categories(model: dict[str, Any], *, at: str, columns: int) -> None:
    """Check that the three parts of `cats` agree."""
    if "cats" not in model:
        return
    cats = object_at(model, "cats", at=at)
    entries = cats.get("enc", [])
    path = f"{at}.cats"
    if not isinstance(entries, list) or not all(isinstance(x, dict) for x in entries):
        raise BadField(f"{path}.enc", "is no list of categories")
    if len(entries) not in (0, columns):
        raise BadField(f"{path}.enc", f"has {len(entries)} for {columns} columns")
    starts, order = [0], []
    for number, entry in enumerate(entries):
        known = _known(entry, at=f"{path}.enc[{number}]")
        if len(set(known)) != len(known):
            raise BadField(f"{path}.enc[{number}]", "has a category twice")
        order += sorted(range(len(known)), key=known.__getitem__)
        starts.append(starts[-1] + len(known))
    if not entries:
        return
    segments = whole_at(cats, "feature_segments", at=path)
    sorted_at = whole_at(cats, "sorted_idx", at=path)
    if list(segments) != starts:
        raise BadField(f"{path}.feature_segments", f"is not that of enc: {starts}")
    if len(sorted_at) != len(order):
        raise BadField(f"{path}.sorted_idx", f"has {len(sorted_at)} of {len(order)}")
    if list(sorted_at) != order:
        raise BadField(f"{path}.sorted_idx", "is not the order of the words in enc")


def _known(entry: dict[str, Any], *, at: str) -> list[Any]:
    if "offsets" not in entry:
        kind = entry.get("type")
        if not isinstance(kind, int) or kind not in _WHOLE_TYPES:
            raise BadField(f"{at}.type", f"is {kind!r}, no type of whole numbers")
        limits = np.iinfo(_WHOLE_TYPES[kind])
        low, high = int(limits.min), int(limits.max) + 1
        return list(whole_at(entry, "values", at=at, low=low, high=high))
    values = whole_at(entry, "values", at=at, low=-128, high=256)
    offsets = whole_at(entry, "offsets", at=at, low=0, high=len(values) + 1)
    if (np.diff(offsets) < 0).any():
        raise BadField(f"{at}.offsets", "do not ascend")
    body = values.astype(np.uint8).tobytes()
    return [body[a:b] for a, b in itertools.pairwise(offsets)]
