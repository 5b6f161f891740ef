"""`tollgate release …`, with a server that follows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tollgate.repository.releases.release_file import read_release
from tollgate.testing.supervised import Supervised, supervised

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed product, with more versions: sound, and one that fails to load."""
    copy = tmp_path_factory.mktemp("release") / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(copy / "fraud_model/1", copy / "fraud_model/2")
    shutil.copytree(copy / "fraud_decision/1", copy / "fraud_decision/2")
    (copy / "fraud_decision/2/model.py").write_text('raise RuntimeError("no")\n')
    return copy


@pytest.fixture(scope="module")
def fleet(repository: Path) -> Iterator[list[Supervised]]:
    """Two servers of one repository."""
    state = repository.parent
    with (
        supervised(repository, state=state / "one") as one,
        supervised(repository, state=state / "two") as two,
    ):
        yield [one, two]


def release(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from tollgate.cli import main; main()",
            "release",
            *words,
            f"--repository={repository}",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "USER": "ada"},
    )


def replicas(fleet: list[Supervised]) -> list[str]:
    """Say where both are."""
    ports = [one.health_url.split("/")[2] for one in fleet]
    return [f"--replica={port}" for port in ports]


def test_a_fleet_follows_and_the_command_waits(
    repository: Path, fleet: list[Supervised]
) -> None:
    """The server here answers as it when the command ends; the other one follows."""
    state = f"--state={repository.parent / 'one'}"
    done = release(repository, "activate", "--set=model=2", "--reason=better", state)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "desired  fraud-2"
    assert lines[1].startswith("answers  fraud-2, after ")
    fleet[1].wait(lambda: "fraud-2" in fleet[1].get("/releases")[1])
    fleet[1].wait(lambda: "converged" in fleet[1].get("/releases")[1])
    reported = release(repository, "status", "--json", *replicas(fleet))
    assert reported.returncode == 0, reported.stderr
    status = json.loads(reported.stdout)
    assert status["desired"] == "fraud-2"
    assert [one["products"][0]["running"] for one in status["replicas"]] == [
        "fraud-2",
        "fraud-2",
    ]


def test_what_is_not_taken_says_why_and_the_old_one_goes_on(
    repository: Path, fleet: list[Supervised]
) -> None:
    """Exit status 1 with the step's own words; then back, which starts nothing."""
    state = f"--state={repository.parent / 'one'}"
    done = release(repository, "activate", "--set=decision=2", "--reason=x", state)
    assert done.returncode == 1
    assert "fraud-3 was not loaded, fraud-2 still answers" in done.stderr
    assert "no" in done.stderr.split("fraud-2 still answers")[1]
    reported = release(repository, "status", *replicas(fleet))
    assert reported.returncode == 1
    assert "do not run fraud-3" in reported.stderr
    assert fleet[0].ready()
    back = release(repository, "rollback", "--reason=it does not load", state)
    assert back.returncode == 0, back.stderr
    assert read_release(repository, product="fraud").name == "fraud-2"
    table = release(repository, "history").stdout
    assert [line.split()[2:4] for line in table.splitlines()[1:]] == [
        ["activate", "fraud-1"],
        ["activate", "fraud-2"],
        ["activate", "fraud-3"],
        ["rollback", "fraud-2"],
    ]


def test_a_product_that_no_server_here_has_is_not_waited_for(
    repository: Path, fleet: list[Supervised]
) -> None:
    """The server of the state folder serves another product of the repository."""
    done = release(
        repository,
        *("activate", "credit-1", "--product=credit", "--reason=again"),
        f"--state={repository.parent / 'one'}",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "desired  credit-1\n"
    assert "no server of credit of this repository runs here" in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["activate", "--reason=x"], "name a release, or versions with --set"),
        (["activate", "--set=model", "--reason=x"], "'model' is not STEP=VERSION"),
        (["activate", "--set=model=1", "--set=fraud_model=1", "--reason=x"], "twice"),
        (["activate", "fraud-99", "--reason=x"], "there is no release fraud-99"),
        (["activate", "--set=model=99", "--reason=x"], "no such version directory"),
        (["activate", "fraud-1", "--reason= "], "--reason: is empty"),
        (["status", "--replica=nowhere"], "'nowhere' is not host:port"),
        (["show", "fraud-99"], "there is no release fraud-99"),
    ],
)
def test_bad_words_are_one_line_and_change_nothing(
    repository: Path, words: list[str], problem: str
) -> None:
    """Exit status 2."""
    before = (repository / "fraud/release.json").read_bytes()
    done = release(repository, *words)
    assert done.returncode == 2
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (repository / "fraud/release.json").read_bytes() == before
