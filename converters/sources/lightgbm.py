"""Use a trained LightGBM model as a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnxmltools

from converters.compression.prune_lightgbm import pruned_text
from converters.explain.explain_trees import explain_lightgbm
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
from converters.onnx.from_lightgbm import (
    number_link,
    onnx_from_lightgbm,
    refuse_unfaithful,
    served_text,
)
from converters.parity.boundaries import made_rows
from converters.parity.probe_rows import probes
from converters.sources.files.lightgbm_file import (
    RANKERS,
    TextModel,
    read_lightgbm_text,
)
from converters.trees.lightgbm_trees import header, trees_from_lightgbm
from converters.vocabulary import of_lightgbm, of_trees
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation

# Recompute the output of a LightGBM text, and compare lightgbm's output with it.
#
# The code shares nothing with lightgbm and nothing with the converter. So it detects a
# library that ignores or misreads a key of the text, before that library serves as the
# source of a proof.

ROWS = 256
_SLACK = 1e-9  # relative to the sum of all leaves
_MISSING_SHARE = 0.1


def text_sums(model: TextModel, rows: F32) -> F64:
    """Return the sums of the rows' leaves, [N, K]; NaN is a missing value."""
    found = np.zeros((len(rows), model.outputs))
    for number, tree in enumerate(model.trees):
        found[:, number % model.outputs] += tree.leaf_value[tree.leaves(rows)]
    return found


def text_probabilities(model: TextModel, sums: F64) -> F64:
    """Return P(class 1), [N, 1], or a probability of each class, [N, K]."""
    rounds = len(model.trees) // model.outputs
    margins = model.sigmoid * (sums / rounds if model.averaged else sums)
    if model.link is not None:
        if model.link == "square":
            return np.asarray(np.sign(margins) * margins**2)
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(margins) if model.link == "exp" else margins)
    if model.outputs == 1:
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-margins)))
    power = np.exp(margins - margins.max(axis=1, keepdims=True))
    return np.asarray(power / power.sum(axis=1, keepdims=True))


def require_agreement(booster: lightgbm.Booster, model: TextModel) -> None:
    """
    Compare lightgbm's predictions with the text's own on rows around its thresholds.

    Args:
        booster: Model as lightgbm read it.
        model: Model as our reader read it.

    Raises:
        ConversionError: They differ: lightgbm misreads the text.
    """
    rows = _rows(model)
    sums = text_sums(model, rows)
    size = 1.0 + sum(float(np.abs(tree.leaf_value).max()) for tree in model.trees)
    for raw, expected, scale in (
        (True, sums, size),  # lightgbm does not divide its raw scores
        (False, text_probabilities(model, sums), 1.0),
    ):
        found = np.asarray(
            booster.predict(rows, raw_score=raw, num_threads=1), np.float64
        ).reshape(len(rows), -1)
        if found.shape != expected.shape or not (
            (np.abs(found - expected) <= _SLACK * np.maximum(scale, expected)).all()
        ):
            raise ConversionError(
                f"lightgbm {lightgbm.__version__} answers otherwise than the numbers "
                "in the file say: install the version that wrote it, or export it to "
                "ONNX there and adopt that"
            )


def _rows(model: TextModel) -> F32:
    """Draw each column from its thresholds, values just below, its codes, 0 and NaN."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(ROWS, model.columns)).astype(np.float32)
    values: dict[int, list[F32]] = {}
    for tree in model.trees:
        for node, column in enumerate(tree.feature):
            codes = tree.codes.get(node)
            if codes is None:
                with np.errstate(over="ignore"):
                    on = np.float32(tree.threshold[node])
                both = np.asarray([on, np.nextafter(on, np.float32(-np.inf)), 0])
            else:
                both = np.arange(max(codes, default=0) + 2)[-1000:]
            values.setdefault(int(column), []).append(both.astype(np.float32))
    for column, found in values.items():
        rows[:, column] = random.choice(np.concatenate(found), ROWS)
    rows[random.random(rows.shape) < _MISSING_SHARE] = np.nan
    return rows


class LightGbmModel:
    """
    A `TrainedModel` in memory.

    Args:
        model: Its Booster, or the classifier, regressor or ranker that holds it.

    Raises:
        ConversionError: A model of this kind cannot be converted faithfully.
    """

    def __init__(self, model: Any) -> None:
        self._labels: tuple[int | str, ...] | None = None
        self._parameters: dict[str, object] = {}
        if isinstance(model, lightgbm.LGBMClassifier):
            if not model.__sklearn_is_fitted__():
                raise ConversionError(
                    "the LGBMClassifier is not trained; call fit first"
                )
            self._labels = plain_classes(model.classes_)
            self._parameters = model.get_params()
            model = model.booster_
        elif isinstance(model, (lightgbm.LGBMRegressor, lightgbm.LGBMRanker)):
            if not model.__sklearn_is_fitted__():
                name = type(model).__name__
                raise ConversionError(f"the {name} is not trained; call fit first")
            self._parameters = model.get_params()
            model = model.booster_
        elif not isinstance(model, lightgbm.Booster):
            raise ConversionError(
                f"cannot convert a {type(model).__name__}; needed is a classifier, "
                "a regressor or a ranker"
            )
        self._booster = model
        self._text = served_text(model)
        refuse_unfaithful(self._text)
        self._trees = trees_from_lightgbm(self._text)

    @property
    def facts(self) -> Facts:
        objective = header(self._text, "objective").partition(" ")[0]
        ranks = objective in RANKERS
        number = number_link(self._text) is not None
        classes = max(2, int(header(self._text, "num_class")))
        known = ("value",) if number else tuple(range(classes))
        categories, unplaced = of_lightgbm(
            self._booster.pandas_categorical,
            infos=header(self._text, "feature_infos").split(),
        )
        return Facts(
            framework="lightgbm",
            version=lightgbm.__version__,
            objective=objective,
            classes=self._labels or known,
            number=number,
            ranks=ranks,
            columns=self._booster.num_feature(),
            names=_names(self._booster),
            trees=len(self._trees),
            parameters=plain_parameters(self._parameters),
            converter=f"onnxmltools {onnxmltools.__version__}",
            categories=of_trees(self._trees) | categories,
            unplaced=unplaced,
            wide=True,
        )

    def predict(self, rows: Floats) -> F64:
        found = np.asarray(self._booster.predict(rows, num_threads=1))
        if number_link(self._text) is not None:
            return found[:, None]
        return found if found.ndim == 2 else np.stack([1 - found, found], axis=1)

    def convert(self, *, wide: bool = False) -> bytes:
        return onnx_from_lightgbm(self._booster, wide=wide)

    def explanation(self) -> Explanation:
        facts = self.facts
        if facts.number:
            return explained_number(facts)
        return explained(lambda: explain_lightgbm(self._text, facts=facts), facts=facts)

    def probes(self, samples: F32 | None) -> Probes:
        if samples is None:
            samples = made_rows(self._trees, columns=self._booster.num_feature())
        return probes(samples, self._trees)

    def pruned(self, *, trees: int | None, depth: int | None) -> LightGbmModel:
        text = pruned_text(self._booster, trees=trees, depth=depth)
        smaller = LightGbmModel(lightgbm.Booster(model_str=text))
        smaller._labels, smaller._parameters = self._labels, self._parameters
        return smaller


def read_lightgbm(path: Path) -> LightGbmModel:
    """
    Read a model's text; unknown keys are refused.

    Raises:
        ConversionError: It cannot be read or converted.
    """
    model = read_lightgbm_text(path.read_text(encoding="utf-8", errors="replace"))
    try:
        booster = lightgbm.Booster(model_str=model.text)
    except (lightgbm.basic.LightGBMError, ValueError) as error:
        message = " ".join(str(error).split())
        raise ConversionError(f"lightgbm cannot read it: {message}") from error
    require_agreement(booster, model)
    return LightGbmModel(booster)


def _names(booster: lightgbm.Booster) -> tuple[str, ...] | None:
    """Return the feature names, unless they are only column numbers."""
    names = tuple(booster.feature_name())
    numbered = tuple(f"Column_{number}" for number in range(len(names)))
    return None if names == numbered else names
