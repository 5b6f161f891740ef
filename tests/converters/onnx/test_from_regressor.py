"""Converted regressors answer the number of their library, or are refused."""

import sys
from pathlib import Path

import joblib
import lightgbm
import numpy as np
import polars as pl
import pytest
import xgboost
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LinearRegression,
    PoissonRegressor,
    Ridge,
    TweedieRegressor,
)
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from converters.conversion import Conversion, convert_file
from converters.parity.proof import prove
from converters.parity.runner import onnx_runner
from converters.sources.opening import open_source
from converters.sources.worker import model_of
from tests.support.checkout import CHECKOUT
from tollgate.errors import ArgumentError, ConversionError, ParityError

SHARED = CHECKOUT.parent / "shared"


def training_rows():
    """Make five columns, and prices of 1,000 to 3,000,000 that depend on them."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(500, 5)).astype(np.float32)
    rows[:, 3] = random.integers(0, 4, 500)
    rows[:, 4] *= 100
    price = 2e5 * np.exp(0.7 * rows[:, 0] + 0.3 * rows[:, 1]) + random.exponential(
        1000, 500
    )
    return rows, price


def sklearn_models():
    """Yield untrained regressors by name."""
    scaled = [
        *(Lasso(), HuberRegressor(max_iter=1000), GammaRegressor()),
        *(PoissonRegressor(), TweedieRegressor(power=1.5)),
        RandomForestRegressor(6, random_state=0),
    ]
    plain = [
        *(LinearRegression(), Ridge()),
        DecisionTreeRegressor(max_depth=6, random_state=0),
        RandomForestRegressor(8, random_state=0),
        ExtraTreesRegressor(5, random_state=0),
        GradientBoostingRegressor(n_estimators=15, random_state=0),
        HistGradientBoostingRegressor(max_iter=15),
    ]
    for one in plain:
        yield type(one).__name__, one
    for one in scaled:
        name = f"scaled {type(one).__name__}"
        yield name, make_pipeline(SimpleImputer(), StandardScaler(), one)
    quantile = GradientBoostingRegressor(
        loss="quantile", init="zero", n_estimators=9, random_state=0
    )
    yield "quantile from zero", quantile
    for loss in ("gamma", "poisson", "quantile"):
        yield loss, HistGradientBoostingRegressor(loss=loss, quantile=0.9, max_iter=9)
    network = MLPRegressor(hidden_layer_sizes=(6,), max_iter=30, random_state=0)
    target = TransformedTargetRegressor(network, func=np.log, inverse_func=np.exp)
    yield "network of logarithms", make_pipeline(StandardScaler(), target)


def boosted_models():
    """Yield untrained boosters by name."""
    for objective in (
        *("reg:squarederror", "reg:absoluteerror", "reg:gamma", "reg:tweedie"),
        *("count:poisson", "reg:squaredlogerror", "reg:pseudohubererror"),
    ):
        yield (
            objective,
            xgboost.XGBRegressor(n_estimators=12, objective=objective, n_jobs=1),
        )
    yield (
        "reg:quantileerror",
        xgboost.XGBRegressor(
            n_estimators=12, objective="reg:quantileerror", quantile_alpha=0.9, n_jobs=1
        ),
    )
    for objective in (
        *("regression", "regression_l1", "huber", "fair", "quantile", "mape"),
        *("poisson", "gamma", "tweedie"),
    ):
        yield (
            objective,
            lightgbm.LGBMRegressor(
                n_estimators=12, objective=objective, n_jobs=1, verbose=-1
            ),
        )
    yield (
        "regression sqrt",
        lightgbm.LGBMRegressor(n_estimators=12, reg_sqrt=True, n_jobs=1, verbose=-1),
    )
    yield (
        "forest",
        lightgbm.LGBMRegressor(
            n_estimators=12,
            boosting_type="rf",
            bagging_freq=1,
            bagging_fraction=0.5,
            n_jobs=1,
            verbose=-1,
        ),
    )


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(found, id=name)
        for name, found in (*sklearn_models(), *boosted_models())
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_regressor_converts_to_the_nearest_float32(estimator):
    """
    Every answer is the float32 nearest to the library's own; nothing flips.

    Trained on float64: scikit-learn computes as exactly as the rows it was fitted to.
    """
    rows, price = training_rows()
    estimator.fit(rows.astype(np.float64), price)
    proven = prove(model_of(estimator), samples=rows, thresholds=())
    proven.check()
    assert proven.report.max_delta == 0
    assert len(proven.report.thresholds) >= 1
    found = onnx_runner(proven.model)(rows)
    assert found.shape == (len(rows), 1)
    wanted = np.asarray(estimator.predict(rows), np.float64)
    np.testing.assert_allclose(found[:, 0], wanted, rtol=2e-7)


@pytest.mark.parametrize(
    "estimator",
    [
        GradientBoostingRegressor(n_estimators=1, learning_rate=0.5),
        xgboost.XGBRegressor(
            n_estimators=1,
            learning_rate=0.5,
            base_score=25,
            reg_lambda=0,
            min_child_weight=0,
            n_jobs=1,
        ),
        lightgbm.LGBMRegressor(
            n_estimators=1,
            learning_rate=0.5,
            min_child_samples=1,
            min_child_weight=0,
            max_depth=1,
            n_jobs=1,
            verbose=-1,
        ),
    ],
    ids=["scikit-learn", "xgboost", "lightgbm"],
)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_one_round_gives_the_numbers_of_the_paper(estimator):
    """The mean is 25, the two leaves hold -15 and 15, half of which is added."""
    rows = np.array([[0.0], [0.0], [1.0], [1.0]], np.float32)
    estimator.fit(rows, np.array([10.0, 10.0, 40.0, 40.0]))
    found = onnx_runner(model_of(estimator).convert())(rows)
    assert found[:, 0].tolist() == [17.5, 17.5, 32.5, 32.5]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("gamma_AvgClaimAmount", 34),
        ("poisson_Frequency", 1000),
        ("tweedie_PurePremium", 1000),
    ],
)
def test_models_of_others_give_their_authors_numbers(name, rows, tmp_path):
    """The answers that another LightGBM gave, to a float32."""
    if not SHARED.exists():
        pytest.skip("needs ../shared, models of others, which are not ours to ship")
    stem = SHARED / "data/models/leaves" / f"genlin_fmtp_{name}"
    source = stem.with_name(stem.name + ".model")
    columns = next(
        line.partition("=")[2].split()
        for line in source.read_text().splitlines()
        if line.startswith("feature_names=")
    )
    table = np.loadtxt(stem.with_name(stem.name + "_features.tsv"))
    pl.DataFrame(table, schema=columns).write_csv(tmp_path / "rows.csv")
    request = Conversion(
        source=source,
        sample=tmp_path / "rows.csv",
        expected=stem.with_name(stem.name + "_true_predictions.txt"),
    )
    oracle = convert_file(request).oracle
    assert oracle.expected.rows == rows
    assert oracle.expected_apart.max_delta == 0
    wrong = tmp_path / "wrong.txt"
    numbers = np.loadtxt(request.expected)
    numbers[3] *= 1.0001
    np.savetxt(wrong, numbers)
    with pytest.raises(ParityError, match=f"row 4 of {rows:,}"):
        convert_file(Conversion(source=source, sample=request.sample, expected=wrong))


@pytest.mark.parametrize(
    ("estimator", "own"),
    [
        (xgboost.XGBRegressor(n_estimators=4, objective="reg:gamma", n_jobs=1), None),
        (lightgbm.LGBMRegressor(n_estimators=4, objective="tweedie", verbose=-1), None),
        (lightgbm.LGBMRegressor(n_estimators=4, reg_sqrt=True, verbose=-1), None),
        (make_pipeline(StandardScaler(), GammaRegressor()), None),
        (IsolationForest(n_estimators=4, random_state=0), "score_samples"),
    ],
    ids=["xgboost", "lightgbm", "square", "scikit-learn", "detector"],
)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_another_python_gives_the_answers(estimator, own, tmp_path):
    """As for a pickle of another environment: numbers, and raw scores."""
    rows, price = training_rows()
    estimator.fit(rows.astype(np.float64), price)
    path = tmp_path / "model.pkl"
    joblib.dump(estimator, path)
    python = Path(sys.executable)
    with open_source(path, trust_pickle=True, python=python) as model:
        found = model.predict(rows)
        if own is None:
            prove(model, samples=rows, thresholds=()).check()
    wanted = estimator.predict(rows) if own is None else -getattr(estimator, own)(rows)
    assert found.shape == (len(rows), 1)
    np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "problem"),
    [
        (KNeighborsRegressor(), "KNeighborsRegressor.*HistGradientBoostingRegressor"),
        (
            TransformedTargetRegressor(Ridge(), func=np.sqrt, inverse_func=np.square),
            "inverse_func is not numpy.exp",
        ),
    ],
)
def test_another_regressor_is_refused_with_the_nearest_one(estimator, problem):
    """By the name of its class."""
    estimator.fit(*training_rows())
    with pytest.raises(ConversionError, match=problem):
        model_of(estimator).convert()


def test_two_numbers_a_row_are_refused():
    """A decision needs one."""
    rows, price = training_rows()
    both = np.stack([price, -price], axis=1)
    for one in (Ridge(), DecisionTreeRegressor(max_depth=2)):
        with pytest.raises(ConversionError, match="2 numbers per row"):
            model_of(one.fit(rows, both))


def test_an_objective_that_is_not_converted_is_named():
    """With those that are."""
    rows, price = training_rows()
    model = lightgbm.LGBMRegressor(
        n_estimators=2, objective="cross_entropy", verbose=-1
    )
    model.fit(rows, (price > 2e5).astype(float))
    with pytest.raises(ConversionError, match="'cross_entropy'; converted are binary"):
        model_of(model)


def test_a_column_of_labels_is_refused(tmp_path):
    """Quality of classes is not measured for a number."""
    rows, price = training_rows()
    model = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(rows, price)
    model.booster_.save_model(tmp_path / "model.txt")
    names = [f"Column_{at}" for at in range(5)]
    frame = pl.DataFrame(rows, schema=names).with_columns(pl.Series("late", price > 5))
    frame.write_parquet(tmp_path / "rows.parquet")
    request = Conversion(
        source=tmp_path / "model.txt", sample=tmp_path / "rows.parquet", label="late"
    )
    with pytest.raises(ArgumentError, match="answers a number: leave it out"):
        convert_file(request)
