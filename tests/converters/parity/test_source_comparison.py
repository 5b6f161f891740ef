"""Against what a model was proven is said: raw rows of a file, its author's answers."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import lightgbm
import numpy as np
import polars as pl
import pytest

from tollgate.cli import main

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def convert(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Run `tollgate convert` in this process; status and what it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")

    def run(*words: object) -> tuple[int, str]:
        given = [str(one) for one in words]
        monkeypatch.setattr(sys, "argv", ["tollgate", "convert", *given])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def rows_of(path: Path, *, skip: int = 0) -> pl.DataFrame:
    """Read rows of numbers parted by tabs."""
    numbers = np.loadtxt(path, delimiter="\t", ndmin=2)[:, skip:]
    return pl.DataFrame({f"f{at}": column for at, column in enumerate(numbers.T)})


LEAVES = [
    ("lg_dart_breast_cancer", "breast_cancer_test.tsv", 0, False),
    ("lg_kddcup99", "kddcup99_test.tsv", 0, True),  # its author wrote margins
]


@pytest.mark.parametrize(("name", "data", "skip", "margins"), LEAVES)
def test_the_authors_answers_are_met(
    shared_data: Path,
    convert: Command,
    tmp_path: Path,
    name: str,
    data: str,
    skip: int,
    margins: bool,
) -> None:
    """Old LightGBM models whose authors wrote down what they answer."""
    leaves = shared_data / "models" / "leaves"
    rows_of(leaves / data, skip=skip).write_csv(tmp_path / "rows.csv")
    expected = leaves / f"{name}_true_predictions.txt"
    wanted = np.loadtxt(expected)
    if margins:
        power = np.exp(wanted)
        expected = tmp_path / "expected.csv"
        np.savetxt(expected, power / power.sum(axis=1, keepdims=True), delimiter=",")
    status, said = convert(
        *(leaves / f"{name}.model", "--out", "made"),
        *("--sample", "rows.csv", "--expected", expected),
    )
    assert status == 0, said
    assert f"proven against the author's answers, {len(wanted)} rows of" in said
    assert "were the file misread" not in said
    oracle = json.loads((tmp_path / "made" / "artifact.json").read_text())["oracle"]
    digest = hashlib.sha256(expected.read_bytes()).hexdigest()
    assert oracle["expected"]["sha256"] == digest
    assert oracle["expected_apart"]["max_delta"] < 1e-6


def test_a_row_that_float32_moves_across_a_split_is_named(
    shared_data: Path, convert: Command, tmp_path: Path
) -> None:
    """One of 500 rows of its author is closer to a split than float32 resolves."""
    leaves = shared_data / "models" / "leaves"
    rows_of(leaves / "multiclass_test.tsv", skip=1).write_csv(tmp_path / "rows.csv")
    expected = leaves / "lgmulticlass_true_predictions.txt"
    status, said = convert(
        *(leaves / "lgmulticlass.model", "--out", "made"),
        *("--sample", "rows.csv", "--expected", expected),
    )
    assert status == 1
    assert "row 86 of 500: 0.243225428 is expected" in said
    assert np.isclose(np.loadtxt(expected)[85], 0.243225428, atol=1e-9).any()


def test_a_model_that_is_not_its_authors_is_refused(
    shared_data: Path, convert: Command, tmp_path: Path
) -> None:
    """The forest whose file does not match its predictions: row and both values."""
    leaves = shared_data / "models" / "leaves"
    lines = (leaves / "iris_test.libsvm").read_text().splitlines()
    rows = [[float(one.split(":")[1]) for one in line.split()[1:]] for line in lines]
    made = {f"f{at}": column for at, column in enumerate(np.array(rows).T)}
    pl.DataFrame(made).write_csv(tmp_path / "rows.csv")
    expected = leaves / "lg_rf_iris_true_predictions.txt"
    status, said = convert(
        *(leaves / "lg_rf_iris.model", "--out", "made"),
        *("--sample", "rows.csv", "--expected", expected),
    )
    assert status == 1
    first = float(expected.read_text().split()[0])
    assert f"row 1 of 30: {first:.9g} is expected, the converted model answers" in said
    assert not (tmp_path / "made").exists()


@pytest.fixture
def fine(tmp_path: Path) -> tuple[lightgbm.Booster, np.ndarray]:
    """A model of places in a town; in float32, neighbours have equal coordinates."""
    chance = np.random.default_rng(1)
    rows = np.round(chance.uniform(52.5, 52.53, (4_000, 2)), 6)
    label = (np.sin(rows[:, 0] * 3_000) + chance.normal(size=4_000) > 0).astype(int)
    settings = {"objective": "binary", "num_leaves": 60, "verbose": -1}
    booster = lightgbm.train(
        settings | {"min_data_in_leaf": 1, "max_bin": 4_095, "num_threads": 1},
        lightgbm.Dataset(rows, label),
        40,
    )
    booster.save_model(tmp_path / "model.txt")
    pl.DataFrame({"lat": rows[:, 0], "lon": rows[:, 1]}).write_csv(
        tmp_path / "rows.csv"
    )
    return booster, rows


def test_raw_rows_are_compared_with_the_untouched_source(
    fine: tuple[lightgbm.Booster, np.ndarray], convert: Command, tmp_path: Path
) -> None:
    """What float32 moves across a split is counted, as LightGBM itself has it."""
    booster, rows = fine
    wanted = np.asarray(booster.predict(rows))
    moved = np.asarray(booster.predict(rows.astype(np.float32)))
    over = np.flatnonzero(np.abs(wanted - moved) > 1e-4)
    assert len(over) > 0
    status, said = convert("model.txt", "--out", "made", "--sample", "rows.csv")
    assert status == 0, said
    record = json.loads((tmp_path / "made" / "artifact.json").read_text())
    found = record["oracle"]["raw_apart"]
    assert found["rows"] == len(over)
    assert found["first"] == over[0] + 1
    assert found["max_delta"] == pytest.approx(np.abs(wanted - moved).max(), abs=1e-6)
    digest = hashlib.sha256((tmp_path / "rows.csv").read_bytes()).hexdigest()
    named = {"name": "rows.csv", "sha256": digest, "rows": 4_000}
    assert record["oracle"]["raw"] == named
    assert f"proven against lightgbm {lightgbm.__version__}, raw 4,000 rows of" in said
    assert f"the source answers {len(over):,} of them otherwise" in said
    assert "were the file misread, both would agree" in said
    card = (tmp_path / "made" / "card.md").read_text()
    assert "raw 4,000 rows of rows.csv" in card


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.1\n0.2\n", "has 2 rows, the sample has 4,000"),
        ("0.1\n" * 3_999 + "high\n", "row 4000: 'high' is not 1 numbers"),
        ("0.1,0.2,0.7\n" * 4_000, "has 3 numbers a row, the model has 2 classes"),
        ("0.1\n" * 3_999 + "-2.5\n", "row 4000: 3.5, -2.5: no probabilities"),
        ("", "holds no rows"),
    ],
)
@pytest.mark.usefixtures("fine")
def test_a_file_of_answers_that_does_not_do_is_refused(
    convert: Command, tmp_path: Path, text: str, says: str
) -> None:
    """One line, exit status 2, nothing written."""
    (tmp_path / "expected.csv").write_text(text)
    status, said = convert(
        *("model.txt", "--out", "made", "--sample", "rows.csv"),
        *("--expected", "expected.csv"),
    )
    assert (status, says in said) == (2, True), said
    assert not (tmp_path / "made").exists()


@pytest.mark.usefixtures("fine")
def test_answers_need_the_rows_that_they_are_to(convert: Command) -> None:
    """Without a sample there is nothing to compare."""
    Path("expected.csv").write_text("p\n0.5\n")
    status, said = convert("model.txt", "--out", "made", "--expected", "expected.csv")
    assert (status, "the rows of a sample, and there is no sample" in said) == (2, True)
