"""The graph of a detector computes what the detector does."""

import numpy as np
import onnx
import onnxruntime
import polars as pl
import pytest

from converters.onnx.from_reading_detector import onnx_from_reading_detector
from tests.support.detection.readings import machine_readings
from tollgate.detection.detector import detector_scores, train_detector
from tollgate.detection.reading_features import build_features, propose_features
from tollgate.schema import FEATURES, PROBABILITIES


def trained(*, sensors):
    """Train a detector on simulated readings; return it with its features."""
    table = machine_readings(sensors=sensors, seed=sensors)
    columns = [f"s{at}" for at in range(sensors)]
    features = propose_features(
        table, product="pumps", machine="machine_id", sensors=columns
    )
    vectors, names = build_features(table, features)
    return train_detector(vectors, names, sensors=columns), vectors


@pytest.mark.parametrize("sensors", [1, 3, 16])
def test_the_graph_scores_as_numpy(sensors):
    """In every bit: readings, features far outside, no numbers, and a row alone."""
    detector, vectors = trained(sensors=sensors)
    session = onnxruntime.InferenceSession(onnx_from_reading_detector(detector))
    far = np.random.default_rng(0).normal(size=(500, vectors.shape[1])) * 1e4
    far[:, detector.readings] = np.abs(far[:, detector.readings])
    odd = np.repeat(vectors[900:901], 6, axis=0)
    odd[:, 1:] = np.array([[np.inf], [-np.inf], [np.nan], [3e38], [-3e38], [1e-45]])
    for table in (vectors, far.astype(np.float32), odd, vectors[7:8]):
        (answer,) = session.run([PROBABILITIES], {FEATURES: table})
        expected = detector_scores(detector, table)
        assert answer.dtype == np.float32
        assert answer[:, 1].tolist() == expected.tolist()
        assert answer[:, 0].tolist() == (1 - expected).tolist()
    assert detector_scores(detector, vectors).max() > 0.99


def test_a_switch_next_to_a_measurement_scores_as_numpy():
    """Its curves have fewer segments; an infinite feature still gives a number."""
    table = machine_readings(sensors=2, seed=5).with_columns(
        (pl.col("event_time").dt.hour() < 1).cast(float).alias("s1")
    )
    features = propose_features(
        table, product="pumps", machine="machine_id", sensors=["s0", "s1"]
    )
    vectors, names = build_features(table, features)
    detector = train_detector(vectors, names, sensors=["s0", "s1"])
    knots = [
        len(one.at)
        for sensor in detector.sensors
        for measures in sensor.measures
        for one in measures.shift_surprises
    ]
    assert len(set(knots)) > 1
    odd = np.repeat(vectors[900:901], len(names), axis=0)
    at = np.arange(1, len(names))
    odd[at, at] = np.inf
    session = onnxruntime.InferenceSession(onnx_from_reading_detector(detector))
    for rows in (vectors, odd, -odd):
        rows[:, detector.readings] = np.abs(rows[:, detector.readings])
        (answer,) = session.run([PROBABILITIES], {FEATURES: rows})
        expected = detector_scores(detector, rows)
        assert np.isfinite(expected).all()
        assert answer[:, 1].tolist() == expected.tolist()


def test_the_graph_never_falls_when_a_measure_grows():
    """To the last bit."""
    detector, vectors = trained(sensors=3)
    session = onnxruntime.InferenceSession(onnx_from_reading_detector(detector))
    sizes = np.geomspace(1e-3, 1e6, 3_000, dtype=np.float32)
    for measures in detector.sensors[1].measures:
        for column in (measures.deviation, *measures.shifts):
            table = np.repeat(vectors[1_000:1_001], len(sizes), axis=0)
            table[:, measures.own] = table[:, measures.greatest]
            table[:, column] = sizes
            (answer,) = session.run(None, {FEATURES: table})
            assert (np.diff(answer[:, 1]) >= 0).all()


def test_the_same_detector_gives_the_same_bytes():
    """Its input and output are those of every product's model."""
    detector, vectors = trained(sensors=1)
    first, second = (
        onnx_from_reading_detector(detector),
        onnx_from_reading_detector(detector),
    )
    assert first == second
    graph = onnx.load_from_string(first).graph
    (given,), (answer,) = graph.input, graph.output
    assert (given.name, answer.name) == (FEATURES, PROBABILITIES)
    assert given.type.tensor_type.shape.dim[1].dim_value == vectors.shape[1]
    assert answer.type.tensor_type.shape.dim[1].dim_value == 2
