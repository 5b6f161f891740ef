"""A version that is copied in is put on trial where the product wants it."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tollgate.repository.activation import activate
from tollgate.repository.history import read_history
from tollgate.repository.release import read_release
from tollgate.repository.trial import without_challenger
from tollgate.repository.turns import one_at_a_time
from tollgate.supervisor.arrivals import Arrival, Arrivals
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


def arrival(version: int) -> Arrival:
    """Describe a version that was found sound."""
    now = "2026-11-22T08:00:00Z"
    return Arrival("fraud", "fraud_model", version, "sound", "", now)


def waits_for_its_turn() -> bool:
    """Tell whether a thread waits for the lock of a repository."""
    for frame in sys._current_frames().values():
        inner = frame
        while inner is not None:
            if inner.f_code is one_at_a_time.__wrapped__.__code__:
                return True
            inner = inner.f_back
    return False


def test_a_release_that_changes_meanwhile_is_looked_at_again(
    repository: Path, tmp_path: Path
) -> None:
    """Another server begins the trial of version 3 while this one begins that of 2."""
    (repository / "fraud/gates.yaml").write_text("arrivals: shadow\n")
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/3")
    other = tmp_path / "other"
    shutil.copytree(repository, other)
    assert Shadows(other).begin(arrival(3))
    with ThreadPoolExecutor(1) as pool:
        with one_at_a_time(repository / "fraud"):
            begun = pool.submit(Shadows(repository).begin, arrival(2))
            while not (begun.done() or waits_for_its_turn()):
                time.sleep(0.01)
            shutil.copytree(other / "fraud", repository / "fraud", dirs_exist_ok=True)
        assert begun.result() is False
    trial = read_release(repository, product="fraud").challenger
    assert trial is not None
    assert trial.versions["fraud_model"] == 3
