"""
Compare the detector with its rivals on readings with labelled windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.detection.alarms import AlarmRule, alarm_onsets
from tollgate.detection.detection_quality import (
    LabelledSeries,
    Onsets,
    Quality,
    Scores,
    judge_alarms,
    quality_at_recall,
)
from tollgate.detection.rivals import isolation_forest, three_sigma, windowed_gaussian
from tollgate.errors import InputError
from tollgate.schema import EVENT_TIME

if TYPE_CHECKING:
    import polars as pl

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_SIGMA = 3.0


class Comparison(msgspec.Struct, frozen=True):
    """
    Quality of one detector.

    Attributes:
        detector: Its name.
        quality: With its own threshold; None without one.
        at_recall: With the highest threshold at which it reaches the recall of the
            comparison; None if it never does.
    """

    detector: str
    quality: Quality | None
    at_recall: Quality | None


def labelled_series(
    table: pl.DataFrame, *, machine: str, sensors: Sequence[str], in_window: str
) -> tuple[list[LabelledSeries], list[I64]]:
    """
    Divide a table of readings with labels into the series of its machines.

    Args:
        table: Columns `event_time`, the machine's ids, the sensors, and the labels.
        machine: Column of the machines' ids.
        sensors: Columns of numbers.
        in_window: Column that is true for the readings in a labelled window.

    Returns:
        The series, and the position in the table of each of their readings.

    Raises:
        InputError: A column is missing.
    """
    import polars as pl

    for name in (EVENT_TIME, machine, *sensors, in_window):
        if name not in table.columns:
            problem = f"column missing; the table has {', '.join(table.columns)}"
            raise InputError("readings", problem, where=name)
    times = table[EVENT_TIME].cast(pl.Datetime("us")).cast(pl.Int64).to_numpy()
    names = table[machine].cast(pl.String)
    code = names.rank("dense").to_numpy()
    values = table.select(pl.col(*sensors).cast(pl.Float64)).to_numpy()
    flags = table[in_window].cast(pl.Boolean).fill_null(False).to_numpy()
    order = np.lexsort((times, code))
    stops = np.flatnonzero(np.diff(code[order])) + 1
    places = [np.asarray(one, np.int64) for one in np.split(order, stops)]
    found = [
        LabelledSeries(
            machine=str(names[int(rows[0])]),
            time_us=times[rows],
            values=values[rows],
            in_window=flags[rows],
        )
        for rows in places
        if len(rows)
    ]
    return found, places


def compare_detectors(
    series: Sequence[LabelledSeries],
    scores: Sequence[F32],
    *,
    rules: Sequence[AlarmRule],
    recall: float | None = None,
) -> list[Comparison]:
    """
    Compare the detector's alarms with those of its rivals at one recall.

    The 3-sigma rule begins an alarm with each run of readings above its threshold. The
    other rivals get the detector's hysteresis.

    Args:
        series: The series.
        scores: The detector's scores of the readings of each; [N] each.
        rules: The alarm rule of each series.
        recall: Share of windows to compare at; None for that of the detector's rule.

    Returns:
        The detector, the 3-sigma rule, the same with hysteresis, the windowed Gaussian
        and the isolation forest, both with hysteresis.

    Raises:
        InputError: No series has a labelled window.
    """

    def hysteresis(at: int, score: Scores, threshold: float) -> I64:
        rule = msgspec.structs.replace(rules[at], watch=threshold, alarm=threshold)
        return alarm_onsets(score, series[at].time_us, rule)

    def runs(at: int, score: Scores, threshold: float) -> I64:
        return alarm_onsets(
            score, series[at].time_us, AlarmRule(watch=threshold, alarm=threshold)
        )

    own = judge_alarms(
        series,
        [
            alarm_onsets(score, one.time_us, rule)
            for one, score, rule in zip(series, scores, rules, strict=True)
        ],
    )
    distances = [three_sigma(one.values) for one in series]
    rivals: list[tuple[str, list[F64], Onsets, float | None]] = [
        ("3-sigma rule", distances, runs, _SIGMA),
        ("3-sigma, hysteresis", distances, hysteresis, _SIGMA),
        (
            "windowed Gaussian, hysteresis",
            [windowed_gaussian(one.values) for one in series],
            hysteresis,
            _SIGMA,
        ),
        (
            "isolation forest, hysteresis",
            [isolation_forest(one.values) for one in series],
            hysteresis,
            None,
        ),
    ]
    wanted = own.recall if recall is None else recall

    def at_recall(score: Sequence[Scores], onsets: Onsets) -> Quality | None:
        if np.isnan(wanted):
            return None  # there is no window
        # One that never detects as many windows is reported without a figure.
        try:
            return quality_at_recall(series, score, recall=wanted, onsets=onsets)
        except InputError:
            return None

    same = own if recall is None else at_recall(scores, hysteresis)
    found = [Comparison("detector", own, same)]
    for name, score, onsets, threshold in rivals:
        quality = None
        if threshold is not None:
            quality = judge_alarms(
                series, [onsets(at, one, threshold) for at, one in enumerate(score)]
            )
        found.append(Comparison(name, quality, at_recall(score, onsets)))
    return found
