"""Judge a product of readings by known faults, next to simpler detectors."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.detection.alarm_budget import rows_of_machines
from tollgate.detection.alarms import AlarmRule
from tollgate.detection.benchmark import Comparison, compare_detectors
from tollgate.detection.detection_quality import LabelledSeries
from tollgate.detection.nab_score import window_bounds
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.scoring_model import ScoringModel
from tollgate.errors import InputError
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.history import History
from tollgate.policy import POLICY_FILE, Policy
from tollgate.product.reading_rows import read_spec_readings
from tollgate.product.table_reading import (
    as_text,
    as_times_us,
    find_column,
    read_table,
)
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.releases.served_versions import load_policy_of, read_served
from tollgate.schema import MISSING

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

_BEGIN, _END = "begin", "end"


class ReadingQuality(msgspec.Struct, frozen=True):
    """
    Quality of a product's alarms on readings with known faults.

    Attributes:
        release: Name of the product's model version, such as `plant_model 1`.
        readings, machines, faults: Number of each.
        comparisons: The product first, then the simpler detectors.
        notes: Rows and cells of the table that do not count, and other remarks.
    """

    release: str
    readings: int
    machines: int
    faults: int
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()


def judge_readings(
    readings: Path, faults: Path, *, repository: Path, product: str
) -> ReadingQuality:
    """
    Score readings with a product's released model, and judge its alarms.

    An alarm is the begin of a level that thresholds and hysteresis of the policy give;
    its rules, such as those on stuck sensors, do not count. The first 15 % of the
    readings of each machine, at most 750, are not judged.

    Args:
        readings: Table of readings, under the product's names or its aliases.
        faults: Table with a row for each fault: the machine's id, `begin` and `end`;
            without rows, no fault is known, and every alarm is false.
        repository: The model repository.
        product: Name of the product.

    Raises:
        InputError: A table is unusable, or the product is not one of readings.
    """
    served = read_served(repository, product)
    steps = served.product
    spec = load_spec(served.file(steps.features_step, name=SPEC_FILE))
    policy = load_policy_of(
        served.file(steps.decision_step, name=POLICY_FILE).parent, spec
    )
    rule = policy_rule(policy, product)
    read = read_spec_readings(readings, spec=spec)
    history, notes = read.history, list(read.notes)
    (entity,) = spec.entities
    machines = {one.decode() for one in set(history.entity_id[entity.key])}
    windows = _fault_windows(faults, spec, machines=machines)
    vectors = build(spec, history).astype(np.float32)
    path = served.file(steps.model_step, name=MODEL_FILE)
    session = OnnxSession(path, intra_op_threads=1)
    score = ScoringModel(session).probabilities(vectors)[:, 1]
    series, scores = _series(spec, history, vectors, score=score, windows=windows)
    comparisons = compare_detectors(series, scores, rules=[rule] * len(series))
    spans = sum(len(window_bounds(one.in_window)) for one in series)
    if spans < len(windows):
        notes.append(
            f"{len(windows)} faults are {spans} windows: those without a reading are "
            "not judged, and those that follow each other count as one"
        )
    if not windows:
        notes.append("no fault is known: every alarm counts as false")
    return ReadingQuality(
        release=f"{steps.model_step} {served.versions[steps.model_step]}",
        readings=len(history),
        machines=len(series),
        faults=len(windows),
        comparisons=tuple(comparisons),
        notes=tuple(notes),
    )


def policy_rule(policy: Policy, product: str) -> AlarmRule:
    """
    Return thresholds and hysteresis of a policy.

    Raises:
        InputError: It has no hysteresis: it is no product of readings; or its score is
            no probability.
    """
    if policy.score.number:
        problem = "its score is a number; only alarms by a probability are judged"
        raise InputError(product, problem, where="score")
    found = policy.hysteresis
    if found is None:
        problem = "has no hysteresis in its policy: it is no product of readings"
        raise InputError(product, problem)
    usual = policy.thresholds[0]
    return AlarmRule(
        watch=usual.review,
        alarm=np.inf if usual.decline is None else usual.decline,
        of=found.of,
        at_least=found.at_least,
        hold_us=found.hold_us,
        cool_down_us=found.cool_down_us,
    )


def _fault_windows(
    path: Path, spec: FeatureSpec, *, machines: Collection[str]
) -> list[tuple[str, int, int]]:
    """
    Read the faults: machine, begin and end, µs.

    A table without rows says that no fault is known. Without a column of machines, the
    faults are those of the only machine.
    """
    import polars as pl

    frame = read_table(path, may_be_empty=True).frame
    (entity,) = spec.entities
    named = find_column(frame, entity.key, spec)
    if named is None and len(machines) == 1:
        (only,) = machines
        frame = frame.with_columns(pl.lit(only).alias(entity.key))
    found = {}
    for name in (entity.key, _BEGIN, _END):
        column = find_column(frame, name, spec)
        if column is None:
            problem = f"column missing; the table has {', '.join(frame.columns)}"
            raise InputError(path, problem, where=name)
        found[name] = frame[column]
    windows = []
    for row, one in enumerate(
        zip(
            as_text(found[entity.key]),
            as_times_us(found[_BEGIN]),
            as_times_us(found[_END]),
            strict=True,
        ),
        1,
    ):
        if None in one:
            raise InputError(path, f"row {row} lacks machine, begin or end")
        machine, begin_us, end_us = one
        if begin_us > end_us:
            raise InputError(path, f"row {row} ends before it begins")
        if machine not in machines:
            problem = f"{machine!r} has a fault and no readings"
            raise InputError(path, f"row {row}: {problem}", where=entity.key)
        windows.append((machine, begin_us, end_us))
    return windows


def _series(
    spec: FeatureSpec,
    history: History,
    vectors: F32,
    *,
    score: F32,
    windows: list[tuple[str, int, int]],
) -> tuple[list[LabelledSeries], list[F32]]:
    """Divide readings by machine, in the order of time; return their scores, too."""
    (entity,) = spec.entities
    values = np.column_stack(
        [
            np.where(
                history.fields[field.name] == MISSING,
                np.nan,
                vectors[:, column].astype(np.float64),
            )
            for column, field in spec.numbers.items()
        ]
    )
    time_us, code = history.event_time_us, history.entity_codes(entity.key)
    own_windows: dict[str, list[tuple[int, int]]] = {}
    for name, begin_us, end_us in windows:
        own_windows.setdefault(name, []).append((begin_us, end_us))
    series, scores = [], []
    for rows in rows_of_machines(code, time_us):
        machine = history.entity_id[entity.key][rows[0]].decode()
        inside = np.zeros(len(rows), np.bool_)
        for begin_us, end_us in own_windows.get(machine, ()):
            inside |= (time_us[rows] >= begin_us) & (time_us[rows] <= end_us)
        series.append(
            LabelledSeries(
                machine=machine,
                time_us=time_us[rows],
                values=values[rows],
                in_window=inside,
            )
        )
        scores.append(score[rows])
    return series, scores
