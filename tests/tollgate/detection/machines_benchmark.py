"""
Judge the detector on simulated machines with many sensors, next to simpler detectors.

    python -m tests.tollgate.detection.machines_benchmark

The machines work in batches and their faults are of six kinds; no choice of the
detector used either. The detector learns from the first half of the time, without
faults and with some, and is judged on the second. The simpler detectors see all earlier
readings of the machine.
"""

from __future__ import annotations

import sys

import msgspec
import numpy as np
import numpy.typing as npt

from tests.tollgate.detection.simulated_machines import (
    UNSEEN_KINDS,
    PlantSize,
    SimulatedMachines,
    simulate_machines,
)
from tollgate.detection.alarm_budget import MachineReadings, budget_rule, usual_budget
from tollgate.detection.alarms import AlarmRule, alarm_onsets
from tollgate.detection.benchmark import labelled_series
from tollgate.detection.detection_quality import (
    LabelledSeries,
    Quality,
    Scores,
    judge_alarms,
    quality_at_recall,
)
from tollgate.detection.detector import (
    Detector,
    detector_scores,
    sensor_surprise,
    train_detector,
)
from tollgate.detection.reading_features import build_features, propose_features
from tollgate.detection.rivals import isolation_forest, three_sigma, windowed_gaussian
from tollgate.errors import InputError

I64 = npt.NDArray[np.int64]

SENSORS = (3, 8, 16)
INTERVALS_S = (10, 300, 900)
SEEDS = (101, 102)
EARLY_FAULTS = (0, 4)
_TRAINED_SHARE = 0.7  # of the time to learn from; the rest checks the thresholds
_SIGMA = 3.0


class PlantQuality(msgspec.Struct, frozen=True):
    """
    Quality on one plant.

    Attributes:
        own: Of the detector with its own threshold.
        by_kind: Kind of fault -> number of faults, and of those that it detects.
        named: Share of the detected faults whose most surprising sensor is faulty.
        rivals: Name -> with its own threshold, at the detector's recall, and the
            detector at the recall of its own threshold; None where there is none.
    """

    own: Quality
    by_kind: dict[str, tuple[int, int]]
    named: float
    rivals: dict[str, tuple[Quality | None, Quality | None, Quality | None]]


def judge_plant(size: PlantSize, *, seed: int) -> PlantQuality:
    """Simulate a plant, train on its first half, and judge alarms on the second."""
    plant = simulate_machines(size, seed=seed, kinds=UNSEEN_KINDS, batches=True)
    features = propose_features(
        plant.table, product="plant", machine="machine_id", sensors=plant.sensors
    )
    vectors, names = build_features(plant.table, features)
    series, places = labelled_series(
        plant.table,
        machine="machine_id",
        sensors=plant.sensors,
        in_window="in_window",
    )
    half = size.readings // 2
    past = np.concatenate([rows[:half] for rows in places])
    trained = np.tile(np.arange(half) < _TRAINED_SHARE * half, len(places))
    detector = train_detector(vectors[past][trained], names, sensors=plant.sensors)
    interval_us = features.interval_us
    rule = budget_rule(
        detector,
        MachineReadings(
            features=vectors[past],
            machine=np.repeat(np.arange(len(places)), half),
            time_us=np.concatenate([one.time_us[:half] for one in series]),
            trained=trained,
        ),
        interval_us=interval_us,
        false_alarms_per_day=usual_budget(interval_us),
    )
    later = [
        LabelledSeries(
            machine=one.machine,
            time_us=one.time_us[half:],
            values=one.values[half:],
            in_window=one.in_window[half:],
        )
        for one in series
    ]
    scores = [detector_scores(detector, vectors[rows[half:]]) for rows in places]
    onsets = [
        alarm_onsets(score, one.time_us, rule)
        for score, one in zip(scores, later, strict=True)
    ]
    own = judge_alarms(later, onsets)
    by_kind, named = _found_faults(
        plant, detector, onsets=onsets, vectors=vectors, places=places, half=half
    )

    def hysteresis(at: int, score: Scores, threshold: float) -> I64:
        one = msgspec.structs.replace(rule, watch=threshold, alarm=threshold)
        return alarm_onsets(score, later[at].time_us, one)

    def runs(at: int, score: Scores, threshold: float) -> I64:
        one = AlarmRule(watch=threshold, alarm=threshold)
        return alarm_onsets(score, later[at].time_us, one)

    rivals = {}
    for name, function, alarms, threshold in (
        ("3-sigma rule", three_sigma, runs, _SIGMA),
        ("3-sigma, hysteresis", three_sigma, hysteresis, _SIGMA),
        ("windowed Gaussian, hysteresis", windowed_gaussian, hysteresis, _SIGMA),
        ("isolation forest, hysteresis", isolation_forest, hysteresis, None),
    ):
        found = [function(one.values)[half:] for one in series]
        usual = None
        if threshold is not None:
            usual = judge_alarms(
                later, [alarms(at, one, threshold) for at, one in enumerate(found)]
            )
        rivals[name] = (
            usual,
            _at_recall(later, found, recall=own.recall, onsets=alarms),
            None
            if usual is None
            else _at_recall(later, scores, recall=usual.recall, onsets=hysteresis),
        )
    return PlantQuality(own=own, by_kind=by_kind, named=named, rivals=rivals)


def _at_recall(series, scores, *, recall, onsets) -> Quality | None:
    """Judge at the highest threshold with a recall; None if it is never reached."""
    try:
        return quality_at_recall(series, scores, recall=recall, onsets=onsets)
    except InputError:
        return None


def _found_faults(
    plant: SimulatedMachines,
    detector: Detector,
    *,
    onsets: list[I64],
    vectors: npt.NDArray[np.float32],
    places: list[I64],
    half: int,
) -> tuple[dict[str, tuple[int, int]], float]:
    """Count the faults and the found ones by kind, and those with the right sensor."""
    by_kind: dict[str, tuple[int, int]] = {}
    named = []
    for fault in plant.faults:
        if fault.first < half:
            continue
        at = onsets[fault.machine] + half
        inside = at[(at >= fault.first) & (at <= fault.last)]
        faults, found = by_kind.get(fault.kind, (0, 0))
        by_kind[fault.kind] = (faults + 1, found + bool(len(inside)))
        if len(inside):
            row = vectors[places[fault.machine][inside[:1]]]
            surprise = [sensor_surprise(row, one)[0] for one in detector.sensors]
            named.append(int(np.argmax(surprise)) in fault.sensors)
    return by_kind, float(np.mean(named)) if named else float("nan")


def total(found: list[Quality | None]) -> str:
    """Sum up the quality on some plants; those without a figure are named."""
    known = [one for one in found if one is not None]
    if not known:
        return "never"
    days = sum(one.sensor_days for one in known)
    alarms = sum(one.false_alarms for one in known)
    detected = sum(one.detected for one in known)
    windows = sum(one.windows for one in known)
    text = f"{detected} of {windows}, {alarms} false, {alarms / days:.4f} a sensor-day"
    if len(known) < len(found):
        text += f" ({len(found) - len(known)} of {len(found)} plants: never)"
    return text


def main() -> None:
    """Print the quality for each number of sensors and kind of training."""
    for sensors in SENSORS:
        for early in EARLY_FAULTS:
            found, readings = [], []
            for interval_s in INTERVALS_S:
                for seed in SEEDS:
                    size = PlantSize(
                        sensors=sensors, interval_s=interval_s, early_faults=early
                    )
                    one = judge_plant(size, seed=seed)
                    found.append(one)
                    readings.append(one.own.delay_s / interval_s)
            print(f"\n{sensors} sensors, {early} faults a machine in the training")
            delay, named = np.nanmedian(readings), np.nanmean([x.named for x in found])
            print(
                f"  detector: {total([one.own for one in found])}, delay {delay:.0f} "
                f"readings, faulty sensor named {named:.0%}"
            )
            kinds: dict[str, list[int]] = {}
            for one in found:
                for kind, (many, seen) in one.by_kind.items():
                    sums = kinds.setdefault(kind, [0, 0])
                    sums[0] += many
                    sums[1] += seen
            texts = [f"{kind} {b}/{a}" for kind, (a, b) in sorted(kinds.items())]
            print(f"    {', '.join(texts)}")
            for name in found[0].rivals:
                usual, same, own = zip(
                    *(one.rivals[name] for one in found), strict=True
                )
                print(f"  {name}: {total(list(usual))}")
                print(f"    at the detector's recall: {total(list(same))}")
                print(f"    detector at its recall: {total(list(own))}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
