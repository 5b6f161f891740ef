"""Converted outlier detectors score as their own library does, or are refused."""

import math

import numpy as np
import pytest
from sklearn.covariance import EllipticEnvelope
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import SGDOneClassSVM
from sklearn.neighbors import LocalOutlierFactor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler
from sklearn.svm import OneClassSVM

from converters.calibration import CalibratedDetector, fit_calibration
from converters.parity.proof import prove
from converters.parity.runner import onnx_runner
from converters.sources.sklearn import SklearnModel
from tollgate.errors import ConversionError

THRESHOLDS = (0.5, 0.9, 0.99, 0.999, 0.9999)


def training_rows(*, gaps=0.0):
    """Make columns of unequal size, a heavy tail and a few outliers; float64."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(1200, 5))
    rows[:, 3] = np.exp(1.5 * rows[:, 3])
    rows[:, 4] = 1000 * rows[:, 0] + rows[:, 4]
    rows[:12] *= 6
    rows[random.random(rows.shape) < gaps] = np.nan
    return rows


def calibrated(estimator, rows):
    """Calibrate a detector on its training rows, as float32 like served rows."""
    model = SklearnModel(estimator)
    scores = model.predict(rows.astype(np.float32))[:, 0]
    fitted = fit_calibration(scores, form=model.facts.anomaly, rows="training")
    return CalibratedDetector(model, fitted)


def autoencoder(rows):
    """Train a network to reproduce scaled rows."""
    scaler = StandardScaler().fit(rows)
    network = MLPRegressor(hidden_layer_sizes=(3,), max_iter=40, random_state=0)
    scaled = scaler.transform(rows)
    return make_pipeline(scaler, network.fit(scaled, scaled))


def kinds():
    """Yield every supported detector, untrained; by name."""
    forest = IsolationForest(n_estimators=20, random_state=1)
    part = IsolationForest(
        n_estimators=15,
        max_features=0.5,
        max_samples=100,
        contamination=0.02,
        random_state=2,
    )
    yield "forest", forest
    yield "some columns", part
    yield "bootstrap", IsolationForest(n_estimators=8, bootstrap=True, random_state=3)
    yield "scaled forest", make_pipeline(StandardScaler(), part)
    yield "plane", make_pipeline(StandardScaler(), PCA(3))
    yield "whitened plane", make_pipeline(RobustScaler(), PCA(2, whiten=True))
    yield "ellipse", make_pipeline(MinMaxScaler(), EllipticEnvelope(random_state=0))
    yield "vectors", make_pipeline(StandardScaler(), OneClassSVM(nu=0.05))


@pytest.mark.parametrize("estimator", [pytest.param(k, id=n) for n, k in kinds()])
@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_detector_converts_without_a_flip(estimator, wide):
    """At splits, next to them, at extremes, alone and shuffled: within a float32."""
    rows = training_rows()
    model = calibrated(estimator.fit(rows), rows)
    proven = prove(
        model, samples=rows.astype(np.float32), thresholds=THRESHOLDS, wide=wide
    )
    proven.check()
    assert proven.report.max_delta < 1e-7


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_autoencoder_scores_its_squared_error():
    """The truth is NumPy on the network's own prediction."""
    rows = training_rows()
    estimator = autoencoder(rows)
    model = calibrated(estimator, rows)
    prove(model, samples=rows.astype(np.float32), thresholds=THRESHOLDS).check()
    scaled = estimator[0].transform(rows[:50])
    wanted = ((scaled - estimator[1].predict(scaled)) ** 2).sum(axis=1)
    assert SklearnModel(estimator).predict(rows[:50])[:, 0] == pytest.approx(wanted)


def test_a_forest_with_gaps_sends_them_where_scikit_learn_does():
    """scikit-learn's isolation forests take missing values since 1.8."""
    rows = training_rows(gaps=0.1)
    estimator = IsolationForest(n_estimators=20, random_state=1).fit(rows)
    proven = prove(
        calibrated(estimator, rows),
        samples=rows.astype(np.float32),
        thresholds=THRESHOLDS,
    )
    proven.check()
    assert proven.report.unanswered == 0


def test_two_trees_give_the_score_of_the_paper():
    """
    Each tree of the rows 0, 0, 0 and 1 has one split, between 0 and 1.

    Paths: 1 + c(3) to the three rows, 1 to the single one, and c(4) normalises, with
    c(n) = 2 (ln(n - 1) + Euler's number gamma) - 2 (n - 1) / n.
    """
    rows = np.array([[0.0], [0.0], [0.0], [1.0]])
    forest = IsolationForest(n_estimators=2, max_samples=4, random_state=0).fit(rows)
    gamma = 0.5772156649015329
    three = 2 * (math.log(2) + gamma) - 4 / 3
    four = 2 * (math.log(3) + gamma) - 3 / 2
    usual, odd = 2 ** (-(1 + three) / four), 2 ** (-1 / four)
    assert (round(usual, 4), round(odd, 4)) == (0.4377, 0.6877)
    scores = np.concatenate([np.full(150, usual), np.linspace(usual, 0.68, 50)])
    model = SklearnModel(forest)
    assert model.predict(rows[[0, 3]])[:, 0] == pytest.approx([usual, odd], abs=1e-12)
    fitted = fit_calibration(scores, form=model.facts.anomaly, rows="paper")
    graph = CalibratedDetector(model, fitted).convert()
    found = onnx_runner(graph)(rows[[0, 3]].astype(np.float32))
    # All 200 rows reach the first score; the second lies beyond the highest of them.
    tail = np.sort(scores)[-20:]
    excess = float(np.mean(tail - tail[0]))
    assert excess * math.log(10) > odd - 0.68
    beyond = math.exp(-(odd - 0.68) / excess) / 201
    assert found[:, 0].tolist() == pytest.approx([1, beyond], rel=1e-6)
    assert found[:, 1] == pytest.approx([0, 1 - beyond], abs=1e-7)


def test_contamination_does_not_change_the_score():
    """It moves scikit-learn's own threshold, and the policy has another."""
    rows = training_rows()
    forests = [
        IsolationForest(n_estimators=10, contamination=share, random_state=1)
        for share in (0.01, 0.2)
    ]
    graphs = [SklearnModel(one.fit(rows)).convert() for one in forests]
    assert graphs[0] == graphs[1]


def test_one_normal_row_in_a_hundred_reaches_ninety_nine_percent():
    """Fresh rows of the same source: within four standard deviations."""
    random = np.random.default_rng(5)
    rows, fresh = random.normal(size=(2, 20_000, 3))
    estimator = IsolationForest(n_estimators=25, random_state=1).fit(rows[:2000])
    graph = calibrated(estimator, rows).convert()
    score = onnx_runner(graph).batched(fresh.astype(np.float32), size=5000)[:, 1]
    for level in (0.9, 0.99, 0.999):
        share = 1 - level
        spread = math.sqrt(share * (1 - share) / len(fresh) * 2)
        assert abs(float((score >= level).mean()) - share) < 4 * spread


@pytest.mark.parametrize(
    ("estimator", "problem"),
    [
        (LocalOutlierFactor(novelty=True), "LocalOutlierFactor.*IsolationForest"),
        (SGDOneClassSVM(), "SGDOneClassSVM.*OneClassSVM with kernel 'rbf'"),
        (OneClassSVM(kernel="poly"), "kernel 'poly'.*'rbf'"),
    ],
)
def test_another_detector_is_refused_with_the_nearest_one(estimator, problem):
    """Also behind a scaler."""
    rows = training_rows()
    with pytest.raises(ConversionError, match=problem):
        SklearnModel(make_pipeline(StandardScaler(), estimator).fit(rows))


def test_an_untrained_detector_is_refused():
    """The message says what to do."""
    with pytest.raises(ConversionError, match="not trained; call fit"):
        SklearnModel(IsolationForest())
