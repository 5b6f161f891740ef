"""A table with many decimals: served answers to its raw rows are the source's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import numpy as np
import polars as pl
import pytest
import xgboost
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tollgate.features.spec.feature_spec import load_spec, wire_inputs
from tollgate.server.serving.embedded import serve
from tollgate_client import Client, join

PROGRAM = (sys.executable, "-c", "from tollgate.cli import main; main()")
NAMES = ("a", "b", "c", "d")
ROWS, ASKED = 3_000, 1_000


def small(chance: np.random.Generator) -> np.ndarray:
    """Numbers from 0 to 0.01 with 8 decimals: 4 decimals leave 101 values of each."""
    return np.round(chance.uniform(0, 0.01, (ROWS, len(NAMES))), 8)


def places(chance: np.random.Generator) -> np.ndarray:
    """Places in a town with 7 decimals: some neighbours are one float32."""
    return np.round(52.5 + chance.uniform(0, 0.01, (ROWS, len(NAMES))), 7)


@pytest.fixture(params=[small, places])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> pl.DataFrame:
    """Rows of one kind, and an outcome that hangs on two of their columns."""
    chance = np.random.default_rng(5)
    columns = request.param(chance)
    two = columns[:, :2] % 0.5
    bad = np.sin(two[:, 0] * 2_000) + two[:, 1] * 150 + chance.normal(size=ROWS)
    made = pl.DataFrame(dict(zip(NAMES, columns.T, strict=True)))
    made = made.with_columns(bad=(bad > np.median(bad)).astype(int))
    made.write_parquet(tmp_path / "table.parquet")
    return made


def saved_xgboost(rows: Any, label: Any, folder: Path) -> tuple[Path, Any]:
    """Train, save as JSON."""
    model = xgboost.XGBClassifier(n_estimators=60, n_jobs=1).fit(rows, label)
    model.save_model(folder / "model.json")
    return folder / "model.json", model.predict_proba


def saved_lightgbm(rows: Any, label: Any, folder: Path) -> tuple[Path, Any]:
    """Train, save as text."""
    model = lightgbm.LGBMClassifier(n_estimators=60, n_jobs=1, verbose=-1)
    model.fit(rows, label)
    model.booster_.save_model(folder / "model.txt")
    return folder / "model.txt", model.predict_proba


def saved_histograms(rows: Any, label: Any, folder: Path) -> tuple[Path, Any]:
    """Train histogram boosting, save as a pickle."""
    model = HistGradientBoostingClassifier(random_state=0).fit(rows, label)
    joblib.dump(model, folder / "model.joblib")
    return folder / "model.joblib", model.predict_proba


def saved_regression(rows: Any, label: Any, folder: Path) -> tuple[Path, Any]:
    """Train a regression behind a scaler, save as a pickle."""
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, label)
    joblib.dump(model, folder / "model.joblib")
    return folder / "model.joblib", model.predict_proba


def saved_forest(rows: Any, label: Any, folder: Path) -> tuple[Path, Any]:
    """Train, save as a pickle."""
    model = RandomForestClassifier(20, max_depth=9, n_jobs=1, random_state=0)
    model.fit(rows, label)
    joblib.dump(model, folder / "model.joblib")
    return folder / "model.joblib", model.predict_proba


@pytest.mark.slow
@pytest.mark.parametrize(
    "train",
    [saved_xgboost, saved_lightgbm, saved_histograms, saved_regression, saved_forest],
)
def test_served_answers_of_raw_rows_are_the_sources(
    train: Callable[..., tuple[Path, Any]], table: pl.DataFrame, tmp_path: Path
) -> None:
    """Within 1e-6 on 1,000 rows; the source is asked here, for the table's floats."""
    raw = table.select(NAMES).to_numpy()
    path, source = train(raw, table["bad"].to_numpy(), tmp_path)
    (tmp_path / "models").mkdir()
    done = subprocess.run(
        [
            *(*PROGRAM, "product", "new", "fine", "--from", tmp_path / "table.parquet"),
            *("--label", "bad", "--model", path, "--trust-pickle", "--yes"),
            *("--columns", ",".join(NAMES)),
            *("--repository", tmp_path / "models"),
        ],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "raw rows of table.parquet: largest difference" in done.stdout + done.stderr
    spec = load_spec(tmp_path / "models" / "fine_features" / "1" / "features.yaml")
    with (
        serve(
            tmp_path / "models", products=("fine",), state=tmp_path / "state"
        ) as server,
        Client(
            server.grpc_url,
            product="fine",
            inputs=wire_inputs(spec),
            fields=dict.fromkeys(NAMES, "FP64"),
            timeout_s=30.0,
        ) as client,
    ):
        columns: dict[str, Any] = {
            name: raw[:ASKED, at].tolist() for at, name in enumerate(NAMES)
        }
        columns["transaction_id"] = [f"t{at}" for at in range(ASKED)]
        columns["event_time"] = [int(time.time() * 1e6)] * ASKED
        answers = join(list(client.decide_many(columns, in_flight=1)))
    apart = np.abs(answers.score - source(raw[:ASKED])[:, 1])
    assert apart.max() <= 1e-6
