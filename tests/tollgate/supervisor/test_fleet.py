"""Two servers of one object store: they converge, and outlive the store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tollgate.repository.releases.activation import activate, compose_next
from tollgate.repository.remote.objects import Objects
from tollgate.repository.remote.working_copy import WorkingCopy
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.testing.supervised import Supervised, supervised

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
BUCKET = "fleet"
MODEL = f"{BUCKET}/models/fraud_model"


@pytest.fixture(scope="module")
def url(object_store: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The committed product in a bucket, with two more versions of its model."""
    copy = tmp_path_factory.mktemp("fleet") / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for version in "23":
        shutil.copytree(copy / "fraud_model/1", copy / "fraud_model" / version)
    address: str = object_store.fill(BUCKET, copy)
    return address


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A state folder per server."""
    folder = tmp_path_factory.mktemp("states")
    return [folder / "one", folder / "two"]


@pytest.fixture(scope="module")
def fleet(url: str, states: list[Path]) -> Iterator[list[Supervised]]:
    """Two servers, for the tests of this module; they run in their order."""
    with (
        supervised(url, state=states[0]) as one,
        supervised(url, state=states[1]) as two,
    ):
        yield [one, two]


def release(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    command = [sys.executable, "-c", "from tollgate.cli import main; main()", "release"]
    return subprocess.run(
        [*command, *words, f"--repository={url}"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "200", "USER": "ada"},
    )


def status_of(server: Supervised) -> dict[str, str]:
    """Return the reconciliation state of the product on a server."""
    status, text = server.get("/releases")
    assert status == 200
    (one,) = json.loads(text)
    return dict(one)


def is_there(server: Supervised, name: str) -> bool:
    """Whether a server is done with going to a release."""
    now = status_of(server)
    return (now["state"], now["running"]) == ("converged", name)


def test_a_fleet_goes_where_the_store_says(
    url: str, fleet: list[Supervised], states: list[Path]
) -> None:
    """One command, anywhere: the server here is waited for, the other follows."""
    words = ["activate", "--set=model=2", "--reason=better", f"--state={states[0]}"]
    done = release(url, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "desired  fraud-2"
    assert done.stdout.splitlines()[1].startswith("answers  fraud-2, after ")
    fleet[1].wait(lambda: is_there(fleet[1], "fraud-2"))
    ports = [f"--replica={one.health_url.split('/')[2]}" for one in fleet]
    status = release(url, "status", *ports, f"--state={states[1]}")
    assert status.returncode == 0, status.stderr + status.stdout
    fetched = sorted(path.name for path in states[1].glob("mirror/*/fraud_model/[0-9]"))
    assert fetched == ["1", "2"]  # no release names 3


def test_a_damaged_object_is_reported_and_not_used(
    url: str, fleet: list[Supervised], tmp_path: Path, object_store: Any
) -> None:
    """The release before it answers until the object is repaired."""
    files = object_store.files()
    good = files.cat_file(f"{MODEL}/3/model.onnx")
    copy = WorkingCopy(Objects(url), folder=tmp_path / "copy", product="fraud")
    with copy.changed() as folder:
        newest = compose_next(
            RepositorySnapshot(folder),
            product="fraud",
            versions={"fraud_model": 3},
            actor="ada",
            reason="newest",
        )
        activate(
            RepositorySnapshot(folder),
            newest,
            action="activate",
            actor="ada",
            reason="newest",
        )
        files.pipe_file(f"{MODEL}/3/model.onnx", b"damaged")
    for server in fleet:
        server.wait(lambda server=server: status_of(server)["state"] == "failed")
        assert status_of(server)["desired"] == "fraud-3"
        assert status_of(server)["running"] == "fraud-2"
        assert "3/model.onnx: is not what was released" in status_of(server)["doing"]
        assert server.ready()
    files.pipe_file(f"{MODEL}/3/model.onnx", good)
    for server in fleet:
        server.wait(lambda server=server: is_there(server, "fraud-3"))


def test_a_store_that_is_gone_changes_nothing(
    url: str, fleet: list[Supervised], tmp_path: Path, object_store: Any
) -> None:
    """It is reported on the admin port; later, they follow it again."""
    copy = WorkingCopy(Objects(url), folder=tmp_path / "copy", product="fraud")
    with copy.read() as folder:
        object_store.stop()
        for server in fleet:
            server.wait(lambda server=server: bool(status_of(server)["unreachable"]))
            assert url in status_of(server)["unreachable"]
            assert is_there(server, "fraud-3")
            assert server.ready()
        gone = release(url, "status", f"--state={tmp_path}")
        assert gone.returncode == 1
        assert len(gone.stderr.splitlines()) == 1
        object_store.start()
        object_store.fill(BUCKET, folder)
    for server in fleet:
        server.wait(lambda server=server: not status_of(server)["unreachable"])
    back = release(url, "rollback", "--reason=old times", f"--state={tmp_path}")
    assert back.returncode == 0, back.stderr
    for server in fleet:
        server.wait(lambda server=server: is_there(server, "fraud-2"))
