"""Use a trained scikit-learn estimator or pipeline as a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import skl2onnx
import sklearn
from sklearn.base import RegressorMixin
from sklearn.pipeline import Pipeline

from converters.compression.prune_sklearn import pruned_estimator
from converters.explain.explain_sklearn import explain_sklearn
from converters.explain.explanation import explained, explained_number
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
from converters.onnx.from_outlier_detector import (
    anomaly_score,
    onnx_from_outlier_detector,
    require_fitted,
)
from converters.onnx.from_regressor import onnx_from_regressor, require_number
from converters.onnx.from_sklearn import onnx_from_sklearn, refuse_unfaithful
from converters.onnx.graph import cast_first
from converters.parity.boundaries import boundary_rows, made_rows, with_codes
from converters.parity.probe_rows import (
    SPECIAL_BASES,
    assemble,
    code_rows,
    special_rows,
    split_rows,
)
from converters.parity.session import SessionError, require_loadable
from converters.sources.estimator_rows import (
    EstimatorRows,
    WordsError,
    coded,
    parts_of,
    words_of,
)
from converters.trees.sklearn_trees import ensembles
from converters.vocabulary import of_sklearn
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation
from tollgate.explanation.explanation_file import unexplained


class SklearnModel:
    """
    A `TrainedModel` of a fitted estimator in memory.

    Args:
        estimator: A classifier, regressor or outlier detector, or a pipeline that ends
            in one.
        written_by: Version of scikit-learn that wrote its file, if it is not this one.

    Raises:
        ConversionError: It is not fitted, or no estimator that is converted.
    """

    def __init__(self, estimator: Any, *, written_by: str = "") -> None:
        self._anomaly = anomaly_score(estimator)
        last = parts_of(estimator)[1]
        self._number = self._anomaly is None and isinstance(last, RegressorMixin)
        if self._number:
            require_number(estimator)
        elif self._anomaly is None:
            refuse_unfaithful(estimator)
        else:
            require_fitted(estimator)
        self._written_by = written_by
        self._estimator = estimator
        try:
            self._words = words_of(estimator)
            self._coded = coded(estimator, self._words)
        except WordsError as error:
            raise ConversionError(str(error)) from error
        self._trees = [tree for one in ensembles(estimator) for tree in one.trees]
        self._names = getattr(estimator, "feature_names_in_", None)
        self._rows = EstimatorRows(estimator, self._names, words=self._words)

    @property
    def facts(self) -> Facts:
        names = self._names
        return Facts(
            framework="scikit-learn",
            version=sklearn.__version__,
            objective=_kind(self._estimator),
            classes=plain_classes(self._rows.classes),
            columns=int(self._estimator.n_features_in_),
            names=None if names is None else tuple(str(one) for one in names),
            trees=len(self._trees),
            parameters=plain_parameters(self._estimator.get_params()),
            converter=f"skl2onnx {skl2onnx.__version__}",
            anomaly=self._anomaly,
            number=self._number,
            categories=of_sklearn(self._estimator)
            | {
                column: Vocabulary(codes=True, known=tuple(words.known))
                for column, words in self._words.items()
            },
            written_by=self._written_by,
            wide=not self._trees or any(one.wide for one in self._trees),
        )

    def predict(self, rows: Floats) -> F64:
        """
        Return the probabilities of rows [N, F] as float64 [N, K].

        Rows that scikit-learn refuses get NaN; where the model reads words, codes are
        converted to words.
        """
        found: F64 = self._rows.predict(rows)
        return found

    def convert(self, *, wide: bool = False) -> bytes:
        """Return it as ONNX, rounded to float32 if a float64 operator is missing."""
        if not wide:
            return self._graph(wide=False)
        try:
            found = self._graph(wide=True)
            require_loadable(found)
        except (ConversionError, SessionError):
            return cast_first(self._graph(wide=False))
        return found

    def _graph(self, *, wide: bool) -> bytes:
        if self._anomaly is not None:
            return onnx_from_outlier_detector(self._coded, wide=wide)
        if self._number:
            return onnx_from_regressor(self._coded, wide=wide)
        return onnx_from_sklearn(self._coded, wide=wide)

    def pruned(self, *, trees: int | None, depth: int | None) -> SklearnModel:
        smaller = pruned_estimator(self._estimator, trees=trees, depth=depth)
        return SklearnModel(smaller, written_by=self._written_by)

    def explanation(self) -> Explanation:
        facts = self.facts
        if self._anomaly is not None:
            return unexplained(
                "the score of an outlier detector is no sum over the features",
                features=facts.feature_names,
                classes=(0, 1),
            )
        if self._number:
            return explained_number(facts)
        given = EstimatorRows(self._coded, self._names).table
        return explained(
            lambda: explain_sklearn(self._coded, facts=facts, given=given),
            facts=facts,
        )

    def probes(self, samples: F32 | None) -> Probes:
        """
        Return rows of the sample (generated when None) and rows for comparison.

        These are rows around every split, rows with known and unknown categories of
        encoders, and extremes.
        """
        # Behind a step, thresholds are not those of the features.
        trees = [] if isinstance(self._estimator, Pipeline) else self._trees
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


def _codes(known: Mapping[int, Vocabulary]) -> dict[int, list[float]]:
    """Return the categories that are numbers, and the codes of those that are words."""
    return {
        column: list(map(float, range(len(words.known))))
        if words.codes
        else [float(one) for one in words.known if not isinstance(one, str)]
        for column, words in known.items()
    }


def _kind(estimator: Any) -> str:
    if isinstance(estimator, Pipeline):
        return " → ".join(type(step).__name__ for _, step in estimator.steps)
    return type(estimator).__name__
