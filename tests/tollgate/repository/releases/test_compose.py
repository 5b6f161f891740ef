"""A new release counts on, keeps what it replaces and hashes what it keeps."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tollgate.errors import RepositoryError
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    release_path,
    verify_release,
    write_release,
)
from tollgate.repository.snapshot import RepositorySnapshot

ONES = {"fraud_features": 1, "fraud_model": 1, "fraud_decision": 1}
SPEC_HASH = "0123456789abcdef"


def _compose(repository: Path, versions: dict[str, int]) -> Release:
    return compose_release(
        RepositorySnapshot(repository),
        product="fraud",
        versions=versions,
        actor="ana",
        reason="new model",
        spec_hash=SPEC_HASH,
    )


def test_first_release_has_no_previous(repository: Path) -> None:
    """Without a file the count starts at 1 and there is nothing to go back to."""
    release_path(repository, "fraud").unlink()
    release = _compose(repository, ONES)
    assert (release.name, release.previous, release.challenger) == (
        "fraud-1",
        None,
        None,
    )
    assert (release.actor, release.reason) == ("ana", "new model")
    assert (release.versions, release.spec_hash) == (ONES, SPEC_HASH)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", release.time)
    verify_release(repository, release)


def test_next_release_keeps_the_one_before(repository: Path) -> None:
    """The released versions become `previous`, hashed with the new ones."""
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/2")
    release = _compose(repository, ONES | {"fraud_model": 2})
    assert (release.name, release.previous) == ("fraud-2", ONES)
    assert {name for name in release.hashes if name.startswith("fraud_model")} == {
        f"fraud_model/{version}/{file.name}"
        for version in (1, 2)
        for file in (repository / "fraud_model/1").iterdir()
    }
    verify_release(repository, release)


def test_same_versions_again_keep_their_way_back(repository: Path) -> None:
    """A release of the same versions does not become its own `previous`."""
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/2")
    write_release(repository, _compose(repository, ONES | {"fraud_model": 2}))
    again = _compose(repository, ONES | {"fraud_model": 2})
    assert (again.name, again.previous) == ("fraud-3", ONES)


def test_rolling_back_swaps_the_two(repository: Path) -> None:
    """Going back makes the newer versions the ones to go forward to."""
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/2")
    write_release(repository, _compose(repository, ONES | {"fraud_model": 2}))
    back = _compose(repository, ONES)
    assert back.versions == ONES
    assert back.previous == ONES | {"fraud_model": 2}


def test_removed_versions_are_not_kept(repository: Path) -> None:
    """What is no longer in the repository cannot be gone back to."""
    (repository / "fraud_model/1").rename(repository / "fraud_model/2")
    release = _compose(repository, ONES | {"fraud_model": 2})
    assert release.previous is None
    verify_release(repository, release)


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        ({"fraud_model": 1}, 'names no version of "fraud_features"'),
        (ONES | {"fraud": 1}, '"fraud" is not a step of "fraud"'),
        (ONES | {"fraud_model": 8}, "fraud_model/8: there is no such version"),
    ],
)
def test_versions_must_be_those_of_the_steps(
    repository: Path, versions: dict[str, int], problem: str
) -> None:
    """A step without a version and a version without a step or a file are refused."""
    before = read_release(repository, product="fraud")
    with pytest.raises(RepositoryError, match=problem):
        _compose(repository, versions)
    assert read_release(repository, product="fraud") == before
