"""A version that is copied in is put on trial where the product wants it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import msgspec
import pytest

from tollgate.errors import RepositoryError
from tollgate.repository.activation import activate
from tollgate.repository.history import read_history
from tollgate.repository.release import read_release, write_release
from tollgate.repository.trial import without_challenger
from tollgate.supervisor import shadowing
from tollgate.supervisor.arrivals import Arrivals
from tollgate.supervisor.shadowing import Shadows

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


def look(repository: Path) -> None:
    """Look as a supervisor does: once to see files, once to judge them."""
    arrivals = Arrivals(
        repository, product="fraud", quiet_s=0, sound=Shadows(repository).begin
    )
    arrivals.look()
    arrivals.look()
    assert [one.state for one in arrivals.now] in (["sound"], [])


def test_a_sound_version_becomes_a_shadow_once(repository: Path) -> None:
    """The history says who and why; what was on trial is no arrival any more."""
    (repository / "fraud/gates.yaml").write_text("arrivals: shadow\n")
    look(repository)
    release = read_release(repository, product="fraud")
    trial = release.challenger
    assert trial is not None
    assert (trial.mode, trial.versions["fraud_model"]) == ("shadow", 2)
    assert release.versions["fraud_model"] == 1
    (*_, entry) = read_history(repository, "fraud")
    assert (entry.action, entry.actor) == ("challenger start", "supervisor")
    assert entry.reason == "fraud_model version 2 was copied in"
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/3")
    look(repository)
    assert read_release(repository, product="fraud") == release


def test_a_version_that_waits_begins_when_its_turn_has_come(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two that are copied in at once, the second follows the first; told once."""
    (repository / "fraud/gates.yaml").write_text("arrivals: shadow\n")
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/3")
    sound = Shadows(repository).begin
    arrivals = Arrivals(repository, product="fraud", quiet_s=0, sound=sound)
    with caplog.at_level(logging.INFO, "tollgate.supervisor.shadowing"):
        for _ in range(4):
            arrivals.look()
    first = read_release(repository, product="fraud")
    assert first.challenger is not None
    assert first.challenger.versions["fraud_model"] == 2
    waits = "fraud_model version 3 waits: fraud-2 is on trial"
    assert caplog.messages.count(waits) == 1
    activate(
        repository,
        without_challenger(repository, product="fraud"),
        action="challenger stop",
        actor="ada",
        reason="enough",
    )
    for _ in range(2):
        arrivals.look()
    second = read_release(repository, product="fraud").challenger
    assert second is not None
    assert second.versions["fraud_model"] == 3


def test_unless_the_product_says_so_it_is_told_only(repository: Path) -> None:
    """That is what holds without a gates.yaml."""
    before = read_release(repository, product="fraud")
    look(repository)
    assert read_release(repository, product="fraud") == before


def test_what_is_in_the_way_is_told(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Gates that cannot be read, for one; nothing is changed."""
    (repository / "fraud/gates.yaml").write_text("arrivals: perhaps\n")
    before = read_release(repository, product="fraud")
    with caplog.at_level(logging.WARNING, "tollgate.supervisor.shadowing"):
        look(repository)
    assert read_release(repository, product="fraud") == before
    (said,) = caplog.messages
    assert said.startswith("fraud_model version 2 did not become a shadow: ")
    assert "line 1: arrivals" in said


def test_it_begins_when_what_was_in_the_way_is_not_any_more(
    repository: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told once: gates that cannot be read, and who was faster."""
    path = repository / "fraud/gates.yaml"
    path.write_text("arrivals: perhaps\n")
    sound = Shadows(repository).begin
    arrivals = Arrivals(repository, product="fraud", quiet_s=0, sound=sound)
    for _ in range(3):
        arrivals.look()
    path.write_text("arrivals: shadow\n")

    def late(*_: object, **__: object) -> None:
        raise RepositoryError("fraud", "somebody changed the release in between")

    with monkeypatch.context() as patch:
        patch.setattr(shadowing, "activate", late)
        arrivals.look()
        arrivals.look()
    assert len(caplog.messages) == 2
    there = read_release(repository, product="fraud")
    write_release(repository, msgspec.structs.replace(there, reason="somebody"))
    arrivals.look()
    trial = read_release(repository, product="fraud").challenger
    assert trial is not None
    assert trial.versions["fraud_model"] == 2
