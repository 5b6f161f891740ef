"""What a second person confirms is what was proposed, and what they saw."""

from __future__ import annotations

import shutil
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tollgate.errors import RepositoryError, TollgateError
from tollgate.repository.atomic import lock_folder
from tollgate.repository.releases import activation
from tollgate.repository.releases.activation import (
    activate,
    approve,
    compose_next,
    propose,
)
from tollgate.repository.releases.release_file import Release, read_release
from tollgate.repository.releases.release_history import read_proposal
from tollgate.repository.releases.trial_changes import with_challenger
from tollgate.repository.snapshot import RepositorySnapshot


@pytest.fixture(autouse=True)
def _versions(repository: Path) -> None:
    """The committed product, with more versions of its model."""
    for version in "23":
        shutil.copytree(
            repository / "fraud_model/1", repository / "fraud_model" / version
        )


def make(repository: Path, **versions: int) -> Release:
    """Describe the next release."""
    return compose_next(
        RepositorySnapshot(repository),
        product="fraud",
        versions=versions,
        actor="ada",
        reason="because",
    )


def offer(repository: Path, *, actor: str = "ada", **versions: int) -> Release:
    """Propose the next release, as the command does."""
    release = make(repository, **versions)
    propose(
        RepositorySnapshot(repository),
        release,
        action="activate",
        actor=actor,
        reason="because",
        instead_of=read_release(repository, product="fraud"),
    )
    return release


def test_each_proposal_has_a_name_of_its_own(repository: Path) -> None:
    """So the name that somebody looked at confirms nothing that was proposed later."""
    first = offer(repository, fraud_model=2)
    second = offer(repository, fraud_model=3, actor="eve")
    assert (first.name, second.name) == ("fraud-2", "fraud-3")
    with pytest.raises(RepositoryError, match="fraud-3 waits, not fraud-2"):
        approve(
            RepositorySnapshot(repository), product="fraud", name="fraud-2", actor="bob"
        )
    assert read_release(repository, product="fraud").name == "fraud-1"


def test_what_is_replaced_while_it_is_confirmed_is_not_confirmed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited does not answer; what waits now goes on waiting."""
    offer(repository, fraud_model=2)
    heard: list[TollgateError] = []

    def confirm() -> None:
        try:
            approve(
                RepositorySnapshot(repository),
                product="fraud",
                name="fraud-2",
                actor="bob",
            )
        except TollgateError as error:
            heard.append(error)

    path = repository / "fraud/proposed.json"
    other = path.read_bytes().replace(b"because", b"better!")
    ready = threading.Event()

    def turn(folder: Path) -> AbstractContextManager[None]:
        ready.set()  # it has read and checked, and waits for its turn
        return lock_folder(folder)

    monkeypatch.setattr(activation, "lock_folder", turn)
    with lock_folder(repository / "fraud"):
        thread = threading.Thread(target=confirm)
        thread.start()
        assert ready.wait(60)
        path.write_bytes(other)
    thread.join()
    assert "somebody changed what waits in between" in str(heard[0])
    assert read_release(repository, product="fraud").name == "fraud-1"
    assert path.read_bytes() == other


def test_what_was_proposed_instead_of_another_release_is_not_confirmed(
    repository: Path,
) -> None:
    """What answers by then was not looked at; a trial beside it is no other release."""
    offer(repository, fraud_model=2)
    begun = with_challenger(
        RepositorySnapshot(repository),
        product="fraud",
        versions={"fraud_model": 3},
        mode="shadow",
        percent=0,
        actor="ada",
        reason="because",
    )
    activate(
        RepositorySnapshot(repository),
        begun,
        action="challenger start",
        actor="ada",
        reason="because",
    )
    approve(
        RepositorySnapshot(repository), product="fraud", name="fraud-2", actor="bob"
    )
    waits = offer(repository, fraud_model=1)
    proposal = (repository / "fraud/proposed.json").read_bytes()
    activate(
        RepositorySnapshot(repository),
        make(repository, fraud_model=3),
        action="activate",
        actor="eve",
        reason="at once",
    )
    assert read_proposal(repository, "fraud") is None
    (repository / "fraud/proposed.json").write_bytes(proposal)
    with pytest.raises(RepositoryError, match="somebody changed the release in betw"):
        approve(
            RepositorySnapshot(repository),
            product="fraud",
            name=waits.name,
            actor="bob",
        )


def test_a_broken_proposal_stops_only_its_confirmation(repository: Path) -> None:
    """The next release has its name all the same."""
    (repository / "fraud/proposed.json").write_bytes(b'{"reason": "\xff')
    assert make(repository, fraud_model=2).name == "fraud-2"
    with pytest.raises(RepositoryError, match=r"proposed\.json: cannot be read"):
        approve(
            RepositorySnapshot(repository), product="fraud", name="fraud-2", actor="bob"
        )
