"""`tollgate publish --source`: served answers are the trained model's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas
import polars as pl
import pytest
from lightgbm import LGBMClassifier

from tollgate.features.spec.feature_spec import load_spec

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
ROWS = 300

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command of tollgate next to a copy of the repository."""
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


def test_the_files_of_the_conversion_are_compared_unasked(
    run: Run, tmp_path: Path
) -> None:
    """Right as converted; a record that names another model's file is refused."""
    train(tmp_path, "other.txt", seed=1)
    train(tmp_path, "model.txt", seed=2)
    sample = ("--sample", "rows.parquet", "--product", "fraud")
    converted = run("convert", "model.txt", "--out", "new", *sample)
    assert converted.returncode == 0, converted.stderr
    record = tmp_path / "new" / "artifact.json"
    written = record.read_text()
    named = json.loads(written)["made_from"]
    digest = sha256((tmp_path / "model.txt").read_bytes()).hexdigest()
    assert named["source"] == {"path": "../model.txt", "sha256": digest}
    other = sha256((tmp_path / "other.txt").read_bytes()).hexdigest()
    record.write_text(
        written.replace("../model.txt", "../other.txt").replace(digest, other)
    )
    wrong = run("publish", "new")
    assert wrong.returncode == 1, wrong.stderr
    assert "raw rows otherwise than the source model" in wrong.stderr
    record.write_text(written)
    right = run("publish", "new")
    assert right.returncode == 0, right.stderr
    assert f"served = source on {ROWS} raw rows" in right.stderr
    assert "features were NOT replayed; --history" in right.stderr


def rewritten(folder: Path) -> None:
    """Append to the source that was converted."""
    with (folder / "model.txt").open("a") as file:
        file.write("\n")


def unnamed(folder: Path) -> None:
    """Take the sample out of the record, as a conversion without one leaves it."""
    path = folder / "new" / "artifact.json"
    record = json.loads(path.read_text())
    record["made_from"]["sample"] = None
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "words", "reason"),
    [
        (rewritten, (), "model.txt has changed since the conversion"),
        (unnamed, (), "artifact.json names no raw rows"),
        (lambda folder: None, ("--no-compare",), "--no-compare"),
        (lambda folder: None, ("--no-dry-load",), "--no-dry-load"),
    ],
)
def test_a_model_that_was_not_compared_is_reported(
    run: Run,
    tmp_path: Path,
    change: Callable[[Path], None],
    words: tuple[str, ...],
    reason: str,
) -> None:
    """One line says so, and how to do it; the model is published."""
    train(tmp_path, "model.txt", seed=2)
    sample = ("--sample", "rows.parquet", "--product", "fraud")
    assert run("convert", "model.txt", "--out", "new", *sample).returncode == 0
    change(tmp_path)
    done = run("publish", "new", *words)
    assert done.returncode == 0, done.stderr
    said = [one for one in done.stderr.splitlines() if "NOT compared" in one]
    assert len(said) == 1, done.stderr
    assert reason in said[0]
    assert "--source MODEL --sample ROWS" in said[0]
    assert (tmp_path / "model_repository/fraud_model/2/model.onnx").is_file()


def test_a_pickle_named_by_a_record_is_not_loaded(run: Run, tmp_path: Path) -> None:
    """A record is data: the code of the file that it names runs for no one."""
    train(tmp_path, "model.txt", seed=2)
    sample = ("--sample", "rows.parquet", "--product", "fraud")
    assert run("convert", "model.txt", "--out", "new", *sample).returncode == 0
    mark = tmp_path / "ran"
    bomb = f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode()
    (tmp_path / "bomb.pkl").write_bytes(bomb)
    path = tmp_path / "new" / "artifact.json"
    record = json.loads(path.read_text())
    digest = sha256(bomb).hexdigest()
    record["made_from"]["source"] = {"path": "../bomb.pkl", "sha256": digest}
    path.write_text(json.dumps(record))
    done = run("publish", "new")
    assert done.returncode == 0, done.stderr
    assert "NOT compared" in done.stderr
    assert "is a pickle: --trust-pickle loads it" in done.stderr
    assert not mark.exists()


def test_a_history_is_replayed_and_answered(run: Run, tmp_path: Path) -> None:
    """Every purchase of the history's newest 2,000, and the model on their vectors."""
    train(tmp_path, "model.txt", seed=2)
    assert run("convert", "model.txt", "--out", "new", "--product", "fraud").stdout
    words = ("--customers", "90", "--terminals", "90", "--days", "40")
    assert run("simulate", "purchases.parquet", *words).returncode == 0
    count = min(len(pl.read_parquet(tmp_path / "purchases.parquet")), 2_000)
    assert count > 1_000
    given = ("--source", "model.txt", "--history", "purchases.parquet")
    done = run("publish", "new", *given)
    assert done.returncode == 0, done.stderr
    said = re.search(r"([\d,]+) vectors online = offline in every bit", done.stderr)
    assert said is not None, done.stderr
    assert int(said[1].replace(",", "")) >= count
    assert "served = source on 1,000 raw rows" in done.stderr
    assert "NOT" not in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--source", "model.txt"), "--sample: artifact.json names no raw rows"),
        (("--sample", "rows.parquet"), "--source: artifact.json names no source"),
        (("--source", "m", "--no-compare"), "--no-compare: compares nothing"),
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
