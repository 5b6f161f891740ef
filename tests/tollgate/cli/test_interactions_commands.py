"""`tollgate product new --interactions` on the command line: what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

PROGRAM = (sys.executable, "-c", "from tollgate.cli import main; main()")
COLUMNS = ("--user", "who", "--item", "sku", "--time", "at")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twenty events of one user."""
    (tmp_path / "model_repository").mkdir()
    path = tmp_path / "events.csv"
    names = ["a", "b"] * 10
    rows = {"who": ["u"] * 20, "sku": names, "at": range(10**9, 10**9 + 20)}
    pl.DataFrame(rows).write_csv(path)
    return path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--from: name the table, or events with --interactions"),
        (("--from", "events.csv", "--item", "sku"), "--item: goes with --interactions"),
        (("--interactions", "events.csv"), "--user: name the column"),
        (
            ("--interactions", "events.csv", "--user", "who", "--item", "sku"),
            "--time: name the column",
        ),
        (
            ("--interactions", "events.csv", *COLUMNS, "--label", "sku"),
            "--label: does not go with --interactions",
        ),
        (
            ("--interactions", "events.csv", *COLUMNS, "--action", "did"),
            "events.csv: did: column missing",
        ),
        (
            ("--interactions", "events.csv", *COLUMNS, "--action", "sku"),
            "events.csv: sku: is named for two of user, item, time and the others",
        ),
        (
            ("--interactions", "events.csv", *COLUMNS),
            "events.csv: 1 users have 5 events or more",
        ),
        (("--interactions", "none.csv", *COLUMNS), "none.csv: cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    table: Path, words: tuple[str, ...], says: str
) -> None:
    """With exit status 2."""
    done = subprocess.run(
        [*PROGRAM, "product", "new", "corner", *words],
        cwd=table.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("tollgate: ")]
    assert says in line
    assert list((table.parent / "model_repository").iterdir()) == []
