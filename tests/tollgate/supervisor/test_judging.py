"""A version is validated by its files, in a separate process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tollgate.supervisor import version_checks
from tollgate.supervisor.version_checks import (
    Verdict,
    validate,
    validate_in_subprocess,
)

REPOSITORY = Path(__file__).parents[3] / "model_repository"
DAMAGED = "model.onnx: has SHA-256 "


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed product, with a copy of its model as version 2."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(copy / "fraud_model/1", copy / "fraud_model/2")
    return copy


def judged(repository: Path) -> Verdict:
    """Validate version 2 here."""
    return validate(repository, product="fraud", version=2)


def edit(folder: Path, **fields: object) -> None:
    """Change fields of a version's record."""
    path = folder / "artifact.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_good_copy_is_sound(repository: Path) -> None:
    """Here and in a process of its own."""
    assert judged(repository) == Verdict("sound")
    assert validate_in_subprocess(repository, product="fraud", version=2) == Verdict(
        "sound"
    )


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda it: (it / "model.onnx").write_bytes(b"x"), DAMAGED),
        (lambda it: (it / "model.onnx").unlink(), "has no model.onnx"),
        (lambda it: (it / "libtriton_x.so").touch(), "is no part of a model version"),
        (lambda it: edit(it, spec_hash="0" * 16), "spec_hash"),
        (lambda it: edit(it, parity=[]), "has no proof for onnxruntime"),
        (lambda it: (it / "artifact.json").write_text("{"), "artifact.json"),
    ],
)
def test_a_version_with_wrong_files_is_bad(
    repository: Path, harm: Callable[[Path], object], problem: str
) -> None:
    """By name, and certain: it may be moved away."""
    harm(repository / "fraud_model" / "2")
    verdict = judged(repository)
    assert (verdict.state, verdict.certain) == ("bad", True)
    assert problem in verdict.reason


def test_a_version_that_was_slow_here_is_bad_but_not_certain(repository: Path) -> None:
    """This machine serves; it may have been busy."""
    slo = repository / "fraud" / "slo.yaml"
    slo.write_text("model_budget_us_per_row: 0.0001\n")
    verdict = judged(repository)
    assert (verdict.state, verdict.certain) == ("bad", False)
    assert "the budget is 0 µs" in verdict.reason


def test_a_version_is_not_blamed_for_the_repository(repository: Path) -> None:
    """What is wrong without it is not its fault; nor is it sound."""
    (repository / "fraud_decision/1/policy.yaml").unlink()
    verdict = judged(repository)
    assert verdict.state == "incomplete"
    assert verdict.reason.startswith("the repository is not valid: ")


def test_a_version_without_its_record_is_incomplete(repository: Path) -> None:
    """The record comes last, as with every publisher."""
    (repository / "fraud_model/2/artifact.json").unlink()
    assert judged(repository) == Verdict("incomplete", "has no artifact.json yet")


@pytest.mark.parametrize(
    ("code", "said", "certain"),
    [
        ("import os; os.abort()", "its check ended with SIGABRT", True),
        ("import os; os.kill(os.getpid(), 9)", "its check ended with SIGKILL", False),
        ("raise SystemExit('no memory')", "could not be checked: no memory", False),
        ("import time; time.sleep(60)", "could not be checked within 1 s", False),
    ],
)
def test_a_validation_that_dies_is_reported(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    code: str,
    said: str,
    certain: bool,
) -> None:
    """The validating process is replaced by one that dies."""
    (tmp_path / "dying.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(version_checks, "__name__", "dying")
    timeout_s = 1 if "sleep" in code else 60
    verdict = validate_in_subprocess(
        tmp_path, product="fraud", version=2, timeout_s=timeout_s
    )
    assert verdict == Verdict("bad", said, certain=certain)
