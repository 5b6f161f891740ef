"""The product of readings that is committed, served, journalled and decided again."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import polars as pl
import pytest
import sensors_product

from tests.support.checkout import checkout_environment
from tests.support.products.committed_product import REPOSITORY, copy_product
from tollgate.detection.detector import detector_scores, train_detector
from tollgate.detection.reading_features import build_features, propose_features
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import wire_inputs
from tollgate.history import history_of
from tollgate.repository.releases.served_versions import served_policy, served_spec
from tollgate.schema import Degraded
from tollgate.server.serving.embedded import serve
from tollgate.simulate.plant import SENSORS, simulate_plant
from tollgate_client import Client, Decisions, join

PRODUCT = "sensors"
MODEL = REPOSITORY / "sensors_model" / "1" / "model.onnx"
MACHINES = 3
LEAK = 60 * MACHINES  # rows of the last five hours
DEADLINE = re.compile(r'("store_deadline_ms" value \{ string_value: ")\d+')


def committed_scores(vectors: Any) -> Any:
    """Run the committed graph in onnxruntime, apart from the library."""
    session = onnxruntime.InferenceSession(MODEL.read_bytes())
    (found,) = session.run(None, {session.get_inputs()[0].name: vectors})
    return found[:, 1]


def test_the_committed_detector_is_the_one_that_the_tool_trains() -> None:
    """Features in every letter; scores of the readings up to another processor's."""
    readings = sensors_product.simulated_readings()
    features = propose_features(
        readings, product=PRODUCT, machine="machine", sensors=SENSORS
    )
    spec = served_spec(REPOSITORY, product=PRODUCT)
    vectors, names = build_features(readings, features)
    assert names == spec.feature_names
    time_us = readings["event_time"].cast(pl.Int64).to_numpy()
    trained = time_us <= time_us[0] + 0.7 * np.ptp(time_us)
    detector = train_detector(vectors[trained], names, sensors=SENSORS)
    later = vectors[~trained][::7]
    wanted = detector_scores(detector, later)
    np.testing.assert_allclose(committed_scores(later), wanted, atol=1e-4)


class Served(msgspec.Struct):
    """
    Readings of a plant with a leak, decided by the committed release.

    Attributes:
        verified, replayed: Reports of `tollgate journal verify` and `replay`.
        explained: Report of `tollgate explain` about the first alarm.
        simulated: Tables of `tollgate policy simulate` with the policy that served.
    """

    frame: pl.DataFrame
    answers: Decisions
    verified: dict[str, Any]
    replayed: dict[str, Any]
    explained: dict[str, Any]
    simulated: str


def leaking_plant() -> pl.DataFrame:
    """Simulate four days of three machines; M02 loses pressure in the last hours."""
    frame = simulate_plant(
        machines=MACHINES, days=4, interval_s=300, faults=0, seed=11
    ).readings.rename({"reading_id": "transaction_id"})
    leaks = pl.Series(np.arange(len(frame)) >= len(frame) - LEAK)
    leaks &= frame["machine"] == "M02"
    pressure = pl.when(leaks).then(pl.col("pressure") * 0.8).otherwise("pressure")
    frame = frame.with_columns(pressure.round(2).alias("pressure"))
    frame[1, "vibration"] = None
    return frame


def tollgate(*words: str, folder: Path) -> str:
    """Run a command in a folder; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", "from tollgate.cli import main; main()", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**checkout_environment(), "TOLLGATE_PRODUCT": PRODUCT},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Serve the committed release; the store has the time that a busy machine needs."""
    folder = tmp_path_factory.mktemp("sensors")
    repository = copy_product(folder / "model_repository", PRODUCT)
    config = repository / "sensors_features" / "config.pbtxt"
    config.write_text(DEADLINE.sub(r"\g<1>5000", config.read_text()))
    frame = leaking_plant()
    columns: dict[str, list[Any]] = {
        name: frame[name].to_list() for name in ("transaction_id", "machine", *SENSORS)
    }
    columns["event_time"] = frame["event_time"].dt.epoch("us").to_list()
    spec = served_spec(repository, product=PRODUCT)
    with serve(repository, products=(PRODUCT,), state=folder / ".tollgate") as server:
        with Client(
            server.grpc_url,
            product=PRODUCT,
            inputs=wire_inputs(spec),
            fields=dict.fromkeys(SENSORS, "FP64"),
            timeout_s=60,
        ) as client:
            answers = join(list(client.decide_many(columns, in_flight=1)))
        journal, verified = f".tollgate/journal/{PRODUCT}", {"records": 0}
        while verified["records"] < len(frame):
            tollgate(
                *("journal", "run", "--until-idle", "--journal-url", server.store_url),
                folder=folder,
            )
            report = tollgate("journal", "verify", journal, "--json", folder=folder)
            verified = json.loads(report)
    alarm = int(np.flatnonzero(answers.decision == "alarm")[0])
    row = columns["transaction_id"][alarm]
    simulated = tollgate(
        *("policy", "simulate", f"{repository}/sensors_decision/1/policy.yaml"),
        *("--on", journal),
        folder=folder,
    )
    return Served(
        frame,
        answers,
        verified,
        json.loads(tollgate("journal", "replay", journal, "--json", folder=folder)),
        json.loads(tollgate("explain", row, "--json", folder=folder)),
        simulated,
    )


@pytest.mark.slow
def test_served_scores_are_those_of_the_graph_on_offline_features(
    served: Served,
) -> None:
    """In every bit, of every reading."""
    spec = served_spec(REPOSITORY, product=PRODUCT)
    history = history_of(served.frame, spec=spec, source="simulated")
    wanted = committed_scores(build(spec, history).astype(np.float32))
    assert served.answers.error.tolist() == [""] * len(served.frame)
    assert served.answers.score.tobytes() == wanted.astype(np.float32).tobytes()
    missing = served.answers.degraded & Degraded.FIELD_MISSING > 0
    assert np.flatnonzero(missing).tolist() == [1]
    assert "VIBRATION_MISSING" in served.answers.reason_codes[1]


@pytest.mark.slow
def test_a_leak_raises_an_alarm_that_names_the_pressure(served: Served) -> None:
    """Of its machine only, and not before; later readings hold the level."""
    decision, machine = served.answers.decision, served.frame["machine"].to_numpy()
    began = len(decision) - LEAK
    assert set(decision[:began]) <= {"normal", "watch"}
    alarms = np.flatnonzero(decision == "alarm")
    assert set(machine[alarms]) == {"M02"}
    codes = served.answers.reason_codes[alarms[0]]
    assert {"SCORE_ALARM", "PRESSURE_LOW_1D", "RAISED"} <= set(codes)
    own = np.flatnonzero(machine == "M02")
    assert set(decision[own[own >= alarms[0]]]) == {"alarm"}
    policy = served_policy(REPOSITORY, product=PRODUCT)
    assert policy.outcomes.words == ("normal", "watch", "alarm")


@pytest.mark.slow
def test_the_journal_is_sealed_and_decides_each_reading_again(served: Served) -> None:
    """Bit for bit, hysteresis included; and an alarm is explained by its rules."""
    assert served.verified["findings"] == []
    assert served.verified["records"] == len(served.frame)
    (part,) = served.replayed["parts"]
    assert part["promise"].startswith("bit for bit")
    assert (part["same"], part["differing"]) == (len(served.frame), 0)
    assert served.explained["decision"] == "alarm"
    assert served.explained["outcomes"] == ["normal", "watch", "alarm"]
    assert "pressure_low_long" in str(served.explained["rules"])
    rows = f"{len(served.frame):,}"
    first = "normal +0, watch +0, alarm +0"
    assert f"0 of {rows} rows decided otherwise; {first}" in served.simulated
    assert "money" not in served.simulated


def test_a_trial_without_rows_is_reported_in_the_words_of_the_product(
    tmp_path: Path,
) -> None:
    """A matrix of normal, watch and alarm, though no worker has run."""
    repository = copy_product(tmp_path / "model_repository", PRODUCT)
    steps = repository / "sensors_decision"
    shutil.copytree(steps / "1", steps / "2")
    policy = steps / "2" / "policy.yaml"
    policy.write_text(re.sub("  watch: [0-9.]+", "  watch: 0.9", policy.read_text()))
    start = ("challenger", "start", "--set=decision=2", "--reason=a test")
    tollgate(*start, folder=tmp_path)
    report = json.loads(tollgate("challenger", "report", "--json", folder=tmp_path))
    assert report["rows"] == 0
    assert report["outcomes"] == ["normal", "watch", "alarm"]
    tables = tollgate("challenger", "report", folder=tmp_path)
    assert "normal watch alarm" in " ".join(tables.split())
    assert "money" not in tables
    assert "0.00" not in tables
