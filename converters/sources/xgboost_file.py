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

from converters.sources.format_fields import XGBOOST, unknown_field
from converters.sources.ubjson import decode_ubjson
from converters.sources.xgboost_fields import (
    BadField,
    count_at,
    numbers_at,
    object_at,
    text_at,
    whole_at,
)
from converters.sources.xgboost_tree_check import FileTree, checked_tree
from tollgate.errors import ConversionError

# Real files of these releases were read and compared with their own predictions.
OLDEST, NEWEST = (1, 0), (3, 4)
OBJECTIVES = ("binary:logistic", "reg:logistic", "multi:softprob", "multi:softmax")
_OF_DART = (".gbtree.model", ".model")


class FileModel(msgspec.Struct, frozen=True, eq=False):
    """
    The checked content of an XGBoost file.

    Attributes:
        document: The file, with `weight_drop` in the form `dart` of XGBoost 1.0 to 3.2.
        columns: Number of features.
        base_score: Base score as written: a probability for one output, else margins;
            float32.
        trees: Trees in order.
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


def read_xgboost_file(data: bytes, *, installed: tuple[int, int]) -> FileModel:
    """
    Check a JSON or UBJSON file.

    Args:
        data: Content of the file.
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


def checked(document: dict[str, Any], *, installed: tuple[int, int]) -> FileModel:
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
    return FileModel(
        document=_as_dart(document) if rewritten else document,
        columns=columns,
        base_score=base,
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
    return columns, outputs, _base_score(param, outputs=outputs)


def _base_score(param: Mapping[str, Any], *, outputs: int) -> npt.NDArray[np.float32]:
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
    if outputs == 1 and not 0 < float(found[0]) < 1:
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
    """
    Return the missing value that an XGBoost 1.x classifier recorded; None for NaN.
    """
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
