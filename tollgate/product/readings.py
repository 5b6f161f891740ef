"""
Create a product of readings: features, a detector without labels, alarms, a release.

The detector is trained on the first part of the readings; the rest says how often it
alarms. No row has an outcome, so nothing is said about what it finds: `tollgate
evaluate --faults` does, once faults are known.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.detection.alarm_budget import (
    MachineReadings,
    allowed_alarms,
    budget_rule,
    held_out_alarms,
    score_threshold,
    usual_budget,
)
from tollgate.detection.alarms import (
    ALARM_SCORE,
    WATCH_SCORE,
    AlarmRule,
    alarm_rule,
)
from tollgate.detection.detector import (
    FEWEST_READINGS,
    Detector,
    detector_scores,
    sensor_surprise,
    train_detector,
)
from tollgate.detection.reading_features import (
    LONG_WINDOWS,
    SHORT_WINDOWS,
    ReadingFeatures,
    feature_name,
    propose_features,
)
from tollgate.errors import ArgumentError, InputError
from tollgate.features.offline import build
from tollgate.features.spec.description import duration_text
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.history import history_of
from tollgate.pipeline import ProgressBar, no_progress_bar, publish_and_release
from tollgate.policy import POLICY_FILE
from tollgate.product.creation import ServingTrial, check_staged, run_serving_trial
from tollgate.product.files import (
    ASK_FILE,
    SCRIPT_FILE,
    all_texts,
    ask_text,
    slo_text,
    step_names,
)
from tollgate.product.placement import place, require_free
from tollgate.product.reading_rows import training_rows
from tollgate.product.reading_table import (
    ReadingChoices,
    ReadingTable,
    read_readings,
    require_enough,
)
from tollgate.product.rows import Rows
from tollgate.repository.slo import SLO_FILE
from tollgate.schema import EVENT_TIME, Outcomes
from tollgate.templating import render

if TYPE_CHECKING:
    import polars as pl

F32 = npt.NDArray[np.float32]
Report = Callable[[str, str], None]

OUTCOMES = Outcomes(("normal", "watch", "alarm"))
_CAUSE_SHARE = 0.9  # of readings that are nearer to their mean than a cause
_MOST_NAMED = 8  # sensors; with more, 63 codes do not name each window
_STUCK_SHARE = 0.02  # of the readings; a sensor that rests more often is not stuck
_LATENCY_OBJECTIVE_MS = 200
_STORE_DEADLINE_MS = 20  # the same share of the objective as a payment's 5 of 50 ms


class CreatedReadings(msgspec.Struct, frozen=True, eq=False):
    """
    A created product of readings.

    Attributes:
        features: Its features and windows.
        rule: Its thresholds and hysteresis.
        budget: False alarms per machine and day that the thresholds were chosen for;
            None if they are shares of readings.
        alarms: Number of alarms in the readings that it was not trained on.
        machine_days: Time of these, summed over machines.
        trial: Decisions on some of them when it was served.
    """

    features: ReadingFeatures
    rule: AlarmRule
    budget: float | None
    alarms: int
    machine_days: float
    trial: ServingTrial


def create_readings(
    choices: ReadingChoices,
    *,
    repository: Path,
    report: Report,
    progress_bar: ProgressBar = no_progress_bar,
) -> CreatedReadings:
    """
    Create a product and put it into a repository; a failure leaves that unchanged.

    Args:
        choices: The user's choices.
        repository: The model repository.
        report: Called with each finished step, and its result.
        progress_bar: Shows the progress of a step.

    Raises:
        InputError: Table, columns or name are unusable.
        ServerError: The product does not serve.
    """
    from tollgate.repository.versions import staging

    require_free(repository, choices.product)
    # They do not depend on the table: check them before the work.
    alarm_shares(choices)
    table = read_readings(choices)
    sensors = ", ".join(table.sensors)
    report("columns classified", f"{len(table.sensors)} sensors: {sensors}")
    for reason in dict.fromkeys(table.excluded.values()):
        columns = [name for name, why in table.excluded.items() if why == reason]
        report("left out", f"{', '.join(columns)}: {reason}")
    for note in table.notes:
        report("note", note)
    require_enough(table, source=choices.table)
    with staging(repository) as stage:
        staged = stage.version / "models"
        staged.mkdir(parents=True)
        created = _create(
            choices, table, staged, report=report, progress_bar=progress_bar
        )
        require_free(repository, choices.product)
        place(staged, repository=repository, product=choices.product)
    return created


def _create(
    choices: ReadingChoices,
    table: ReadingTable,
    staged: Path,
    *,
    report: Report,
    progress_bar: ProgressBar,
) -> CreatedReadings:
    """Write, train, publish, check and try the product in a staging folder."""
    product = choices.product
    features = propose_features(
        table.frame,
        product=product,
        machine=table.key,
        sensors=table.sensors,
        ranges=table.ranges,
        aliases=table.aliases,
        origin=choices.table.name,
    )
    spec = _write_spec(staged, product, features.text)
    windows = ", ".join(duration_text(one) for one in features.windows_us)
    report("windows", f"{windows}; hop {features.hop}")
    times_us = table.frame[EVENT_TIME].cast(int)
    if int(times_us[-1] - times_us[0]) < features.windows_us[-1]:
        report(
            "note",
            "the table covers less time than the longest window, "
            f"{duration_text(features.windows_us[-1])}: windows that are served will "
            "hold more than those that the detector learns from",
        )
    history = history_of(table.frame, spec=spec, source=str(choices.table))
    vectors = build(spec, history).astype(np.float32)
    report("features", f"{len(vectors):,} rows of {len(spec.features)}")
    time_us = history.event_time_us
    trained = training_rows(time_us)
    detector = train_detector(
        vectors[trained], spec.feature_names, sensors=table.sensors
    )
    score = detector_scores(detector, vectors)
    readings = MachineReadings(
        features=vectors,
        machine=history.entity_codes(table.key),
        time_us=time_us,
        trained=trained,
    )
    rule, budget = chosen_rule(
        choices,
        detector,
        readings,
        interval_us=features.interval_us,
        report=report,
    )
    alarms, days = held_out_alarms(readings, score, rule=rule)
    report(
        "detector",
        f"trained on {int(trained.sum()):,} readings; {len(alarms)} alarms in "
        f"{days:.1f} machine-days after them",
    )
    if budget is not None and len(alarms) > allowed_alarms(budget, days=days):
        report("note", excess_note(detector, vectors[alarms], allowed=budget * days))
    _write_texts(
        staged,
        spec,
        table,
        features=features,
        rule=rule,
        budget=budget,
        vectors=vectors[trained],
        source=choices.table,
    )
    release = _publish(staged, choices, detector=detector, sample=vectors[~trained])
    report("converted, proven, published", f"release {release}")
    report("checked", "; ".join(check_staged(staged, product)) or "valid")
    sent = table.frame.with_columns(table.frame[EVENT_TIME].cast(int))
    rows = Rows(frame=sent, history=history, segments={})
    with tempfile.TemporaryDirectory(prefix="tollgate-") as state:
        trial = run_serving_trial(
            staged,
            spec=spec,
            rows=rows,
            test=np.flatnonzero(~trained),
            score=score[~trained].astype(np.float64),
            state=Path(state),
            progress_bar=progress_bar,
        )
    served = (
        f"{trial.compared:,} scores equal to the detector's within "
        f"{trial.largest_difference:.1e}; {trial.replayed:,} vectors online = offline "
        "in every bit"
    )
    left = len(trial.rows) - trial.compared
    if left:
        served += f"; {left:,} more were degraded and are not compared"
    report("served and decided", served)
    _write_example(staged, spec, sent, row=int(trial.rows[-1]))
    return CreatedReadings(
        features=features,
        rule=rule,
        budget=budget,
        alarms=len(alarms),
        machine_days=days,
        trial=trial,
    )


def chosen_rule(
    choices: ReadingChoices,
    detector: Detector,
    readings: MachineReadings,
    *,
    interval_us: int,
    report: Report,
) -> tuple[AlarmRule, float | None]:
    """
    Choose the thresholds: from a budget of false alarms, or the user's shares.

    Shares are used, too, where the readings are too few for a budget.

    Returns:
        The rule; the budget, false alarms per machine and day, or None for shares.
    """
    usual = alarm_rule(interval_us)
    if choices.watch_share is None and choices.alarm_share is None:
        budget = choices.false_alarms or usual_budget(interval_us)
        try:
            rule = budget_rule(
                detector,
                readings,
                interval_us=interval_us,
                false_alarms_per_day=budget,
            )
        except InputError as exc:
            text = f"thresholds are shares of the readings, which {exc.problem}"
            report("note", text)
        else:
            report(
                "thresholds",
                f"for {budget:.2g} false alarms of a machine in a day: watch from "
                f"{rule.watch:.6f}, alarm from {rule.alarm:.6f}",
            )
            return rule, budget
    known = readings.features[:, detector.readings] >= detector.fewest_readings
    score = detector_scores(detector, readings.features[known & readings.trained])
    watch, alarm = (
        score_threshold(detector, float(np.quantile(score, 1 - share)))
        for share in alarm_shares(choices)
    )
    return msgspec.structs.replace(usual, watch=watch, alarm=alarm), None


def excess_note(detector: Detector, vectors: F32, *, allowed: float) -> str:
    """
    Describe alarms beyond the budget, and name the sensor that causes most of them.

    Args:
        vectors: The readings with which the alarms begin; [A, F].
        allowed: How many alarms the budget allows.
    """
    surprises = [sensor_surprise(vectors, one) for one in detector.sensors]
    counts = np.bincount(np.argmax(surprises, axis=0))
    most = int(np.argmax(counts))
    return (
        f"{len(vectors)} alarms after the training, where the budget allows "
        f"{allowed:.2g}: in {counts[most]} of them {detector.sensors[most].name} "
        "surprises most. If such readings are normal, leave it out with `drop`, or "
        "create the product from a table that has them more often"
    )


def alarm_shares(choices: ReadingChoices) -> tuple[float, float]:
    """
    Return the shares of normal readings that may reach `watch` and `alarm`.

    Raises:
        ArgumentError: A share is out of range, more readings may alarm than be watched,
            or there is a budget of false alarms too, or one that is not above 0.
    """
    if choices.false_alarms is not None:
        if not 0 < choices.false_alarms < np.inf:
            raise ArgumentError("false_alarms", "is not a number above 0")
        if choices.watch_share is not None or choices.alarm_share is not None:
            problem = "a budget and shares are two ways to choose thresholds: give one"
            raise ArgumentError("false_alarms", problem)
    shares = {
        "review_rate": (choices.watch_share, 1 - WATCH_SCORE),
        "decline_rate": (choices.alarm_share, 1 - ALARM_SCORE),
    }
    found = {}
    for name, (share, usual) in shares.items():
        found[name] = usual if share is None else share
        if not 0 < found[name] < 1:
            problem = f"{found[name]:g} is not a share between 0 and 1"
            raise ArgumentError(name, problem)
    watch, alarm = found["review_rate"], found["decline_rate"]
    if alarm > watch:
        problem = f"{alarm:g} is more than the share to watch, {watch:g}"
        raise ArgumentError("decline_rate", problem)
    return watch, alarm


def _write_spec(staged: Path, product: str, text: str) -> FeatureSpec:
    """Write features.yaml into the feature step's first version, and read it."""
    folder = staged / step_names(product)[0] / "1"
    folder.mkdir(parents=True)
    path = folder / SPEC_FILE
    path.write_text(text, "utf-8")
    return load_spec(path)


def _write_texts(
    staged: Path,
    spec: FeatureSpec,
    table: ReadingTable,
    *,
    features: ReadingFeatures,
    rule: AlarmRule,
    budget: float | None,
    vectors: F32,
    source: Path,
) -> None:
    """Write configurations, steps, policy.yaml, slo.yaml and train.py."""
    product = spec.product
    texts = {
        **all_texts(
            spec,
            wide=False,
            outcomes=OUTCOMES,
            store_deadline_ms=_STORE_DEADLINE_MS,
            hysteresis=True,
        ),
        f"{step_names(product)[2]}/1/{POLICY_FILE}": policy_text(
            spec, table, features=features, rule=rule, vectors=vectors
        ),
        f"{product}/{SLO_FILE}": slo_text(product, objective_ms=_LATENCY_OBJECTIVE_MS),
        f"{product}/{SCRIPT_FILE}": render(
            "tollgate/product/templates/reading_train.py.j2",
            {
                "product": product,
                "script": SCRIPT_FILE,
                "table": str(source.resolve()),
                "false_alarms": budget,
            },
        ),
    }
    for name, text in texts.items():
        path = staged / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def policy_text(
    spec: FeatureSpec,
    table: ReadingTable,
    *,
    features: ReadingFeatures,
    rule: AlarmRule,
    vectors: F32,
) -> str:
    """
    Write policy.yaml.

    Args:
        spec: The product's features.
        table: Its sensors.
        features: Its windows.
        rule: Thresholds and hysteresis.
        vectors: Training rows, from which the limits of causes follow; [N, F].
    """
    readings = spec.feature_names.index("readings")
    known = vectors[vectors[:, readings] >= FEWEST_READINGS]
    named = len(table.sensors) <= _MOST_NAMED
    texts = dict(
        zip(
            (*SHORT_WINDOWS, *LONG_WINDOWS),
            (duration_text(one) for one in features.windows_us),
            strict=True,
        )
    )
    causes, stuck, missing = [], [], []
    for sensor in table.sensors:
        code = sensor.upper()
        for long in LONG_WINDOWS if named else LONG_WINDOWS[:1]:
            feature = feature_name(sensor, long, SHORT_WINDOWS[0], "shift")
            column = np.abs(known[:, spec.feature_names.index(feature)])
            limit = float(np.quantile(column, _CAUSE_SHARE))
            if not limit > 0:
                continue
            window = texts[long].upper()
            for word, side, sign, value in (
                ("high", "above", "ge", limit),
                ("low", "below", "le", -limit),
            ):
                causes.append(
                    {
                        "name": f"{sensor}_{word}_{long}",
                        "feature": feature,
                        "sign": sign,
                        "limit": float(f"{value:.4g}"),
                        "code": f"{code}_{word.upper()}_{window}",
                        "text": f"{sensor} is far {side} its mean of the last "
                        f"{texts[long]}.",
                    }
                )
        feature = feature_name(sensor, SHORT_WINDOWS[-1], "std")
        rests = known[:, spec.feature_names.index(feature)] <= 0
        if rests.mean() < _STUCK_SHARE:
            stuck.append(
                {
                    "name": f"{sensor}_stuck",
                    "sensor": sensor,
                    "feature": feature,
                    "code": f"{code}_STUCK",
                    "text": f"{sensor} has not changed for {texts[SHORT_WINDOWS[-1]]}.",
                }
            )
        if named:
            missing.append(
                {
                    "name": f"{sensor}_missing",
                    "sensor": sensor,
                    "code": f"{code}_MISSING",
                    "text": f"{sensor} has no value.",
                }
            )
    (entity,) = spec.entities
    return render(
        "tollgate/product/templates/reading_policy.yaml.j2",
        {
            "product": spec.product,
            "entity": entity.name,
            "key": entity.key,
            "words": OUTCOMES.words,
            "codes": OUTCOMES.score_codes,
            "watch": rule.watch,
            "alarm": rule.alarm,
            "of": rule.of,
            "at_least": rule.at_least,
            "cool_down": f"{max(rule.cool_down_us // 10**6, 1)}s",
            "causes": causes,
            "stuck": stuck,
            "missing": missing,
            "fewest": rule.of,
        },
    )


def _publish(
    staged: Path, choices: ReadingChoices, *, detector: Detector, sample: F32
) -> str:
    """Convert the detector, prove it on the held-out rows, publish and release it."""
    from converters.conversion import convert_model
    from converters.purpose import purpose_of
    from converters.sample import Sample
    from converters.sources.reading_detector import ReadingDetector

    rows = Sample(
        rows=sample,
        names=detector.features,
        origin="held out",
        source=str(choices.table),
    )
    converted = convert_model(
        ReadingDetector(detector),
        origin="the detector",
        purpose=purpose_of(staged, choices.product),
        sample=rows,
    )
    return publish_and_release(
        converted,
        repository=staged,
        product=choices.product,
        reason=f"made from {choices.table.name}",
    ).name


def _write_example(
    staged: Path, spec: FeatureSpec, frame: pl.DataFrame, *, row: int
) -> None:
    """Write the script that sends one reading."""
    from tollgate.features.spec.feature_spec import wire_inputs
    from tollgate.history.request_columns import wire_fields

    example = ask_text(
        frame,
        row=row,
        product=spec.product,
        inputs=wire_inputs(spec),
        fields=wire_fields(spec, frame),
    )
    (staged / spec.product / ASK_FILE).write_text(example, "utf-8")
