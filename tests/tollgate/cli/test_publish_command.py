"""`tollgate publish` as a person types it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `tollgate publish new` next to a copy of the repository and a candidate."""
    bytecode = shutil.ignore_patterns("__pycache__")
    repository = tmp_path / "model_repository"
    shutil.copytree(CHECKOUT / "model_repository", repository, ignore=bytecode)
    shutil.copytree(repository / "fraud_model" / "1", tmp_path / "new")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TOLLGATE_")
    }

    def run_(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-c", "from tollgate.cli import main; main()"),
                *("publish", "new", *words),
            ],
            cwd=tmp_path,
            env=environment | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run_


def test_the_result_is_printed_with_its_figures(run: Run, tmp_path: Path) -> None:
    """The version on standard output; what was proven on standard error."""
    done = run("--product", "fraud", "--no-dry-load")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "published  fraud_model version 2\n"
        "serving    no server was notified; it loads what the release names\n"
    )
    assert "fit the repository" in done.stderr
    assert "µs per row: " in done.stderr
    assert "budget 616 at 32" in done.stderr
    new = tmp_path / "model_repository" / "fraud_model" / "2" / "model.onnx"
    assert new.read_bytes() == (tmp_path / "new" / "model.onnx").read_bytes()


def _other_spec(folder: Path) -> None:
    path = folder / "artifact.json"
    fields = json.loads(path.read_text()) | {"spec_hash": "0123456789abcdef"}
    path.write_text(json.dumps(fields))


BAD: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "missing": (shutil.rmtree, [], "new: is not a folder"),
    "truncated": (
        lambda folder: os.truncate(folder / "model.onnx", 1000),
        [],
        "new/model.onnx: has SHA-256 ",
    ),
    "other spec": (_other_spec, [], "new/artifact.json: spec_hash: 0123456789abcdef"),
    "unknown product": (
        lambda folder: None,
        ["--product", "loans"],
        "'loans' is no product of",
    ),
    "secret without server": (
        lambda folder: None,
        ["--admin-secret-file", "x"],
        "--admin-secret-file: needs the server's --url",
    ),
    "missing secret": (
        lambda folder: None,
        ["--url", "127.0.0.1:1", "--admin-secret-file", "x"],
        "x: cannot be read: No such file",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_status_2(
    run: Run, tmp_path: Path, name: str
) -> None:
    """File, field and value; nothing is written."""
    spoil, words, said = BAD[name]
    spoil(tmp_path / "new")
    before = sorted(tmp_path.rglob("*"))
    done = run(*words)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("tollgate: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_server_that_does_not_answer_is_status_1(run: Run, tmp_path: Path) -> None:
    """One line; nothing is written."""
    before = sorted(tmp_path.rglob("*"))
    done = run("--url", "127.0.0.1:1")
    assert done.returncode == 1
    assert "no server answers at 127.0.0.1:1" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
