"""Versions that are copied in are detected, and never disturb the server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tollgate.errors import TollgateError
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.quarantine import quarantine, unreleased_versions
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.address import find_server
from tollgate.server.triton.probe import probe
from tollgate.supervisor.fault_log import read_faults
from tollgate.supervisor.version_detection import DetectedVersion, VersionDetector
from tollgate.testing.supervised import Supervised, supervised

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"


def copied(folder: Path) -> Path:
    """Copy the committed product."""
    copy = folder / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed product; a server answers from it."""
    return copied(tmp_path_factory.mktemp("drop"))


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Supervised]:
    """One server for the tests of this module; it waits a second for copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOLLGATE_ARRIVAL_QUIET_S", "1")
        with supervised(repository, state=repository.parent / "state") as server:
            yield server


class Caller:
    """Asks all the while."""

    def __init__(self, state: Path) -> None:
        self._server = find_server(state)
        self.answers: list[str] = []
        self.problems: list[Exception] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        assert self._server is not None
        while not self._ended.is_set():
            try:
                self.answers.append(probe(self._server, "fraud", rows=(1,)).release)
            except TollgateError as error:
                self.problems.append(error)


@pytest.fixture(autouse=True)
def _asked(request: pytest.FixtureRequest) -> Iterator[None]:
    """While a test with a server runs, each request is answered, by one release."""
    if "served" not in request.fixturenames:
        yield
        return
    server: Supervised = request.getfixturevalue("served")
    with Caller(server.state) as caller:
        yield
    assert caller.problems == []
    assert set(caller.answers) == {"fraud-1"}


def found(server: Supervised, version: int) -> DetectedVersion | None:
    """Return the finding of the server about a version."""
    import msgspec

    text = server.get("/versions")[1]
    arrivals = msgspec.json.decode(text, type=list[DetectedVersion])
    return next((one for one in arrivals if one.version == version), None)


def wait(server: Supervised, version: int, *, state: str) -> DetectedVersion:
    """Wait until the server says that of a version."""
    until_s = time.monotonic() + 600
    while time.monotonic() < until_s:
        arrival = found(server, version)
        if arrival is not None and arrival.state == state:
            return arrival
        time.sleep(0.1)
    raise AssertionError(found(server, version))


def test_a_good_version_is_reported_as_sound(
    served: Supervised, repository: Path
) -> None:
    """And no more: the release is another decision."""
    step = repository / "fraud_model"
    shutil.copytree(step / "1", step / "2")
    assert wait(served, 2, state="sound").reason == ""
    assert (step / "2" / "model.onnx").is_file()


def test_half_a_version_is_waited_for(served: Supervised, repository: Path) -> None:
    """Without its record, and with half a model; the other half makes it sound."""
    good, half = repository / "fraud_model/1", repository / "fraud_model/3"
    half.mkdir()
    content = (good / "model.onnx").read_bytes()
    (half / "model.onnx").write_bytes(content[:1000])
    until_s = time.monotonic() + 600
    while (one := found(served, 3)) is None or "artifact.json" not in one.reason:
        assert time.monotonic() < until_s
        time.sleep(0.1)
    assert (one.state, one.reason) == ("incomplete", "has no artifact.json yet")
    with (half / "model.onnx").open("ab") as file:
        file.write(content[1000:])
    for path in sorted(good.iterdir(), reverse=True):  # the record comes last
        if path.name != "model.onnx":
            shutil.copy(path, half)
    wait(served, 3, state="sound")


def test_a_bad_version_is_moved_away_with_the_reason(
    served: Supervised, repository: Path
) -> None:
    """A fault, a line on the admin port and in the table; the number is free again."""
    step = repository / "fraud_model"
    shutil.copytree(step / "1", step / "4")
    (step / "4" / "model.onnx").write_bytes(b"no model at all")
    arrival = wait(served, 4, state="bad")
    place = Path(arrival.moved_to)
    assert place.parent == step / ".quarantine"
    assert place.name.startswith("4-")
    assert not (step / "4").exists()
    assert (place / "model.onnx").read_bytes() == b"no model at all"
    assert "has SHA-256" in arrival.reason
    assert (place / "REASON.txt").read_text().strip() == arrival.reason
    until_s = time.monotonic() + 600
    while not (faults := read_faults(served.state)):  # written after the state
        assert time.monotonic() < until_s
        time.sleep(0.1)
    (fault,) = faults
    assert fault.what == "version 4 was copied in and is bad"
    assert arrival.reason in fault.outcome


def test_the_command_lists_them_all(served: Supervised, repository: Path) -> None:
    """With a server, and without one, from the repository alone."""
    rows = listed(repository, f"--state={served.state}")
    assert [(one["version"], one["state"]) for one in rows] == [
        (1, "released"),
        (2, "sound"),
        (3, "sound"),
        (4, "bad"),
    ]
    assert rows[0]["releases"] == ["fraud-1"]
    assert ".quarantine/4-" in rows[3]["moved_to"]
    assert listed(repository, f"--state={repository.parent / 'none'}") == rows


def listed(repository: Path, *words: str) -> list[dict[str, object]]:
    """Run `release versions`."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from tollgate.cli import main; main()"),
            *("release", "versions", "--json", f"--repository={repository}", *words),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, object]] = json.loads(done.stdout)
    return rows


def test_a_pause_in_a_copy_is_not_its_end(tmp_path: Path) -> None:
    """Wrong bytes are waited with; only when they stay, the version is bad."""
    repository = copied(tmp_path)
    version = repository / "fraud_model" / "2"
    shutil.copytree(repository / "fraud_model/1", version)
    good = (version / "model.onnx").read_bytes()
    (version / "model.onnx").write_bytes(good[:100])
    bad: list[DetectedVersion] = []
    detector = VersionDetector(
        repository, product="fraud", quiet_s=3600, on_bad=bad.append
    )
    detector.detect()
    detector.detect()
    (now,) = detector.versions
    assert now.state == "incomplete"
    assert "has SHA-256" in now.reason
    (version / "model.onnx").write_bytes(good)
    detector.detect()
    detector.detect()
    assert [one.state for one in detector.versions] == ["sound"]
    assert bad == []


def test_a_bad_version_that_cannot_be_moved_is_reported(tmp_path: Path) -> None:
    """Once; here the place is taken by a file."""
    repository = copied(tmp_path)
    (repository / "fraud_model" / ".quarantine").touch()
    version = repository / "fraud_model" / "2"
    shutil.copytree(repository / "fraud_model/1", version)
    (version / "model.onnx").write_bytes(b"x")
    bad: list[DetectedVersion] = []
    detector = VersionDetector(
        repository, product="fraud", quiet_s=0, on_bad=bad.append
    )
    for _ in range(4):
        detector.detect()
    assert [(one.version, one.state, one.moved_to) for one in bad] == [(2, "bad", "")]
    assert detector.versions == bad
    assert version.is_dir()


def test_a_version_that_is_released_is_never_moved(tmp_path: Path) -> None:
    """Not even when it was released a moment ago."""
    repository = copied(tmp_path)
    step = repository / "fraud_model"
    shutil.copytree(step / "1", step / "2")
    assert unreleased_versions(repository, product="fraud", step="fraud_model") == [2]
    current = read_release(repository, product="fraud")
    release = compose_release(
        RepositorySnapshot(repository),
        product="fraud",
        versions={**current.versions, "fraud_model": 2},
        actor="test",
        reason="test",
        spec_hash=current.spec_hash,
    )
    write_release(repository, release)
    for version in (1, 2):
        place = quarantine(
            repository,
            product="fraud",
            step="fraud_model",
            version=version,
            reason="no",
        )
        assert place is None
    assert sorted(os.listdir(step)) == ["1", "2", "config.pbtxt", "configs"]
