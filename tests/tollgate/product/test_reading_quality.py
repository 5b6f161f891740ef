"""Alarms of a product of readings are judged by faults, next to simpler detectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.checkout import CHECKOUT
from tollgate.detection.alarms import alarm_onsets
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.scoring_model import ScoringModel
from tollgate.errors import InputError
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import load_spec
from tollgate.history import read_history
from tollgate.policy import load_policy
from tollgate.product.reading_quality import (
    ReadingQuality,
    judge_readings,
    policy_rule,
)
from tollgate.product.reading_table import ReadingChoices
from tollgate.product.readings import create_readings
from tollgate.simulate.plant import Plant, faults_frame, simulate_plant

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product that learned from quiet weeks."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "models").mkdir()
    quiet = simulate_plant(machines=4, days=14, interval_s=300, faults=0, seed=1)
    quiet.readings.write_parquet(folder / "past.parquet")
    create_readings(
        ReadingChoices(
            product="plant",
            table=folder / "past.parquet",
            machine="machine",
            time="event_time",
            id="reading_id",
        ),
        repository=folder / "models",
        report=lambda step, text: None,
    )
    return folder


@pytest.fixture(scope="module")
def plant(folder: Path) -> Plant:
    """Another plant, with faults, as files."""
    plant = simulate_plant(machines=3, days=10, interval_s=300, faults=6, seed=5)
    plant.readings.write_parquet(folder / "readings.parquet")
    faults_frame(plant).write_csv(folder / "faults.csv")
    return plant


@pytest.fixture(scope="module")
def judged(folder: Path, plant: Plant) -> ReadingQuality:
    """Judge the product by the files."""
    return judge_readings(
        folder / "readings.parquet",
        folder / "faults.csv",
        repository=folder / "models",
        product="plant",
    )


def test_found_faults_are_counted_by_hand(
    folder: Path, plant: Plant, judged: ReadingQuality
) -> None:
    """Scores of the served graph, thresholds of policy.yaml, one machine at a time."""
    models = folder / "models"
    spec = load_spec(models / "plant_features" / "1" / "features.yaml")
    policy = load_policy(
        models / "plant_decision" / "1" / "policy.yaml",
        id_names=spec.id_names,
        feature_names=spec.feature_names,
        fields=spec.fields,
    )
    history = read_history(folder / "readings.parquet", spec=spec)
    session = OnnxSession(
        models / "plant_model" / "1" / "model.onnx", intra_op_threads=1
    )
    score = ScoringModel(session).probabilities(
        build(spec, history).astype(np.float32)
    )[:, 1]
    rule = policy_rule(policy, "plant")
    found = 0
    for fault in plant.faults:
        rows = np.flatnonzero((plant.readings["machine"] == fault.machine).to_numpy())
        times = plant.readings["event_time"].cast(pl.Int64).to_numpy()[rows]
        onsets = times[alarm_onsets(score[rows], times, rule)]
        span = np.array([fault.begin, fault.end], "datetime64[us]").astype(np.int64)
        found += bool(((onsets >= span[0]) & (onsets <= span[1])).any())
    own = judged.comparisons[0].quality
    assert own is not None
    assert (judged.readings, judged.machines, judged.faults) == (8_640, 3, 6)
    assert (own.windows, own.detected) == (6, found)
    assert found >= 3


def test_readings_without_ids_are_numbered(
    folder: Path, plant: Plant, judged: ReadingQuality
) -> None:
    """The ids of readings do not change how alarms are judged."""
    path = folder / "without_ids.parquet"
    plant.readings.drop("reading_id").write_parquet(path)
    again = judge_readings(
        path, folder / "faults.csv", repository=folder / "models", product="plant"
    )
    assert again == judged


def test_without_faults_every_alarm_is_false(
    folder: Path, plant: Plant, judged: ReadingQuality
) -> None:
    """A table with columns and no rows says that no fault is known."""
    faults_frame(plant)[:0].write_csv(folder / "none.csv")
    found = judge_readings(
        folder / "readings.parquet",
        folder / "none.csv",
        repository=folder / "models",
        product="plant",
    )
    own, counted = found.comparisons[0].quality, judged.comparisons[0].quality
    assert own is not None
    assert counted is not None
    assert (found.faults, own.windows, own.detected) == (0, 0, 0)
    assert own.false_alarms >= counted.false_alarms + counted.detected
    assert "no fault is known: every alarm counts as false" in found.notes


def test_faults_without_readings_are_counted(
    folder: Path, plant: Plant, judged: ReadingQuality
) -> None:
    """One after the last reading, and one twice: a note, and nothing else changes."""
    faults = faults_frame(plant)
    later = faults[:1].with_columns(pl.col("begin", "end").dt.offset_by("10y"))
    pl.concat([faults, later, faults[:1]]).write_csv(folder / "more.csv")
    found = judge_readings(
        folder / "readings.parquet",
        folder / "more.csv",
        repository=folder / "models",
        product="plant",
    )
    assert found.comparisons == judged.comparisons
    assert "8 faults are 6 windows" in found.notes[-1]


def test_bad_cells_and_rows_do_not_refuse_the_table(
    folder: Path, plant: Plant, judged: ReadingQuality
) -> None:
    """They are counted and named: a text, infinity, one out of range, wrong clocks."""
    texts = plant.readings["temperature"].cast(pl.String)
    texts = texts.scatter([4, 5, 6], ["ERR", "inf", "1e9"])
    times = plant.readings["event_time"].dt.strftime("%Y-%m-%d %H:%M:%S")
    times = times.scatter([10, 11], ["1970-01-01 00:00:00", "2099-12-31 00:00:00"])
    path = folder / "bad_cells.csv"
    plant.readings.with_columns(temperature=texts, event_time=times).write_csv(path)
    found = judge_readings(
        path, folder / "faults.csv", repository=folder / "models", product="plant"
    )
    assert found.readings == judged.readings - 2
    notes = "\n".join(found.notes)
    assert "temperature: 3 cells are no numbers in its range, such as 'ERR'" in notes
    assert "1970-01-01 00:00:00 in row 11" in notes
    assert "row 12 of M" in notes
    assert "2099-12-31" in notes


def test_simpler_detectors_stand_beside_it(judged: ReadingQuality) -> None:
    """The 3-sigma rule, a windowed Gaussian, a forest of single readings."""
    names = [one.detector for one in judged.comparisons]
    assert names[0] == "detector"
    assert any("3-sigma" in name for name in names)
    assert any("Gaussian" in name for name in names)
    assert any("isolation forest" in name for name in names)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.with_columns(machine=pl.lit("M99")), "'M99' has a fault and no"),
        (lambda f: f.drop("begin"), "begin: column missing"),
        (
            lambda f: f.with_columns(begin=pl.col("end"), end=pl.col("begin")),
            "row 1 ends before it begins",
        ),
        (lambda f: f.with_columns(end=pl.lit(None, pl.String)), "row 1 lacks"),
    ],
)
def test_unusable_faults_are_refused(
    folder: Path, plant: Plant, change: object, words: str
) -> None:
    """With the row or the column."""
    path = folder / "bad.csv"
    change(faults_frame(plant)).write_csv(path)  # type: ignore[operator]
    with pytest.raises(InputError, match=words):
        judge_readings(
            folder / "readings.parquet",
            path,
            repository=folder / "models",
            product="plant",
        )


def test_other_products_are_refused(folder: Path, plant: Plant) -> None:
    """A product of purchases has no alarms to judge."""
    with pytest.raises(InputError, match="no hysteresis in its policy"):
        judge_readings(
            folder / "readings.parquet",
            folder / "faults.csv",
            repository=CHECKOUT / "model_repository",
            product="fraud",
        )
