"""A trained scikit-learn classifier or pipeline as a source."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import skl2onnx
import sklearn
from sklearn.pipeline import Pipeline
from threadpoolctl import ThreadpoolController

from converters.boundaries import boundary_rows, made_rows, with_codes
from converters.explain import explained
from converters.explain_sklearn import explain_sklearn
from converters.model import (
    F32,
    F64,
    Facts,
    Floats,
    Probes,
    Vocabulary,
    plain_classes,
    plain_parameters,
)
from converters.onnx_from_sklearn import onnx_from_sklearn, refuse_unfaithful
from converters.probes import (
    SPECIAL_BASES,
    assemble,
    code_rows,
    special_rows,
    split_rows,
)
from converters.prune_sklearn import pruned_estimator
from converters.sklearn_trees import ensembles, probe_trees
from converters.vocabulary import of_sklearn
from tollgate.explanation import Explanation


class SklearnModel:
    """
    A fitted classifier in memory.

    Args:
        estimator: The classifier, or a pipeline that ends in one.
        written_by: Version of scikit-learn that wrote its file, if not this one.

    Raises:
        ConversionError: It is no fitted classifier with probabilities.
    """

    def __init__(self, estimator: Any, *, written_by: str = "") -> None:
        refuse_unfaithful(estimator)
        self._written_by = written_by
        self._estimator = estimator
        self._trees = [tree for trees in ensembles(estimator) for tree in trees]
        self._names = getattr(estimator, "feature_names_in_", None)

    @property
    def facts(self) -> Facts:
        """What is known of it."""
        names = self._names
        return Facts(
            framework="scikit-learn",
            version=sklearn.__version__,
            objective=_kind(self._estimator),
            classes=plain_classes(self._estimator.classes_),
            columns=int(self._estimator.n_features_in_),
            names=None if names is None else tuple(str(one) for one in names),
            trees=len(self._trees),
            parameters=plain_parameters(self._estimator.get_params()),
            converter=f"skl2onnx {skl2onnx.__version__}",
            categories=of_sklearn(self._estimator),
            written_by=self._written_by,
        )

    def predict(self, rows: Floats) -> F64:
        """
        Return the probabilities of rows [N, F] as float64 [N, K].

        scikit-learn refuses a whole call for one NaN, infinity or unknown category;
        here the rows it refuses are NaN and the others answered.
        """
        found = np.full((len(rows), len(self._estimator.classes_)), np.nan)
        plain = np.isfinite(rows).all(axis=1)
        self._answer(rows, np.flatnonzero(plain), found, apart=True)
        others = np.flatnonzero(~plain)
        # Scaled, a huge number may be refused; rows that only lack one are not.
        huge = np.abs(rows[others]) >= _HUGE
        odd = np.isnan(rows[others]) * 1 + huge * 2
        patterns, group = np.unique(odd, axis=0, return_inverse=True)
        for number in range(len(patterns)):
            chosen = others[group.ravel() == number]
            self._answer(rows, chosen, found, apart=False)
        return found

    def _answer(self, rows: Floats, chosen: Any, found: F64, *, apart: bool) -> None:
        """Fill in the chosen rows; find the refused ones by halves when `apart`."""
        if not len(chosen):
            return
        try:
            # Its threads wait for one another, on a busy machine ten times as long as
            # one thread takes.
            with np.errstate(all="ignore"), _threads().limit(limits=1):
                found[chosen] = self._estimator.predict_proba(self._given(rows[chosen]))
        except ValueError:
            if apart and len(chosen) > 1:
                half = len(chosen) // 2
                self._answer(rows, chosen[:half], found, apart=True)
                self._answer(rows, chosen[half:], found, apart=True)

    def _given(self, rows: Floats) -> Any:
        """Return rows as the model was trained on them: with names or without."""
        if self._names is None:
            return rows
        try:
            import pandas
        except ModuleNotFoundError:
            import polars

            return polars.DataFrame(rows, schema=[str(one) for one in self._names])
        return pandas.DataFrame(rows, columns=self._names)

    def convert(self) -> bytes:
        """Return it as ONNX."""
        return onnx_from_sklearn(self._estimator)

    def pruned(self, *, trees: int | None, depth: int | None) -> SklearnModel:
        """
        Return a copy with fewer or shallower trees.

        Raises:
            ConversionError: As `pruned_estimator`.
        """
        smaller = pruned_estimator(self._estimator, trees=trees, depth=depth)
        return SklearnModel(smaller, written_by=self._written_by)

    def explanation(self) -> Explanation:
        """Return its trees and their covers, or its coefficients."""
        facts = self.facts
        return explained(
            lambda: explain_sklearn(self._estimator, facts=facts, given=self._given),
            facts=facts,
        )

    def probes(self, samples: F32 | None) -> Probes:
        """
        Return rows of the sample (made when None), around every split, with categories
        of encoders and none, and extremes.
        """
        raw = isinstance(self._estimator, Pipeline) or not self._trees
        trees = [] if raw else probe_trees(self._trees)
        codes = _codes(self.facts.categories)
        if samples is None:
            columns = int(self._estimator.n_features_in_)
            samples = with_codes(made_rows(trees, columns=columns), codes)
        return assemble(
            {
                "sample": samples,
                "split": split_rows(samples, trees),
                "boundary": boundary_rows(self.predict, samples),
                "category": code_rows(samples[:SPECIAL_BASES], codes),
                "special": special_rows(samples),
            }
        )


_HUGE = 1e25


@functools.cache
def _threads() -> ThreadpoolController:
    """Find the libraries that make threads once: it takes longer than to tell them."""
    return ThreadpoolController()


def _codes(known: Mapping[int, Vocabulary]) -> dict[int, list[float]]:
    """Take the categories that are numbers."""
    return {
        column: [float(one) for one in words.known if not isinstance(one, str)]
        for column, words in known.items()
    }


def _kind(estimator: Any) -> str:
    if isinstance(estimator, Pipeline):
        return " → ".join(type(step).__name__ for _, step in estimator.steps)
    return type(estimator).__name__
