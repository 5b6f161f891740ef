"""
Publish thresholds for a retrained detector as the next version of the policy.

Above 0.999 a score only orders readings, by a scale that each training sets. So a
threshold that a budget chose fits one detector, and another one needs its own.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from tollgate.detection.alarm_budget import MachineReadings, budget_rule
from tollgate.detection.alarms import AlarmRule
from tollgate.detection.detector import Detector
from tollgate.detection.reading_features import median_interval_us
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.policy import POLICY_FILE
from tollgate.product.reading_quality import policy_rule
from tollgate.repository.releases.served_versions import load_policy_of, read_served
from tollgate.repository.versions import place_version, staged_version
from tollgate.templating import yaml_number


class ThresholdUpdate(msgspec.Struct, frozen=True):
    """
    A published version of the policy.

    Attributes:
        step: Name of the decision step.
        version: Its new version.
        watch, alarm: Thresholds in it.
    """

    step: str
    version: int
    watch: float
    alarm: float


def update_thresholds(
    detector: Detector,
    readings: MachineReadings,
    *,
    repository: Path,
    product: str,
    false_alarms_per_day: float,
) -> ThresholdUpdate:
    """
    Choose thresholds for a new detector by a budget, and publish the policy with them.

    Everything else in the released policy stays, its comments included. The release
    does not change.

    Args:
        detector: The retrained detector.
        readings: Readings that it learned from, and held-out ones.
        repository: The model repository.
        product: Name of the product.
        false_alarms_per_day: The budget, of one machine.

    Raises:
        InputError: The readings are too few, or thresholds of the policy are not
            plain numbers that can be replaced; nothing is published.
    """
    served = read_served(repository, product)
    steps = served.product
    spec = load_spec(served.file(steps.features_step, name=SPEC_FILE))
    path = served.file(steps.decision_step, name=POLICY_FILE)
    old = policy_rule(load_policy_of(path.parent, spec), product)
    new = budget_rule(
        detector,
        readings,
        interval_us=median_interval_us(readings.machine, readings.time_us),
        false_alarms_per_day=false_alarms_per_day,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "policy"
        shutil.copytree(path.parent, folder)
        text = with_thresholds(path.read_text("utf-8"), old=old, new=new)
        (folder / POLICY_FILE).write_text(text, "utf-8")
        made = policy_rule(load_policy_of(folder, spec), product)
        if (made.watch, made.alarm) != (new.watch, new.alarm):
            problem = (
                f"write thresholds {yaml_number(new.watch)} and "
                f"{yaml_number(new.alarm)} into a new version yourself: the numbers "
                "in it are not those that `product new` writes"
            )
            raise InputError(path, problem)
        with staged_version(
            repository, step=steps.decision_step, source=folder
        ) as staged:
            version = place_version(
                staged, repository=repository, step=steps.decision_step
            )
    return ThresholdUpdate(steps.decision_step, version, new.watch, new.alarm)


def with_thresholds(text: str, *, old: AlarmRule, new: AlarmRule) -> str:
    """Replace the numbers of the old thresholds in a policy.yaml, in its rules too."""
    numbers = {
        yaml_number(before): yaml_number(after)
        for before, after in ((old.watch, new.watch), (old.alarm, new.alarm))
        if np.isfinite(before)
    }
    either = "|".join(re.escape(one) for one in numbers)
    return re.sub(
        rf"(?<![\w.])(?:{either})(?![\w.])", lambda one: numbers[one[0]], text
    )
