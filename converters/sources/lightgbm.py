"""Use a trained LightGBM classifier as a source."""

from __future__ import annotations

from pathlib import Path

import lightgbm
import numpy as np
import onnxmltools

from converters.boundaries import made_rows
from converters.explain import explained
from converters.explain_lightgbm import explain_lightgbm
from converters.lightgbm_trees import header, trees_from_lightgbm
from converters.model import (
    F32,
    F64,
    Facts,
    Floats,
    Probes,
    plain_classes,
    plain_parameters,
)
from converters.onnx_from_lightgbm import (
    onnx_from_lightgbm,
    refuse_unfaithful,
    served_text,
)
from converters.probes import probes
from converters.prune_lightgbm import pruned_text
from converters.sources.lightgbm_arithmetic import require_agreement
from converters.sources.lightgbm_file import read_lightgbm_text
from converters.vocabulary import of_lightgbm, of_trees
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation


class LightGbmModel:
    """
    A trained model in memory.

    Args:
        model: Its Booster, or the classifier that holds it.

    Raises:
        ConversionError: A model of this kind cannot be converted faithfully.
    """

    def __init__(self, model: lightgbm.Booster | lightgbm.LGBMClassifier) -> None:
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
        elif not isinstance(model, lightgbm.Booster):
            raise ConversionError(
                f"cannot convert a {type(model).__name__}; needed is a classifier"
            )
        self._booster = model
        self._text = served_text(model)
        refuse_unfaithful(self._text)
        self._trees = trees_from_lightgbm(self._text)

    @property
    def facts(self) -> Facts:
        """Return the facts about it."""
        classes = max(2, int(header(self._text, "num_class")))
        categories, unplaced = of_lightgbm(
            self._booster.pandas_categorical,
            infos=header(self._text, "feature_infos").split(),
        )
        return Facts(
            framework="lightgbm",
            version=lightgbm.__version__,
            objective=header(self._text, "objective").partition(" ")[0],
            classes=self._labels or tuple(range(classes)),
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
        """Return the probabilities of rows [N, F] as float64 [N, K]."""
        found = np.asarray(self._booster.predict(rows, num_threads=1))
        return found if found.ndim == 2 else np.stack([1 - found, found], axis=1)

    def convert(self, *, wide: bool = False) -> bytes:
        """Return the model as ONNX."""
        return onnx_from_lightgbm(self._booster, wide=wide)

    def explanation(self) -> Explanation:
        """Return its trees and their covers."""
        facts = self.facts
        return explained(lambda: explain_lightgbm(self._text, facts=facts), facts=facts)

    def probes(self, samples: F32 | None) -> Probes:
        """
        Return sample rows (generated when None), rows around every split, extremes.
        """
        if samples is None:
            samples = made_rows(self._trees, columns=self._booster.num_feature())
        return probes(samples, self._trees)

    def pruned(self, *, trees: int | None, depth: int | None) -> LightGbmModel:
        """
        Return a copy with fewer or shallower trees.

        Raises:
            ConversionError: See `pruned_text`.
        """
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
