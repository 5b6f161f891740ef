"""`tollgate publish --source`: served answers are the trained model's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import polars as pl
import pytest
from lightgbm import LGBMClassifier

from tollgate.features.spec import load_spec

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
ROWS = 300

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command of tollgate beside a copy of the repository."""
    bytecode = shutil.ignore_patterns("__pycache__")
    repository = tmp_path / "model_repository"
    shutil.copytree(CHECKOUT / "model_repository", repository, ignore=bytecode)

    def run_(*words: str) -> subprocess.CompletedProcess[str]:
        command = "from tollgate.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", command, *words],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run_


def train(folder: Path, name: str, *, seed: int) -> None:
    """Train a model on whole numbers, exact in float32, and write its rows."""
    path = CHECKOUT / "model_repository/fraud_features/1/features.yaml"
    names = load_spec(path).feature_names
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 1000, (ROWS, len(names))).astype(np.float64)
    labels = (rows[:, seed % 5] + rng.normal(0, 100, ROWS) > 500).astype(int)
    frame = pl.DataFrame(rows, schema=list(names))
    model = LGBMClassifier(n_estimators=8, verbose=-1)
    model.fit(pandas.DataFrame(rows, columns=list(names)), labels).booster_.save_model(
        folder / name
    )
    frame.write_parquet(folder / "rows.parquet")


def test_served_answers_are_compared_with_the_source(run: Run, tmp_path: Path) -> None:
    """Right for the model that was converted; refused for another one."""
    train(tmp_path, "other.txt", seed=1)
    train(tmp_path, "model.txt", seed=2)
    converted = run("convert", "model.txt", "--out", "new", "--product", "fraud")
    assert converted.returncode == 0, converted.stderr
    given = ("--sample", "rows.parquet", "--source")
    step = tmp_path / "model_repository" / "fraud_model"
    wrong = run("publish", "new", *given, "other.txt")
    assert wrong.returncode != 0
    assert re.search(
        r"raw rows otherwise than the source model, by up to", wrong.stderr
    )
    assert not (step / "2").exists()
    right = run("publish", "new", *given, "model.txt")
    assert right.returncode == 0, right.stderr
    words = r"served = source on (\d+) raw rows: largest difference ([\d.e-]+)"
    said = re.search(words, right.stderr)
    assert said is not None, right.stderr
    assert int(said[1]) == ROWS
    assert float(said[2]) <= 1e-6
    assert (step / "2" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--source", "model.txt"), "--source, --sample: come together"),
        (("--sample", "rows.parquet"), "--source, --sample: come together"),
        (
            ("--source", "m", "--sample", "r", "--no-dry-load"),
            "--source: needs a server to compare; drop --no-dry-load",
        ),
    ],
)
def test_half_a_comparison_is_refused(
    run: Run, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    """One line, status 2, and nothing is published."""
    done = run("publish", str(CHECKOUT / "model_repository/fraud_model/1"), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert not (tmp_path / "model_repository" / "fraud_model" / "2").exists()
