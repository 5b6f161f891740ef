"""A proof needs rows that the source answers, and none that the graph fails on."""

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, OneHotEncoder

from converters.parity.proof import prove
from converters.sources.worker import model_of
from tollgate.errors import ConversionError


def test_a_row_that_makes_the_graph_fail_is_found_though_its_source_refuses_it():
    """Binarizer fails on NaN, for all rows that are in the batch with it."""
    features = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    label = features[:, 0] > 0.5
    model = make_pipeline(Binarizer(), LogisticRegression()).fit(features, label)
    with pytest.raises(ConversionError, match=r"cannot run the model.*NaN"):
        prove(model_of(model), samples=features, thresholds=(0.5,))


def encoded(**options):
    """Train on two columns of categories and a number."""
    random = np.random.default_rng(1)
    codes = random.integers(0, 5, (400, 2)) * [1, 10.5]
    features = np.column_stack([codes, random.normal(size=400)]).astype(np.float32)
    encoder = OneHotEncoder(sparse_output=False, **options)
    parts = ColumnTransformer([("o", encoder, [0, 1])], remainder="passthrough")
    model = make_pipeline(parts, LogisticRegression())
    return model.fit(features, features[:, 0] > features[:, 2] + 1), features


def test_rows_are_made_of_categories_that_an_encoder_knows():
    """It refuses others: the proof would be of two rows."""
    model, _ = encoded(handle_unknown="error")
    proven = prove(model_of(model), samples=None, thresholds=(0.5,))
    proven.check()
    assert proven.report.kinds["sample"] > 500


def test_a_proof_on_rows_that_the_source_refuses_is_none():
    """Rows of something else prove nothing, however well they agree."""
    model, features = encoded(handle_unknown="error")
    strange = features.copy()
    strange[50:, 1] = 7
    with pytest.raises(ConversionError, match="answers 50 of the 400 sample rows"):
        prove(model_of(model), samples=strange, thresholds=(0.5,))
