"""Rebuild a model that another environment exported as plain data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from converters.model import TrainedModel, plain_classes, plain_parameters
from converters.sources.described import DescribedModel
from converters.sources.plain_state import PlainStateError, from_bytes
from tollgate.errors import ConversionError


def read_plain(path: Path) -> TrainedModel:
    """
    Read a model that `environment_worker` wrote.

    Raises:
        ConversionError: Our libraries cannot load it, or it cannot be converted
            faithfully.
    """
    line, _, body = path.read_bytes().partition(b"\n")
    head: dict[str, Any] = json.loads(line)
    if head["library"] == "xgboost":
        from xgboost import Booster

        from converters.sources.xgboost import XGBoostModel

        booster = Booster()
        booster.load_model(bytearray(body))
        return _described(XGBoostModel(booster, missing=head["missing"]), head)
    if head["library"] == "lightgbm":
        import lightgbm

        from converters.sources.lightgbm import LightGbmModel

        found = lightgbm.Booster(model_str=body.decode())
        found.pandas_categorical = head["categories"]
        return _described(LightGbmModel(found), head)
    from converters.sources.sklearn import SklearnModel

    try:
        return SklearnModel(from_bytes(body))
    except PlainStateError as error:
        raise ConversionError(str(error)) from error


def _described(model: TrainedModel, head: dict[str, Any]) -> TrainedModel:
    """Set the classes and parameters of the classifier that a booster comes from."""
    classes = head.get("classes")
    facts = msgspec.structs.replace(
        model.facts,
        classes=model.facts.classes if classes is None else plain_classes(classes),
        parameters=plain_parameters(head["parameters"]),
    )
    return DescribedModel(model, facts)
