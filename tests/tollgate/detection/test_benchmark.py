"""The detector finds simulated anomalies with fewer false alarms than its rivals."""

from datetime import datetime, timedelta

import polars as pl
import pytest

from tests.support.detection.readings import machine_readings
from tollgate.detection.alarms import alarm_rule
from tollgate.detection.benchmark import (
    compare_detectors,
    labelled_series,
)
from tollgate.detection.detector import detector_scores, train_detector
from tollgate.detection.reading_features import build_features, propose_features
from tollgate.errors import InputError
from tollgate.simulate.plant import SENSORS, faults_frame, simulate_plant


def test_series_are_the_rows_of_each_machine_in_the_order_of_time():
    """Their places lead back to the table."""
    table = machine_readings(rows=100, sensors=2).sample(
        fraction=1.0, shuffle=True, seed=0
    )
    series, places = labelled_series(
        table, machine="machine_id", sensors=["s0", "s1"], in_window="in_window"
    )
    assert [one.machine for one in series] == ["m0", "m1"]
    for one, rows in zip(series, places, strict=True):
        expected = table.filter(pl.col("machine_id") == one.machine).sort("event_time")
        assert one.values[:, 1].tolist() == expected["s1"].to_list()
        assert one.in_window.tolist() == expected["in_window"].to_list()
        assert table["s0"].to_numpy()[rows].tolist() == expected["s0"].to_list()


def test_a_missing_column_is_refused():
    """Its name and the table's columns are named."""
    table = machine_readings(rows=10, sensors=1)
    with pytest.raises(InputError, match="label: column missing; the table has"):
        labelled_series(table, machine="machine_id", sensors=["s0"], in_window="label")


def test_the_detector_has_fewer_false_alarms_than_its_rivals():
    """
    It is trained without labels on machines of three levels; all see the same readings.
    """
    table = machine_readings(machines=3, rows=3_000, sensors=2)
    sensors = ["s0", "s1"]
    features = propose_features(
        table, product="pumps", machine="machine_id", sensors=sensors
    )
    vectors, names = build_features(table, features)
    detector = train_detector(vectors, names, sensors=sensors)
    series, places = labelled_series(
        table, machine="machine_id", sensors=sensors, in_window="in_window"
    )
    found = compare_detectors(
        series,
        [detector_scores(detector, vectors[rows]) for rows in places],
        rules=[alarm_rule(features.interval_us)] * 3,
    )
    own, three_sigma, *others = found
    assert own.quality is not None
    assert own.quality.recall > 0.8
    assert own.quality.nab > 60
    assert three_sigma.quality is not None
    assert three_sigma.quality.false_alarms >= 2 * own.quality.false_alarms
    assert [one.detector for one in others] == [
        "3-sigma, hysteresis",
        "windowed Gaussian, hysteresis",
        "isolation forest, hysteresis",
    ]
    for one in (three_sigma, *others):
        if one.at_recall is not None:
            assert one.at_recall.recall >= own.quality.recall


def test_sensors_that_follow_a_load_need_half_the_false_alarms():
    """
    Four machines with two shifts a day, and 12 faults in the second week.

    Trained on the first week, at the recall of its own rule and at that of the 3-sigma
    rule, the detector has at most half of the false alarms of this rule.
    """
    plant = simulate_plant(machines=4, faults=12, interval_s=300, seed=3)
    table = plant.readings.join(
        faults_frame(plant).with_columns(in_window=True),
        left_on="machine",
        right_on="machine",
        how="left",
    )
    inside = pl.col("event_time").is_between("begin", "end", closed="left")
    table = table.group_by("reading_id", "machine", "event_time", *SENSORS).agg(
        in_window=inside.fill_null(False).any()
    )
    table = table.sort("reading_id")
    features = propose_features(
        table, product="plant", machine="machine", sensors=SENSORS
    )
    vectors, names = build_features(table, features)
    learning = (
        table["event_time"] < datetime(2024, 3, 4) + timedelta(days=7)
    ).to_numpy()
    detector = train_detector(vectors[learning], names, sensors=SENSORS)
    series, places = labelled_series(
        table, machine="machine", sensors=SENSORS, in_window="in_window"
    )
    scores = [detector_scores(detector, vectors[rows]) for rows in places]
    rules = [alarm_rule(features.interval_us)] * len(series)
    own, three_sigma, *_ = compare_detectors(series, scores, rules=rules)
    assert own.quality is not None
    assert own.quality.recall > 0.8
    assert three_sigma.at_recall is None or (
        2 * own.quality.false_alarms <= three_sigma.at_recall.false_alarms
    )
    assert three_sigma.quality is not None
    same, *_ = compare_detectors(
        series, scores, rules=rules, recall=three_sigma.quality.recall
    )
    assert same.at_recall is not None
    assert 2 * same.at_recall.false_alarms <= three_sigma.quality.false_alarms
