"""A raw anomaly score becomes the chance that a normal row scores as high."""

import numpy as np
import pytest

from converters.calibration import (
    CalibratedDetector,
    calibrated,
    fit_calibration,
    with_calibration,
)
from converters.model import AnomalyScore
from converters.onnx.estimator_graph import EstimatorGraph
from converters.parity.runner import onnx_runner
from tollgate.errors import ArgumentError, ConversionError

PLAIN = AnomalyScore(scale="linear", most=2000.0)
ERROR = AnomalyScore(scale="log", most=1e80)


def of_counts(form=PLAIN):
    """Fit to 999 rows with the raw scores 1 to 999."""
    return fit_calibration(np.arange(1.0, 1000.0), form=form, rows="999 rows")


def test_a_score_is_one_minus_the_share_of_normal_rows_as_high():
    """Of 999 rows, 1000 - k score at least k, the new row included: on paper."""
    found = calibrated(np.array([1.0, 500.0, 900.0, 990.0, 999.0]), of_counts())
    assert found[:, 0] == pytest.approx([1, 0.5, 0.1, 0.01, 0.001], rel=1e-3)
    assert found.sum(axis=1) == pytest.approx(1, abs=1e-15)


def test_the_tail_falls_as_the_highest_tenth_falls():
    """The mean excess of 901 to 999 over 901 is 49: a tenth within 49 ln 10."""
    far = 999 + 49 * np.log(10)
    found = calibrated(np.array([far, 2000.0, 1e9]), of_counts())[:, 0]
    assert found == pytest.approx([1e-4, 1e-5, 1e-5], rel=1e-9)


@pytest.mark.parametrize(
    ("form", "highest"), [(PLAIN, 2000.0), (ERROR, 1e30)], ids=["score", "error"]
)
def test_extreme_rows_keep_their_order_in_float32(form, highest):
    """No two of them collapse to one score."""
    rows = np.geomspace(990.0, highest, 100)
    score = calibrated(rows, of_counts(form))[:, 1].astype(np.float32)
    assert (np.diff(score) > 0).all()
    assert score[-1] < 1


def test_rows_below_every_normal_row_score_nothing():
    """Also an error of 0, which has no logarithm."""
    assert calibrated(np.array([0.0, 0.5]), of_counts(ERROR))[:, 1].tolist() == [0, 0]


@pytest.mark.parametrize("form", [PLAIN, ERROR], ids=["score", "error"])
def test_the_graph_gives_the_same_bits_as_the_formula(form):
    """At every knot, a float32 next to it, far out, and NaN for NaN."""
    graph = EstimatorGraph([], columns=1, wide=False)
    raw = graph.finish(graph.given, name="anomaly", dtype=np.float64)
    calibration = of_counts(form)
    knots = np.asarray(calibration.scores)
    if form.scale == "log":
        knots = np.exp(knots[knots < 80])
    rows = np.concatenate([knots, knots * 1.01, [0, 5e3, 3e38, np.inf, -1e30, np.nan]])
    rows = np.concatenate([rows, np.nextafter(rows.astype(np.float32), np.float32(9))])
    rows = rows.astype(np.float32)[:, None]
    found = onnx_runner(with_calibration(raw, calibration))(rows)
    expected = calibrated(rows[:, 0].astype(np.float64), calibration)
    close = np.abs(found - expected.astype(np.float32))
    assert np.nanmax(close) <= 2**-24
    odd = np.isnan(rows[:, 0]) | (form.scale == "log") * (rows[:, 0] < 0)
    assert (np.isnan(found).all(axis=1) == odd).all()


def test_equal_scores_of_many_normal_rows_count_as_high():
    """Nine in ten rows share the highest score: reaching it alarms nine in ten."""
    scores = np.repeat([1.0, 2.0], [100, 900])
    found = calibrated(
        np.array([2.0]), fit_calibration(scores, form=PLAIN, rows="rows")
    )
    assert found[0, 0] == pytest.approx(900 / 1001)


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        (np.arange(99.0), "at least 100 rows"),
        (np.full(500, np.nan), "0 rows have a score"),
        (np.full(500, 3.0), "all rows have the raw score 3"),
    ],
)
def test_rows_that_say_nothing_are_refused(scores, problem):
    """The message has their number or their score."""
    with pytest.raises(ArgumentError, match=problem):
        fit_calibration(scores, form=PLAIN, rows="rows of a.csv")


def test_a_detector_is_not_pruned():
    """The calibration belongs to all of its trees."""
    with pytest.raises(ConversionError, match="fewer trees"):
        CalibratedDetector(None, of_counts()).pruned(trees=1, depth=None)
