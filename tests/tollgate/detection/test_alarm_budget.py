"""Thresholds from a budget of false alarms."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scipy.stats import gumbel_r

from tests.tollgate.detection.simulated_machines import (
    DESIGN_KINDS,
    PlantSize,
    simulate_machines,
)
from tollgate.detection.alarm_budget import (
    MachineReadings,
    budget_rule,
    extrapolated_level,
    held_out_alarms,
    score_threshold,
    usual_budget,
)
from tollgate.detection.alarms import AlarmRule, alarm_onsets
from tollgate.detection.detector import MOST_SCORE, detector_scores, train_detector
from tollgate.detection.reading_features import (
    READINGS,
    build_features,
    propose_features,
    sensor_features,
)
from tollgate.errors import InputError

DAY_US = 86_400 * 10**6


@pytest.fixture(scope="module")
def plant():
    """Train on the first 70 % of 3 machines without faults; 10 days each."""
    size = PlantSize(sensors=4, interval_s=300, machines=3, readings=6_000, faults=0)
    made = simulate_machines(size, seed=11, kinds=DESIGN_KINDS, batches=False)
    features = propose_features(
        made.table, product="p", machine="machine_id", sensors=made.sensors
    )
    vectors, names = build_features(made.table, features)
    trained = np.tile(np.arange(size.readings) < 4_200, size.machines)
    detector = train_detector(vectors[trained], names, sensors=made.sensors)
    readings = MachineReadings(
        features=vectors,
        machine=np.repeat(np.arange(size.machines), size.readings),
        time_us=made.table["event_time"].cast(int).to_numpy(),
        trained=trained,
    )
    return detector, readings, features.interval_us


def alarms(detector, readings, rule):
    """Count the alarms by machine, over the whole time."""
    score = detector_scores(detector, readings.features)
    return sum(
        len(alarm_onsets(score[rows], readings.time_us[rows], rule))
        for rows in readings.rows()
    )


def test_a_larger_budget_gives_more_alarms(plant):
    """63 machine-days: few alarms for 0.02 of a machine in a day, and more for 1."""
    detector, readings, interval_us = plant
    found = []
    for budget in (0.02, 0.2, 1.0):
        rule = budget_rule(
            detector, readings, interval_us=interval_us, false_alarms_per_day=budget
        )
        assert rule.watch < rule.alarm < 1
        found.append(alarms(detector, readings, rule))
    assert found[0] < found[1] < found[2]
    assert found[0] <= 6
    assert 20 <= found[2] <= 120


def test_readings_may_have_any_order(plant):
    """Machines and times say what follows what."""
    detector, readings, interval_us = plant
    order = np.random.default_rng(0).permutation(len(readings.machine))
    mixed = MachineReadings(
        features=readings.features[order],
        machine=readings.machine[order],
        time_us=readings.time_us[order],
        trained=readings.trained[order],
    )
    rules = [
        budget_rule(detector, one, interval_us=interval_us, false_alarms_per_day=0.1)
        for one in (readings, mixed)
    ]
    assert rules[0] == rules[1]


def test_levels_follow_the_gumbel_distribution():
    """Of 100,000 largest values, the share of the largest 0.1 % is found."""
    blocks = gumbel_r.rvs(loc=2, scale=0.5, size=100_000, random_state=3)
    expected = gumbel_r.isf(1e-3, loc=2, scale=0.5)
    assert extrapolated_level(blocks, 1e-3) == pytest.approx(expected, rel=0.01)


def test_few_faults_hardly_move_a_level():
    """3 % of the blocks are ten times as large: the level moves by less than 10 %."""
    blocks = gumbel_r.rvs(loc=2, scale=0.5, size=2_000, random_state=3)
    clean = extrapolated_level(blocks, 1e-3)
    blocks[:60] *= 10
    assert extrapolated_level(blocks, 1e-3) == pytest.approx(clean, rel=0.1)


def test_the_default_is_one_alarm_in_30_days_or_10_000_readings():
    """Every 5 minutes 8,640 readings take 30 days; every second, under 3 hours."""
    assert usual_budget(300 * 10**6) == 1 / 30
    assert usual_budget(10**6) == pytest.approx(8.64)


def test_an_impossible_budget_or_too_few_readings_are_refused(plant):
    """The message names the argument."""
    detector, readings, interval_us = plant
    for budget in (0.0, float("nan")):
        with pytest.raises(InputError, match="false_alarms"):
            budget_rule(
                detector, readings, interval_us=interval_us, false_alarms_per_day=budget
            )
    none = msgspec.structs.replace(readings, trained=np.zeros_like(readings.trained))
    with pytest.raises(InputError, match="too few: thresholds need 720"):
        budget_rule(detector, none, interval_us=interval_us, false_alarms_per_day=0.1)


def test_a_sensor_that_mostly_rests_has_no_budget():
    """Of 100 blocks 10 have a surprise: a level of 0 would be one alarm for ever."""
    names = (READINGS, "s", *sensor_features("s"))
    vectors = np.zeros((3_600, len(names)), np.float32)
    vectors[:, 0] = 500
    moves = np.arange(0, 3_600, 360)
    vectors[moves[:, None] + np.arange(6), 1:] = np.linspace(1, 2, 6)[:, None]
    detector = train_detector(vectors, names, sensors=["s"])
    readings = MachineReadings(
        features=vectors,
        machine=np.zeros(3_600, np.int64),
        time_us=np.arange(3_600) * 1_000_000,
        trained=np.ones(3_600, np.bool_),
    )
    with pytest.raises(InputError, match="rarely change"):
        budget_rule(
            detector, readings, interval_us=1_000_000, false_alarms_per_day=8.64
        )
    score = detector_scores(detector, vectors)
    threshold = score_threshold(detector, float(np.quantile(score, 0.9)))
    assert (score >= threshold).sum() == 60


def test_every_score_reaches_its_own_threshold(plant):
    """Also the highest; the next lower number of float32 does not."""
    detector, _, _ = plant
    highest = MOST_SCORE - np.arange(16, dtype=np.float32) * np.float32(2**-24)
    usual = np.linspace(0.5, 0.9999, 999, dtype=np.float32)
    for score in (*highest, *usual):
        threshold = score_threshold(detector, float(score))
        assert float(np.nextafter(score, np.float32(0))) < threshold <= float(score)


def test_held_out_alarms_are_those_of_the_later_readings():
    """Machine 1 alarms in both parts, machine 0 in none; 100 seconds each are left."""
    score = np.zeros(400, np.float32)
    machine = np.tile([0, 1], 200)
    score[[101, 301, 303, 351]] = 1
    readings = MachineReadings(
        features=np.zeros((400, 1), np.float32),
        machine=machine,
        time_us=np.arange(400) // 2 * 1_000_000,
        trained=np.arange(400) < 200,
    )
    found, days = held_out_alarms(readings, score, rule=AlarmRule(watch=1, alarm=1))
    assert found.tolist() == [301, 351]
    assert days == pytest.approx(2 * 99 / 86_400)
