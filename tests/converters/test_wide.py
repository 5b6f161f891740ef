"""Graphs of float64 features answer raw rows as the untouched estimator does."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier

from converters.model import TrainedModel
from converters.parity.proof import prove
from converters.parity.runner import onnx_runner
from converters.sources.worker import model_of

ROWS = 4_000
CHANCE = np.random.default_rng(7)
# Seconds since 1970 with milliseconds, places in a town, gaps, and a code.
RAW = np.column_stack(
    [
        np.round(1.7e9 + CHANCE.uniform(0, 1_000, ROWS), 3),
        np.round(CHANCE.uniform(52.5, 52.53, ROWS), 7),
        np.where(CHANCE.random(ROWS) < 0.1, np.nan, CHANCE.normal(size=ROWS)),
        CHANCE.integers(0, 6, ROWS).astype(np.float64),
    ]
)
LABEL = (
    np.sin(RAW[:, 0] / 50)
    + np.nan_to_num(RAW[:, 2])
    + (RAW[:, 3] == 2)
    + np.sin(RAW[:, 1] * 900)
    + CHANCE.normal(size=ROWS)
    > 0
).astype(int)
FULL = np.nan_to_num(RAW)


def boosted(**settings: Any) -> lightgbm.LGBMClassifier:
    """Train LightGBM on rows with gaps."""
    model = lightgbm.LGBMClassifier(
        n_estimators=40, num_leaves=40, n_jobs=1, verbose=-1, **settings
    )
    return model.fit(RAW, LABEL, categorical_feature=[3])


def regression(scaler: Any) -> Any:
    """Train a regression behind a scaler."""
    return make_pipeline(scaler, LogisticRegression(max_iter=500)).fit(FULL, LABEL)


MODELS = {
    "lightgbm": (lambda: boosted(), RAW, True),
    "lightgbm, zero missing": (lambda: boosted(zero_as_missing=True), RAW, True),
    "lightgbm, nothing missing": (lambda: boosted(use_missing=False), RAW, True),
    "histograms": (lambda: HistGradientBoostingClassifier().fit(RAW, LABEL), RAW, True),
    "standard scaler": (lambda: regression(StandardScaler()), FULL, True),
    "min max scaler": (lambda: regression(MinMaxScaler(clip=True)), FULL, True),
    "robust scaler": (lambda: regression(RobustScaler()), FULL, True),
    "max abs scaler": (lambda: regression(MaxAbsScaler()), FULL, True),
    "xgboost": (
        lambda: xgboost.XGBClassifier(n_estimators=40, n_jobs=1).fit(RAW, LABEL),
        RAW,
        False,
    ),
    "forest": (
        lambda: RandomForestClassifier(10, max_depth=9, random_state=0).fit(RAW, LABEL),
        RAW,
        False,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_raw_rows_are_answered_as_by_the_estimator(name: str) -> None:
    """Within 1e-6 in float64; in float32 too only where the framework rounds itself."""
    train, rows, wide = MODELS[name]
    estimator = train()
    wanted = estimator.predict_proba(rows)
    model: TrainedModel = model_of(estimator)
    assert model.facts.wide is wide
    found = onnx_runner(model.convert(wide=True)).batched(rows, size=32)
    assert np.abs(found - wanted).max() <= 1e-6
    single = onnx_runner(model.convert()).batched(rows, size=32)
    apart = int((np.abs(single - wanted).max(axis=1) > 1e-6).sum())
    if name != "max abs scaler":  # its coefficients are too small to show it
        assert (apart > 0) is wide, apart


@pytest.mark.parametrize("name", ["lightgbm", "histograms", "standard scaler"])
def test_the_proof_of_a_wide_graph_passes(name: str) -> None:
    """At every split, with extremes and unseen codes."""
    train, rows, _ = MODELS[name]
    samples = rows[:500].astype(np.float32)
    proven = prove(model_of(train()), samples=samples, thresholds=(0.5,), wide=True)
    proven.check()


def test_what_has_no_operators_in_float64_is_rounded_first() -> None:
    """An imputer: the graph takes float64, and is proven as it answers float32."""
    estimator = make_pipeline(
        SimpleImputer(), StandardScaler(), LogisticRegression(max_iter=500)
    ).fit(RAW, LABEL)
    samples = RAW[:200].astype(np.float32)
    proven = prove(model_of(estimator), samples=samples, thresholds=(0.5,), wide=True)
    proven.check()
    found = onnx_runner(proven.model)
    assert found.wide
    wanted = estimator.predict_proba(samples)
    assert np.abs(found.batched(samples, size=32) - wanted).max() <= 1e-5


@pytest.mark.parametrize("kind", [DecisionTreeClassifier, RandomForestClassifier])
def test_a_split_that_only_separates_missing_values_is_converted(kind: Any) -> None:
    """Its threshold is infinite; rows go as in scikit-learn, infinities too."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 4))
    label = rows[:, 0] + rows[:, 1] > 0
    rows[random.random(rows.shape) < 0.3] = np.nan
    rows[:, 3] = np.where(label, np.nan, 1.0)
    estimator = kind(random_state=0).fit(rows, label)
    trees = getattr(estimator, "estimators_", [estimator])
    assert any(np.isinf(one.tree_.threshold).any() for one in trees)
    found = onnx_runner(model_of(estimator).convert(wide=True))
    np.testing.assert_allclose(
        found(rows), estimator.predict_proba(rows), rtol=0, atol=1e-6
    )
    # scikit-learn refuses infinite features; the graph compares them with infinity.
    rows[:, 3] = np.inf
    usual = rows.copy()
    usual[:, 3] = 1e30
    np.testing.assert_array_equal(found(rows), found(usual))
