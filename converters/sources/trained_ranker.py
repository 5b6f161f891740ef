"""Use a ranker of `converters.ranking` as a source that is converted and proven."""

from __future__ import annotations

from sklearn.linear_model import LinearRegression

from converters.model import TrainedModel
from converters.ranking.ranker import LinearRanker, Ranker, TreeRanker
from converters.sources.lightgbm import LightGbmModel
from converters.sources.sklearn import SklearnModel
from tollgate.errors import ConversionError


def trained_ranker(ranker: Ranker) -> TrainedModel:
    """
    Return a source with the ranker's own scores.

    A weighted sum becomes a linear regression with these weights.

    Raises:
        ConversionError: It is neither trees nor a weighted sum.
    """
    if isinstance(ranker, TreeRanker):
        return LightGbmModel(ranker.booster)
    if isinstance(ranker, LinearRanker):
        regression = LinearRegression(fit_intercept=False)
        regression.coef_ = ranker.weights.astype(float)
        regression.intercept_ = 0.0
        regression.n_features_in_ = len(ranker.weights)
        return SklearnModel(regression)
    raise ConversionError(f"a {type(ranker).__name__} is not converted")
