"""Use a trained XGBoost model as a source."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xgboost
from xgboost import Booster, XGBClassifier, XGBRanker, XGBRegressor

from converters.compression.prune_xgboost import pruned_booster
from converters.explain.explain_trees import explain_xgboost
from converters.explain.explanation import explained, explained_number
from converters.model import (
    F32,
    F64,
    Facts,
    Floats,
    Probes,
    plain_classes,
    plain_parameters,
)
from converters.onnx.from_xgboost import (
    column_types,
    missing_value,
    number_link,
    onnx_from_xgboost,
    served_booster,
    sliced_booster,
)
from converters.onnx.graph import cast_first
from converters.parity.boundaries import made_rows
from converters.parity.probe_rows import probes
from converters.sources.files.xgboost_file import (
    RANKERS,
    FileTree,
    XGBoostFile,
    encode,
    read_xgboost_file,
)
from converters.trees.xgboost_trees import trees_from_xgboost
from converters.vocabulary import of_trees, of_xgboost
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation

# Recompute the output of an XGBoost file, and compare xgboost's output with it.
#
# The code shares nothing with xgboost and nothing with the converter. So it detects a
# library that ignores or misreads a field of the file, before that library serves as
# the source of a proof.

ROWS = 256
# Tolerance for float32 sums, relative to the sum of all leaves.
_SLACK = 1e-6
_MISSING_SHARE = 0.1


def file_margins(model: XGBoostFile, rows: F32) -> F64:
    """Return the margins [N, K] of rows; NaN is a missing value."""
    base = model.base_score.astype(np.float64)
    if len(base) == 1 and model.link == "logistic":
        base = np.log(base / (1 - base))
    elif model.link == "exp":
        base = np.log(base)
    found = np.tile(base, (len(rows), 1))
    for tree, output, weight in zip(
        model.trees, model.outputs, model.weights, strict=True
    ):
        leaf = tree.value[_leaves(tree, rows)].astype(np.float64)
        found[:, output] += float(weight) * leaf
    return found


def _leaves(tree: FileTree, rows: F32) -> npt.NDArray[np.int64]:
    at = np.zeros(len(rows), np.int64)
    each = np.arange(len(rows))
    while (inner := tree.left[at] >= 0).any():
        node = at[inner]
        value = rows[each[inner], tree.feature[node]]
        left = value < tree.value[node]
        for split in np.unique(node):
            if int(split) in tree.codes:
                here = node == split
                left[here] = ~np.isin(value[here], tree.codes[int(split)])
        left = np.where(np.isnan(value), tree.missing_left[node], left)
        at[inner] = np.where(left, tree.left[node], tree.right[node])
    return at


def require_agreement(booster: Booster, model: XGBoostFile) -> None:
    """
    Compare xgboost's margins with the file's own on rows around its thresholds.

    Args:
        booster: Booster as xgboost read it, without column names and types.
        model: Model as our reader read it.

    Raises:
        ConversionError: They differ: xgboost misreads the file.
    """
    rows = _rows(model)
    expected = file_margins(model, rows)
    found = np.asarray(
        booster.inplace_predict(rows, missing=np.nan, predict_type="margin"), np.float64
    ).reshape(len(rows), -1)
    size = 1.0 + sum(
        float(np.abs(tree.leaves).max()) * abs(float(weight))
        for tree, weight in zip(model.trees, model.weights, strict=True)
    )
    delta = np.abs(found - expected).max() if found.shape == expected.shape else np.inf
    if not delta <= _SLACK * size:
        raise ConversionError(
            f"xgboost {xgboost.__version__} answers otherwise than the numbers in the "
            f"file say (margins differ by {delta:.3g}): install the version that wrote "
            "it, or export it to ONNX there and adopt that"
        )


def _rows(model: XGBoostFile) -> F32:
    """Draw each column from its thresholds, values just below, its codes, and NaN."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(ROWS, model.columns)).astype(np.float32)
    values: dict[int, list[npt.NDArray[np.float32]]] = {}
    for tree in model.trees:
        for node in np.flatnonzero(tree.left >= 0):
            column = int(tree.feature[node])
            codes = tree.codes.get(int(node))
            if codes is None:
                on = tree.value[node : node + 1]
                both = np.concatenate([on, np.nextafter(on, np.float32(-np.inf))])
            else:
                both = np.arange(codes.max() + 2).astype(np.float32)[-1000:]
            values.setdefault(column, []).append(both)
    for column, found in values.items():
        rows[:, column] = random.choice(np.concatenate(found), ROWS)
    rows[random.random(rows.shape) < _MISSING_SHARE] = np.nan
    return rows


class XGBoostModel:
    """
    A `TrainedModel` of an estimator in memory, or of its trees alone.

    Args:
        model: Classifier, regressor, ranker or booster.
        missing: Number that stands for a missing value; None takes the model's.

    Raises:
        ConversionError: A model of this kind cannot be converted faithfully.
    """

    def __init__(
        self,
        model: XGBClassifier | XGBRegressor | XGBRanker | Booster,
        *,
        missing: float | None = None,
    ) -> None:
        self._model = model
        # A DART model predicts with its own weights; its trees are converted with the
        # weights inside, so that the proof compares the two.
        self._answering = sliced_booster(model)
        self._served = served_booster(model)
        self._missing = missing_value(model) if missing is None else missing
        self._trees = trees_from_xgboost(self._served)

    @property
    def facts(self) -> Facts:
        learner = json.loads(self._served.save_config())["learner"]
        classes = max(2, int(learner["learner_model_param"]["num_class"]))
        labels: tuple[int | str, ...] = tuple(range(classes))
        parameters: dict[str, object] = {}
        number = number_link(self._served) is not None
        if number:
            labels = ("value",)
            if isinstance(self._model, (XGBRegressor, XGBRanker)):
                parameters = self._model.get_params()
        if isinstance(self._model, XGBClassifier):
            labels = plain_classes(self._model.classes_)
            parameters = self._model.get_params()
        names = (
            self._model.feature_names
            if isinstance(self._model, Booster)
            else self._model.get_booster().feature_names
        )
        return Facts(
            framework="xgboost",
            version=xgboost.__version__,
            objective=learner["objective"]["name"],
            classes=labels,
            columns=self._served.num_features(),
            names=None if names is None else tuple(names),
            trees=len(self._trees),
            parameters=plain_parameters(parameters),
            converter="tollgate",
            categories=of_trees(self._trees) | of_xgboost(self._raw()),
            number=number,
            ranks=learner["objective"]["name"] in RANKERS,
        )

    def predict(self, rows: Floats) -> F64:
        if isinstance(self._model, XGBClassifier) and self._own_missing():
            return np.asarray(self._model.predict_proba(rows), dtype=np.float64)
        margin = np.asarray(
            self._answering.inplace_predict(
                rows, missing=self._missing, predict_type="margin"
            ),
            dtype=np.float64,
        )
        link = number_link(self._served)
        if link is not None:
            with np.errstate(over="ignore"):
                return np.asarray(np.exp(margin) if link == "exp" else margin)[:, None]
        if margin.ndim == 1:
            second = 1 / (1 + np.exp(-margin))
            return np.stack([1 - second, second], axis=1)
        power = np.exp(margin - margin.max(axis=1, keepdims=True))
        found: F64 = power / power.sum(axis=1, keepdims=True)
        return found

    def _own_missing(self) -> bool:
        own = missing_value(self._model)
        return own == self._missing or (math.isnan(own) and math.isnan(self._missing))

    def _raw(self) -> bytes:
        """Return the trees in the JSON form they were saved in, with categories."""
        model = self._model
        booster = model if isinstance(model, Booster) else model.get_booster()
        return bytes(booster.save_raw("json"))

    def convert(self, *, wide: bool = False) -> bytes:
        """Return the model as ONNX; XGBoost itself rounds to float32."""
        found = onnx_from_xgboost(self._model, missing=self._missing)
        return cast_first(found) if wide else found

    def explanation(self) -> Explanation:
        facts = self.facts
        if facts.number:
            return explained_number(facts)
        return explained(
            lambda: explain_xgboost(self._served, facts=facts, missing=self._missing),
            facts=facts,
        )

    def probes(self, samples: F32 | None) -> Probes:
        if samples is None:
            samples = made_rows(self._trees, columns=self._served.num_features())
        return probes(samples, self._trees)

    def pruned(self, *, trees: int | None, depth: int | None) -> XGBoostModel:
        booster = pruned_booster(self._served, trees=trees, depth=depth)
        if isinstance(self._model, Booster):
            booster.feature_names = self._model.feature_names
            return XGBoostModel(booster, missing=self._missing)
        booster.feature_names = self._model.get_booster().feature_names
        smaller = copy.copy(self._model)
        smaller._Booster = booster
        return XGBoostModel(smaller, missing=self._missing)


def read_xgboost(path: Path, *, missing: float | None = None) -> XGBoostModel:
    """
    Read a JSON or UBJSON file; unknown fields are refused.

    Raises:
        ConversionError: It cannot be read or converted.
    """
    booster, noted = checked_booster(path.read_bytes())
    if noted is not None and missing is None:
        raise ConversionError(
            "learner.attributes.scikit_learn: a missing value was written as "
            f"{noted:g} in training; convert with {noted:g} as the missing value"
        )
    return XGBoostModel(booster, missing=missing)


def checked_booster(data: bytes) -> tuple[Booster, float | None]:
    """
    Check a file, let xgboost read it, and compare its predictions with the file.

    Returns:
        The booster, and the missing value that the file records.

    Raises:
        ConversionError: It cannot be read, or xgboost misreads it.
    """
    major, minor, *_ = xgboost.__version__.split(".")
    model = read_xgboost_file(data, installed=(int(major), int(minor)))
    booster = Booster()
    try:
        booster.load_model(bytearray(encode(model.document)))
        plain = copy.copy(booster)
    except (xgboost.core.XGBoostError, ValueError) as error:
        raise ConversionError(f"xgboost cannot read it: {first_line(error)}") from error
    plain.feature_names = None
    plain.feature_types = column_types(plain)
    require_agreement(plain, model)
    return booster, model.missing


def first_line(error: Exception) -> str:
    """Return the message of an xgboost error, without its time and stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition("] ")[2] or lines[0] if lines else type(error).__name__
