"""Alarms agree with a machine that reads its scores one by one."""

import numpy as np
import pytest

from tollgate.detection.alarms import AlarmRule, alarm_onsets, reached_levels
from tollgate.errors import InputError
from tollgate.policy.hysteresis import (
    READING,
    Hysteresis,
    apply_readings,
    unpack_evidence,
)


def plain_onsets(score, time_us, rule):
    """Apply thresholds and hysteresis reading by reading, from their definition."""
    level, begin, end, onsets, reached_by = 0, None, None, [], []
    for at, now in enumerate(time_us):
        newest = score[max(0, at + 1 - rule.of) : at + 1]
        reached = 0
        if sum(one >= rule.alarm for one in newest) >= rule.at_least:
            reached = 2
        elif sum(one >= rule.watch for one in newest) >= rule.at_least:
            reached = 1
        reached_by.append(reached)
        cooling = level == 0 and end is not None and now - end < rule.cool_down_us
        held = reached < level and now - begin < rule.hold_us
        if reached == level or held or (reached and cooling):
            continue
        if reached > level:
            begin = now
            if reached == 2:
                onsets.append(at)
        elif reached == 0:
            end = now
        level = reached
    return onsets, reached_by


def random_case(seed):
    """Draw scores in runs, uneven times, and a rule."""
    random = np.random.default_rng(seed)
    runs = np.repeat(random.random(120), random.integers(1, 9, 120))
    score = np.clip(runs + 0.1 * random.normal(size=len(runs)), 0, 1)
    time_us = np.cumsum(random.integers(0, 5, len(score)))
    of = int(random.integers(1, 7))
    rule = AlarmRule(
        watch=0.7,
        alarm=float(random.choice([0.7, 0.85])),
        of=of,
        at_least=int(random.integers(1, of + 1)),
        hold_us=int(random.choice([0, 10, 40])),
        cool_down_us=int(random.choice([0, 10, 40])),
    )
    return score, time_us, rule


@pytest.mark.parametrize("seed", range(30))
def test_alarms_begin_as_reading_by_reading(seed):
    """Of random rules, on scores in runs and at uneven times."""
    score, time_us, rule = random_case(seed)
    onsets, reached = plain_onsets(score, time_us, rule)
    assert alarm_onsets(score, time_us, rule).tolist() == onsets
    assert reached_levels(score, rule).tolist() == reached


@pytest.mark.parametrize("seed", range(30))
def test_alarms_begin_as_in_a_product_with_hysteresis(seed):
    """The policy's hysteresis answers the level 2 from the same readings on."""
    score, time_us, rule = random_case(seed)
    raw = (score >= rule.watch).astype(np.uint8) + (score >= rule.alarm)
    readings = np.zeros(len(score), READING)
    readings["time_us"], readings["level"] = time_us, raw
    readings["id_hash"] = [at.to_bytes(8, "big") for at in range(len(score))]
    settings = Hysteresis(
        entity="machine",
        of=rule.of,
        at_least=rule.at_least,
        hold_us=rule.hold_us,
        cool_down_us=rule.cool_down_us,
        maintenance=0,
    )
    _, packed = apply_readings(None, readings.tobytes(), settings)
    columns = np.frombuffer(packed, np.int64).reshape(-1, 3)
    answered = np.array([one.answered for _, one in unpack_evidence(columns)])
    begins = (answered == 2) & (np.append(0, answered[:-1]) < 2)
    assert (
        alarm_onsets(score, time_us, rule).tolist() == np.flatnonzero(begins).tolist()
    )


def test_hysteresis_by_hand():
    """
    Two of three reach the level at 3; it holds until 8, and cools down until 11.
    """
    score = [0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    rule = AlarmRule(0.5, 0.5, of=3, at_least=2, hold_us=5, cool_down_us=3)
    assert alarm_onsets(score, np.arange(14), rule).tolist() == [3, 11]


def test_a_rise_from_watch_to_alarm_needs_no_cool_down():
    """The machine was not normal in between."""
    score = [0.9, 0.6, 0.9]
    assert alarm_onsets(
        score, [0, 1, 2], AlarmRule(0.5, 0.8, cool_down_us=100)
    ).tolist() == [0, 2]


def test_no_readings_have_no_alarms():
    """An empty series is valid."""
    assert alarm_onsets([], [], AlarmRule(0.5, 0.8)).tolist() == []


def test_a_rule_that_contradicts_itself_is_refused():
    """The value and the limit are named."""
    with pytest.raises(InputError, match=r"watch: 0\.9 is above"):
        AlarmRule(watch=0.9, alarm=0.8)
    with pytest.raises(InputError, match="at_least: 4 is not within 1 … 3"):
        AlarmRule(watch=0.5, alarm=0.8, of=3, at_least=4)
