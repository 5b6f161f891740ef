"""Who is on trial: begun, raised, stopped, promoted, and nothing lost on the way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tollgate.audit.releases.archive import read_release_files
from tollgate.errors import InputError, RepositoryError
from tollgate.repository.releases.activation import (
    activate,
    approve,
    compose_next,
    propose,
    recompose_release,
)
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    release_path,
    verify_release,
)
from tollgate.repository.releases.release_history import (
    find_release,
    last_change,
    read_history,
)
from tollgate.repository.releases.trial_changes import (
    promoted,
    with_challenger,
    with_percent,
    without_challenger,
)
from tollgate.repository.snapshot import RepositorySnapshot

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed product, with more versions of model and policy."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for step in ("fraud_model", "fraud_decision"):
        shutil.copytree(copy / step / "1", copy / step / "2")
    shutil.copytree(copy / "fraud_model/1", copy / "fraud_model/3")
    return copy


def begun(repository: Path, *, mode: Any = "shadow", **versions: int) -> Release:
    """Describe a trial."""
    return with_challenger(
        RepositorySnapshot(repository),
        product="fraud",
        versions=versions,
        mode=mode,
        percent=5,
        actor="ada",
        reason="because",
    )


def put(repository: Path, release: Release, action: Any) -> None:
    """Make a release the desired one, of what is there."""
    activate(
        RepositorySnapshot(repository),
        release,
        action=action,
        actor="ada",
        reason="because",
        instead_of=read_release(repository, product="fraud"),
    )


def begin(repository: Path, **more: Any) -> None:
    """Begin a trial."""
    put(repository, begun(repository, **more), "challenger start")


def end(repository: Path) -> None:
    """Stop a trial."""
    put(
        repository,
        without_challenger(RepositorySnapshot(repository), product="fraud"),
        "challenger stop",
    )


def test_a_shadow_changes_nothing_that_answers(repository: Path) -> None:
    """Versions and name stay; the challenger's files are named with their hashes."""
    before = read_release(repository, product="fraud")
    begin(repository, fraud_model=2, fraud_decision=2)
    now = read_release(repository, product="fraud")
    assert (now.name, now.versions) == (before.name, before.versions)
    assert now.challenger is not None
    assert now.challenger.release == "fraud-2"
    assert (now.challenger.percent, now.challenger.mode) == (0.0, "shadow")
    assert "fraud_model/2/model.onnx" in now.hashes
    verify_release(repository, now)
    end(repository)
    assert read_release(repository, product="fraud") == before


def test_a_promoted_challenger_keeps_its_name_and_the_way_back(
    repository: Path,
) -> None:
    """fraud-2 answers as what it was on trial; fraud-1 is loaded still."""
    begin(repository, fraud_model=2)
    put(
        repository, promoted(RepositorySnapshot(repository), product="fraud"), "promote"
    )
    now = read_release(repository, product="fraud")
    assert (now.name, now.versions["fraud_model"]) == ("fraud-2", 2)
    assert now.challenger is None
    assert now.previous is not None
    assert now.previous["fraud_model"] == 1
    verify_release(repository, now)
    entries = read_history(repository, "fraud")
    assert [(one.action, one.origin) for one in entries] == [
        ("activate", None),
        ("challenger start", "fraud-1"),
        ("promote", "fraud-1"),
    ]
    change = last_change(entries)
    assert change is not None
    assert change.origin == "fraud-1"


def test_the_way_back_is_not_to_the_challenger(repository: Path) -> None:
    """What a trial left in the history is no release that answered."""
    put(
        repository,
        compose_next(
            RepositorySnapshot(repository),
            product="fraud",
            versions={"fraud_model": 2},
            actor="ada",
            reason="x",
        ),
        "activate",
    )
    begin(repository, fraud_model=3)
    end(repository)
    change = last_change(read_history(repository, "fraud"))
    assert change is not None
    assert change.origin == "fraud-1"


def test_a_name_that_was_on_trial_is_not_given_again(repository: Path) -> None:
    """Other versions get another one; the same get theirs, and are found by it."""
    begin(repository, fraud_model=2)
    end(repository)
    begin(repository, fraud_model=3)
    now = read_release(repository, product="fraud")
    assert now.challenger is not None
    assert now.challenger.release == "fraud-3"
    end(repository)
    again = begun(repository, fraud_model=2).challenger
    assert again is not None
    assert again.release == "fraud-2"
    assert find_release(repository, "fraud", "fraud-2").versions["fraud_model"] == 2
    kept = read_release_files(
        repository, "fraud-2", product="fraud"
    )  # of a canary's decisions
    assert kept.keys() >= {"release.json", "policy.yaml", "features.yaml"}
    (repository / "fraud_model/2/card.md").write_text("other files: another release\n")
    changed = begun(repository, fraud_model=2).challenger
    assert changed is not None
    assert changed.release == "fraud-4"


def test_a_canary_keeps_its_customers(repository: Path) -> None:
    """The seed stays when the share is raised, and when it begins anew."""
    begin(repository, fraud_model=2)
    begin(repository, fraud_model=2, mode="canary")  # out of the shadow
    first = read_release(repository, product="fraud").challenger
    assert first is not None
    put(
        repository,
        with_percent(
            RepositorySnapshot(repository),
            product="fraud",
            percent=20,
            actor="ada",
            reason="fine",
        ),
        "challenger raise",
    )
    raised = read_release(repository, product="fraud").challenger
    assert raised is not None
    assert (raised.percent, raised.seed) == (20, first.seed)
    with pytest.raises(InputError, match=r"^percent: 20 is not above 20"):
        with_percent(
            RepositorySnapshot(repository),
            product="fraud",
            percent=20,
            actor="a",
            reason="x",
        )
    end(repository)
    again = begun(repository, fraud_model=2, mode="canary").challenger
    other = begun(repository, fraud_model=3, mode="canary").challenger
    assert again is not None
    assert other is not None
    assert again.seed == first.seed != other.seed


def test_a_canary_differs_in_its_model_alone(repository: Path) -> None:
    """Said in words, with the way that is open."""
    with pytest.raises(RepositoryError, match="fraud_decision 2, not 1") as caught:
        begun(repository, fraud_model=2, fraud_decision=2, mode="canary")
    assert str(caught.value).endswith("shadow only, until it is promoted")


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        ({"fraud_model": 1}, "that is fraud-1, which answers already"),
        ({"fraud_model": 9}, "no such version directory"),
        ({"policy": 2}, '"policy" is not a step'),
    ],
)
def test_what_cannot_be_on_trial_is_refused(
    repository: Path, versions: dict[str, int], problem: str
) -> None:
    """Before anything is written."""
    with pytest.raises((RepositoryError, InputError), match=problem):
        begun(repository, **versions)
    assert not (repository / "fraud/history.jsonl").exists()


def test_a_broken_policy_is_not_put_on_trial(repository: Path) -> None:
    """It is looked at as if it answered."""
    policy = repository / "fraud_decision/2/policy.yaml"
    policy.write_text(policy.read_text().replace("review: 0.35", "review: 0.95"))
    with pytest.raises(InputError, match=r"policy\.yaml: line"):
        begun(repository, fraud_decision=2)


def test_one_is_on_trial_at_a_time(repository: Path) -> None:
    """The other one has to be stopped; the same one again is no new trial."""
    begin(repository, fraud_model=2)
    with pytest.raises(RepositoryError, match="fraud-2 is on trial: stop it first"):
        begun(repository, fraud_model=3)
    with pytest.raises(RepositoryError, match="fraud-2 is on trial as a shadow alrea"):
        begun(repository, fraud_model=2)
    with pytest.raises(RepositoryError, match="fraud-2 is a shadow: it answers nobody"):
        with_percent(
            RepositorySnapshot(repository),
            product="fraud",
            percent=9,
            actor="a",
            reason="x",
        )
    end(repository)
    with pytest.raises(
        RepositoryError, match="no challenger is on trial next to fraud-1"
    ):
        promoted(RepositorySnapshot(repository), product="fraud")


def test_who_was_slower_does_not_undo_what_was_done(repository: Path) -> None:
    """A share is raised by who saw the challenger before it was stopped: refused."""
    begin(repository, fraud_model=2, mode="canary")
    seen = read_release(repository, product="fraud")
    raised = with_percent(
        RepositorySnapshot(repository),
        product="fraud",
        percent=50,
        actor="bob",
        reason="fine",
    )
    end(repository)
    with pytest.raises(RepositoryError, match="somebody changed the release in betwe"):
        activate(
            RepositorySnapshot(repository),
            raised,
            action="challenger raise",
            actor="bob",
            reason="fine",
            instead_of=seen,
        )
    assert read_release(repository, product="fraud").challenger is None


def test_a_trial_does_not_bring_a_release_back(repository: Path) -> None:
    """Whoever names no release that it was made of is stopped by its name."""
    changed = begun(repository, fraud_model=2)
    other = compose_next(
        RepositorySnapshot(repository),
        product="fraud",
        versions={"fraud_model": 3},
        actor="bob",
        reason="x",
    )
    put(repository, other, "activate")
    with pytest.raises(RepositoryError, match="somebody"):
        activate(
            RepositorySnapshot(repository),
            changed,
            action="challenger start",
            actor="ada",
            reason="x",
        )
    assert read_release(repository, product="fraud") == other


def test_a_second_person_confirms_what_is_there_still(repository: Path) -> None:
    """A proposed share is not confirmed after the challenger was stopped."""
    begin(repository, fraud_model=2, mode="canary")
    seen = read_release(repository, product="fraud")
    raised = with_percent(
        RepositorySnapshot(repository),
        product="fraud",
        percent=50,
        actor="ada",
        reason="fine",
    )
    propose(
        RepositorySnapshot(repository),
        raised,
        action="challenger raise",
        actor="ada",
        reason="fine",
        instead_of=seen,
    )
    end(repository)  # and the proposal waits on
    with pytest.raises(RepositoryError, match="somebody changed the release"):
        approve(
            RepositorySnapshot(repository),
            product="fraud",
            name="fraud-2@50",
            actor="bob",
        )
    assert read_release(repository, product="fraud").challenger is None


def test_another_release_ends_the_trial(repository: Path) -> None:
    """Its challenger was one of the release before; a way back has none either."""
    begin(repository, fraud_model=2)
    put(
        repository,
        compose_next(
            RepositorySnapshot(repository),
            product="fraud",
            versions={"fraud_model": 3},
            actor="ada",
            reason="x",
        ),
        "activate",
    )
    assert read_release(repository, product="fraud").challenger is None
    back = recompose_release(
        RepositorySnapshot(repository), find_release(repository, "fraud", "fraud-1")
    )
    put(repository, back, "rollback")
    assert read_release(repository, product="fraud").challenger is None


def test_a_trial_ends_when_its_files_or_old_ones_are_gone(repository: Path) -> None:
    """To stop is possible without the challenger's version and the one before."""
    put(
        repository,
        compose_next(
            RepositorySnapshot(repository),
            product="fraud",
            versions={"fraud_model": 3},
            actor="ada",
            reason="x",
        ),
        "activate",
    )
    begin(repository, fraud_model=2)
    shutil.rmtree(repository / "fraud_model/1")
    shutil.rmtree(repository / "fraud_model/2")
    end(repository)
    now = read_release(repository, product="fraud")
    assert (now.challenger, now.previous) == (None, None)
    assert release_path(repository, "fraud").exists()
    verify_release(repository, now)
