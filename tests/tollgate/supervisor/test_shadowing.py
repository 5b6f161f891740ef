"""A version that is copied in becomes a shadow if gates.yaml says so."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import msgspec
import pytest

from tollgate.errors import RepositoryError
from tollgate.repository.releases.activation import activate
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.repository.releases.release_history import read_history
from tollgate.repository.releases.trial_changes import without_challenger
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.supervisor import version_detection
from tollgate.supervisor.version_detection import ShadowStarter, VersionDetector

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed product, with a second version of its model copied in."""
    folder = tmp_path / "model_repository"
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "model_repository", folder, ignore=leave)
    shutil.copytree(folder / "fraud_model/1", folder / "fraud_model/2")
    return folder


def detect(repository: Path) -> None:
    """Check as a supervisor does: once to see files, once to validate them."""
    detector = VersionDetector(
        repository, product="fraud", quiet_s=0, on_valid=ShadowStarter(repository).start
    )
    detector.detect()
    detector.detect()
    assert [one.state for one in detector.versions] in (["sound"], [])


def test_a_sound_version_becomes_a_shadow_once(repository: Path) -> None:
    """The history says who and why; what was on trial is no arrival any more."""
    (repository / "fraud/gates.yaml").write_text("arrivals: shadow\n")
    detect(repository)
    release = read_release(repository, product="fraud")
    trial = release.challenger
    assert trial is not None
    assert (trial.mode, trial.versions["fraud_model"]) == ("shadow", 2)
    assert release.versions["fraud_model"] == 1
    (*_, entry) = read_history(repository, "fraud")
    assert (entry.action, entry.actor) == ("challenger start", "supervisor")
    assert entry.reason == "fraud_model version 2 was copied in"
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/3")
    detect(repository)
    assert read_release(repository, product="fraud") == release


def test_a_second_version_starts_after_the_first_trial_ends(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two that are copied in at once, the second follows the first; logged once."""
    (repository / "fraud/gates.yaml").write_text("arrivals: shadow\n")
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/3")
    on_valid = ShadowStarter(repository).start
    detector = VersionDetector(
        repository, product="fraud", quiet_s=0, on_valid=on_valid
    )
    with caplog.at_level(logging.INFO, "tollgate.supervisor.version_detection"):
        for _ in range(4):
            detector.detect()
    first = read_release(repository, product="fraud")
    assert first.challenger is not None
    assert first.challenger.versions["fraud_model"] == 2
    waits = "fraud_model version 3 waits: fraud-2 is on trial"
    assert caplog.messages.count(waits) == 1
    activate(
        RepositorySnapshot(repository),
        without_challenger(RepositorySnapshot(repository), product="fraud"),
        action="challenger stop",
        actor="ada",
        reason="enough",
    )
    for _ in range(2):
        detector.detect()
    second = read_release(repository, product="fraud").challenger
    assert second is not None
    assert second.versions["fraud_model"] == 3


def test_without_gates_no_trial_starts(repository: Path) -> None:
    """The version is only reported."""
    before = read_release(repository, product="fraud")
    detect(repository)
    assert read_release(repository, product="fraud") == before


def test_an_obstacle_is_logged(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Gates that cannot be read, for one; nothing is changed."""
    (repository / "fraud/gates.yaml").write_text("arrivals: perhaps\n")
    before = read_release(repository, product="fraud")
    with caplog.at_level(logging.WARNING, "tollgate.supervisor.version_detection"):
        detect(repository)
    assert read_release(repository, product="fraud") == before
    (message,) = caplog.messages
    assert message.startswith("fraud_model version 2 did not become a shadow: ")
    assert "line 1: arrivals" in message


def test_the_trial_starts_when_the_obstacle_is_gone(
    repository: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is logged once: unreadable gates, and a concurrent change."""
    path = repository / "fraud/gates.yaml"
    path.write_text("arrivals: perhaps\n")
    on_valid = ShadowStarter(repository).start
    detector = VersionDetector(
        repository, product="fraud", quiet_s=0, on_valid=on_valid
    )
    for _ in range(3):
        detector.detect()
    path.write_text("arrivals: shadow\n")

    def late(*_: object, **__: object) -> None:
        raise RepositoryError("fraud", "somebody changed the release in between")

    with monkeypatch.context() as patch:
        patch.setattr(version_detection, "activate", late)
        detector.detect()
        detector.detect()
    assert len(caplog.messages) == 2
    there = read_release(repository, product="fraud")
    write_release(repository, msgspec.structs.replace(there, reason="somebody"))
    detector.detect()
    trial = read_release(repository, product="fraud").challenger
    assert trial is not None
    assert trial.versions["fraud_model"] == 2
