"""
Draw docs/sensors.png: readings, score, alarms and faults of a simulated machine.

    python tools/sensors_picture.py

The plants and the alarms are those of docs/sensors.md: the detector learns from four
weeks without faults, and scores four weeks of other machines. The picture needs no
server: scores are computed from the whole history, and rules on single sensors do not
count. Everything is seeded, so the same libraries draw the same picture.
"""

from __future__ import annotations

import functools
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import DateFormatter, DayLocator, date2num
from matplotlib.figure import Figure

from tollgate.detection.alarm_budget import (
    MachineReadings,
    budget_rule,
    usual_budget,
)
from tollgate.detection.alarms import ALARM, AlarmRule, reached_levels
from tollgate.detection.detector import detector_scores, train_detector
from tollgate.detection.reading_features import build_features, propose_features
from tollgate.simulate.plant import SENSORS, Fault, simulate_plant

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "sensors.png"
_MACHINES, _DAYS, _INTERVAL_S = 6, 28.0, 300
_TRAINED_SHARE = 0.7  # of the quiet weeks, as `tollgate product new` trains
_MACHINE, _SENSOR, _UNIT = "M01", "pressure", "bar"
_BEGIN, _END = datetime(2024, 3, 24), datetime(2024, 3, 29)
_ALARM_COLOUR, _FAULT_COLOUR = "#d62728", "#ff7f0e"


def main() -> None:
    """Simulate, train, score, and write the picture."""
    readings, faults, rule = _scored_readings()
    shown = readings.filter(pl.col("event_time").is_between(_BEGIN, _END))
    figure = Figure(figsize=(9, 4.6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    values, scores = figure.subplots(2, 1, sharex=True)
    times = shown["event_time"].to_numpy()
    values.plot(times, shown[_SENSOR].to_numpy(), color="#1f77b4", linewidth=0.8)
    values.set_ylabel(f"{_SENSOR}, {_UNIT}")
    values.set_title(f"{_SENSOR} of machine {_MACHINE}, a reading every 5 minutes")
    # The score is 1 - the share of normal readings with as high a score.
    share = np.maximum(1 - shown["score"].to_numpy(), 1e-6)
    scores.plot(times, share, color="#444444", linewidth=0.8)
    lines = [
        scores.axhline(1 - level, color="#999999", linestyle=style, label=name)
        for level, style, name in (
            (rule.watch, ":", "threshold of watch"),
            (rule.alarm, "--", "threshold of alarm"),
        )
    ]
    scores.set_yscale("log")
    scores.invert_yaxis()
    scores.set_ylabel("1 - score (log)")
    for axes in (values, scores):
        _shade(axes, shown, faults)
    scores.legend(handles=lines, loc="upper left", fontsize=8)
    values.legend(loc="lower left", fontsize=8)
    scores.xaxis.set_major_locator(DayLocator())
    scores.xaxis.set_major_formatter(DateFormatter("%a %d %b"))
    scores.set_xlim(date2num(_BEGIN), date2num(_END))
    figure.savefig(PICTURE, metadata={"Software": None})


def _scored_readings() -> tuple[pl.DataFrame, list[Fault], AlarmRule]:
    """Return the machine's readings with `score` and `level`, its faults, the rule."""
    simulated = functools.partial(
        simulate_plant, machines=_MACHINES, days=_DAYS, interval_s=_INTERVAL_S
    )
    quiet = simulated(faults=0).readings
    plant = simulated(faults=12, seed=1)
    features = propose_features(
        quiet, product="plant", machine="machine", sensors=SENSORS
    )
    vectors, names = build_features(quiet, features)
    times = quiet["event_time"].cast(pl.Int64).to_numpy()
    trained = times <= times[0] + _TRAINED_SHARE * (times[-1] - times[0])
    detector = train_detector(vectors[trained], names, sensors=features.sensors)
    score = detector_scores(detector, build_features(plant.readings, features)[0])
    rule = budget_rule(
        detector,
        MachineReadings(
            vectors, quiet["machine"].rank("dense").to_numpy(), times, trained
        ),
        interval_us=features.interval_us,
        false_alarms_per_day=usual_budget(features.interval_us),
    )
    own = plant.readings.with_columns(score=score).filter(pl.col("machine") == _MACHINE)
    level = reached_levels(own["score"].to_numpy(), rule)
    faults = [one for one in plant.faults if one.machine == _MACHINE]
    return own.with_columns(level=level), faults, rule


def _shade(axes: Axes, shown: pl.DataFrame, faults: list[Fault]) -> None:
    """Shade the time of faults, and that of alarms."""
    for fault in faults:
        if _BEGIN <= fault.begin < _END:
            axes.axvspan(
                date2num(fault.begin),
                date2num(fault.end),
                color=_FAULT_COLOUR,
                alpha=0.3,
                label=f"fault: {fault.kind}",
            )
    times = shown["event_time"].to_list()
    alarms = np.concatenate([[0], shown["level"].to_numpy() == ALARM, [0]])
    (begins,) = np.nonzero(np.diff(alarms) == 1)
    (ends,) = np.nonzero(np.diff(alarms) == -1)
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        axes.axvspan(
            date2num(times[begin]),
            date2num(times[end - 1]),
            facecolor="none",
            edgecolor=_ALARM_COLOUR,
            hatch="//",
            alpha=0.6,
            label="" if number else "alarm",
        )


if __name__ == "__main__":
    main()
