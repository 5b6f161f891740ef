"""New thresholds in the text of a policy; test_readings.py publishes them."""

from __future__ import annotations

import numpy as np

from tollgate.detection.alarms import AlarmRule
from tollgate.product.threshold_update import with_thresholds

POLICY = """\
thresholds:
  watch: 0.9991
  alarm: 0.9995  # 0.9991 of all
rules:
  - {when: {score: {ge: 0.9991}, s: {ge: 10.9991}, t: {le: 0.99915}, u: {ge: 0.9995}}}
"""


def test_thresholds_change_in_rules_too_and_no_other_number_does() -> None:
    """The old alarm threshold may be the new one to watch."""
    old = AlarmRule(watch=0.9991, alarm=0.9995)
    new = AlarmRule(watch=0.9995, alarm=0.9999)
    assert with_thresholds(POLICY, old=old, new=new) == (
        """\
thresholds:
  watch: 0.9995
  alarm: 0.9999  # 0.9995 of all
rules:
  - {when: {score: {ge: 0.9995}, s: {ge: 10.9991}, t: {le: 0.99915}, u: {ge: 0.9999}}}
"""
    )


def test_a_policy_without_alarms_has_one_threshold() -> None:
    """No number stands for an infinite one."""
    old = AlarmRule(watch=0.9991, alarm=np.inf)
    new = AlarmRule(watch=0.9992, alarm=0.9999)
    assert with_thresholds("watch: 0.9991\n", old=old, new=new) == "watch: 0.9992\n"
