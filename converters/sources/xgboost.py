"""Use a trained XGBoost classifier as a source."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import numpy as np
import xgboost
from xgboost import Booster, XGBClassifier, XGBRegressor

from converters.boundaries import made_rows
from converters.explain import explained
from converters.explain_xgboost import explain_xgboost
from converters.graph_edit import cast_first
from converters.model import (
    F32,
    F64,
    Facts,
    Floats,
    Probes,
    plain_classes,
    plain_parameters,
)
from converters.onnx_from_xgboost import (
    column_types,
    missing_value,
    onnx_from_xgboost,
    served_booster,
    sliced_booster,
)
from converters.probes import probes
from converters.prune_xgboost import pruned_booster
from converters.sources.xgboost_arithmetic import require_agreement
from converters.sources.xgboost_file import encode, read_xgboost_file
from converters.vocabulary import of_trees, of_xgboost
from converters.xgboost_trees import trees_from_xgboost
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation


class XGBoostModel:
    """
    A classifier in memory, or its trees alone.

    Args:
        model: Classifier or booster.
        missing: Number that stands for a missing value; None takes the model's.

    Raises:
        ConversionError: A model of this kind cannot be converted faithfully.
    """

    def __init__(
        self,
        model: XGBClassifier | XGBRegressor | Booster,
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
        """Return the facts about it."""
        learner = json.loads(self._served.save_config())["learner"]
        classes = max(2, int(learner["learner_model_param"]["num_class"]))
        labels: tuple[int | str, ...] = tuple(range(classes))
        parameters: dict[str, object] = {}
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
        )

    def predict(self, rows: Floats) -> F64:
        """Return the probabilities of rows [N, F] as float64 [N, K]."""
        if isinstance(self._model, XGBClassifier) and self._own_missing():
            return np.asarray(self._model.predict_proba(rows), dtype=np.float64)
        margin = np.asarray(
            self._answering.inplace_predict(
                rows, missing=self._missing, predict_type="margin"
            ),
            dtype=np.float64,
        )
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
        """
        Return the trees in the JSON form in which they were saved, with categories.
        """
        model = self._model
        booster = model if isinstance(model, Booster) else model.get_booster()
        return bytes(booster.save_raw("json"))

    def convert(self, *, wide: bool = False) -> bytes:
        """Return the model as ONNX; XGBoost itself rounds to float32."""
        found = onnx_from_xgboost(self._model, missing=self._missing)
        return cast_first(found) if wide else found

    def explanation(self) -> Explanation:
        """Return its trees and their covers."""
        facts = self.facts
        return explained(
            lambda: explain_xgboost(self._served, facts=facts, missing=self._missing),
            facts=facts,
        )

    def probes(self, samples: F32 | None) -> Probes:
        """
        Return sample rows (generated when None), rows around every split, extremes.
        """
        if samples is None:
            samples = made_rows(self._trees, columns=self._served.num_features())
        return probes(samples, self._trees)

    def pruned(self, *, trees: int | None, depth: int | None) -> XGBoostModel:
        """
        Return a copy with fewer or shallower trees.

        Raises:
            ConversionError: See `pruned_booster`.
        """
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
