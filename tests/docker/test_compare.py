"""Tests of holding two runtimes against each other: files served, and answers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPARE = Path(__file__).resolve().parents[2] / "docker" / "compare.py"
SUMS = "0a1b  ./fraud/release.json\n2c3d  ./fraud_model/1/model.onnx\n"
ANSWERS = (
    "transaction_id,decision,score,error\n"
    't-1,approve,0.00037542,""\n'
    't-2,,,"amount: 19.999: is not in whole cents"\n'
)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders as a proof leaves them, alike."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (one / "repository.sha256").write_text(SUMS)
    (one / "answers.csv").write_text(ANSWERS)
    shutil.copytree(one, other)
    return one, other


def _compare(folders: tuple[Path, Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(COMPARE), *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_same_is_said_in_one_line(folders: tuple[Path, Path]) -> None:
    """Scores may differ as onnxruntimes do: by less than 1e-5."""
    changed = ANSWERS.replace("0.00037542", "0.00037991")
    (folders[1] / "answers.csv").write_text(changed)
    done = _compare(folders)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 files are the same, and 2 purchases were answered alike\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("repository.sha256", "2c3d", "2c3e", "./fraud_model/1/model.onnx: 2c3d in"),
        ("repository.sha256", "  ./fraud/", "  ./other/", "release.json: not there in"),
        ("answers.csv", "0.00037542", "0.00039", "row 1: score: '0.00037542' in"),
        ("answers.csv", "approve", "review", "row 1: decision: 'approve' in"),
        ("answers.csv", "19.999", "19.99", "row 2: error: 'amount: 19.999"),
        ("answers.csv", 't-1,approve,0.00037542,""\n', "", "2 rows in"),
        ("answers.csv", "0.00037542", "", "row 1: score: '0.00037542' in"),
    ],
)
def test_what_differs_is_named(
    folders: tuple[Path, Path], file: str, old: str, new: str, words: str
) -> None:
    """A file, a decision, an error, a missing row: named with both values, status 1."""
    path = folders[1] / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    done = _compare(folders)
    assert done.returncode == 1
    assert words in done.stderr


def test_no_answers_at_all_are_not_alike(folders: tuple[Path, Path]) -> None:
    """Two empty files prove nothing."""
    for folder in folders:
        (folder / "answers.csv").write_text("transaction_id,decision,score,error\n")
    done = _compare(folders)
    assert done.returncode == 1
    assert "0 rows in" in done.stderr
