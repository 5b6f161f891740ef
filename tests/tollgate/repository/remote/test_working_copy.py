"""What a command changes of a repository in a store arrives whole, or not at all."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.server.published_version import publish_version
from tollgate.errors import ObjectChanged, RepositoryError
from tollgate.repository.releases.activation import activate, compose_next
from tollgate.repository.releases.release_file import read_release
from tollgate.repository.releases.release_history import read_history
from tollgate.repository.remote.mirror import Mirror
from tollgate.repository.remote.objects import Objects
from tollgate.repository.remote.working_copy import WorkingCopy
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import list_versions

_NUMBERS = itertools.count()


@pytest.fixture
def url(object_store: Any, repository: Path) -> str:
    """The committed product in a bucket of its own."""
    address: str = object_store.fill(f"working-{next(_NUMBERS)}", repository)
    return address


@pytest.fixture
def copies(url: str, tmp_path: Path) -> tuple[WorkingCopy, WorkingCopy]:
    """Two people's."""
    one, two = (
        WorkingCopy(Objects(url), folder=tmp_path / name, product="fraud")
        for name in ("one", "two")
    )
    return one, two


def change(folder: Path, *, actor: str = "ada", version: int = 1) -> None:
    """Make a release as the command does."""
    release = compose_next(
        RepositorySnapshot(folder),
        product="fraud",
        versions={"fraud_model": version},
        actor=actor,
        reason="test",
    )
    activate(
        RepositorySnapshot(folder),
        release,
        action="activate",
        actor=actor,
        reason="test",
    )


def publish(folder: Path) -> int:
    """Add a model as the command does."""
    return publish_version(
        folder, step="fraud_model", source=folder / "fraud_model" / "1"
    )


def at_once(late: WorkingCopy, early: WorkingCopy, do: Callable[[Path], object]) -> str:
    """Have two do the same, both from the same state; what the late one hears."""
    with contextlib.ExitStack() as ours:
        theirs = ours.enter_context(late.changed())
        with early.changed() as folder:
            do(folder)
        do(theirs)
        with pytest.raises(ObjectChanged) as caught:
            ours.close()
    return str(caught.value)


def test_what_one_person_changes_others_find(
    copies: tuple[WorkingCopy, WorkingCopy], url: str, tmp_path: Path
) -> None:
    """A new version, a release of it and its history, in the store and at a server."""
    one, two = copies
    with one.changed() as folder:
        assert publish(folder) == 2
    with one.changed() as folder:
        change(folder, version=2)
    with two.read() as folder:
        assert list_versions(folder, "fraud_model") == [1, 2]
        entries = read_history(folder, "fraud")
    assert [entry.release.name for entry in entries] == ["fraud-1", "fraud-2"]
    mirror = Mirror(Objects(url), folder=tmp_path / "mirror", product="fraud")
    mirror.begin()
    assert read_release(mirror.folder, product="fraud") == entries[-1].release


def test_what_is_here_is_not_fetched_again(
    copies: tuple[WorkingCopy, WorkingCopy],
) -> None:
    """A second command fetches nothing that is as it was, and mends what is not."""
    one, _ = copies
    with one.read() as folder:
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}
        model = folder / "fraud_model/1/model.onnx"
        good = model.read_bytes()
    model.write_bytes(b"damaged")
    with one.read():
        assert model.read_bytes() == good
        changed = {
            path for path, time in before.items() if path.stat().st_mtime_ns != time
        }
    assert changed == {model}


def test_of_two_at_once_one_is_told_and_nothing_is_lost(
    copies: tuple[WorkingCopy, WorkingCopy],
) -> None:
    """Whoever comes second changed nothing; from the new state, it works."""
    one, two = copies
    late = at_once(two, one, change)
    assert "history.jsonl: somebody else wrote it" in late
    with two.changed() as folder:
        assert [entry.actor for entry in read_history(folder, "fraud")][1:] == ["ada"]
        change(folder, actor="bob")
    with one.read() as folder:
        actors = [entry.actor for entry in read_history(folder, "fraud")][1:]
    assert actors == ["ada", "bob"]


def test_two_who_publish_at_once_do_not_mix(
    copies: tuple[WorkingCopy, WorkingCopy],
) -> None:
    """The second is told before a file of theirs is there; then gets the next one."""
    one, two = copies
    late = at_once(two, one, publish)
    assert "fraud_model/2/model.onnx: is there already" in late
    with two.changed() as folder:
        assert publish(folder) == 3


def test_half_a_version_is_none(
    copies: tuple[WorkingCopy, WorkingCopy], url: str, object_store: Any
) -> None:
    """What a push that was killed left: without its record it is not looked at."""
    one, _ = copies
    files = object_store.files()
    files.pipe_file(f"{url.removeprefix('s3://')}/fraud_model/2/model.onnx", b"half")
    with one.read() as folder:
        assert list_versions(folder, "fraud_model") == [1]


def test_a_block_that_fails_pushes_nothing(
    copies: tuple[WorkingCopy, WorkingCopy],
) -> None:
    """And what it changed here is put back at the next look."""
    one, two = copies
    with pytest.raises(RepositoryError), one.changed() as folder:  # noqa: PT012
        shutil.rmtree(folder / "fraud_model" / "1")
        (folder / "fraud_model" / "stray.txt").write_text("x")
        raise RepositoryError(folder, "no")
    for copy in (two, one):
        with copy.read() as folder:
            assert (folder / "fraud_model/1/model.onnx").is_file()
            assert not (folder / "fraud_model/stray.txt").exists()


def test_who_looks_again_and_again_sees_no_change_that_was_not_pushed(
    copies: tuple[WorkingCopy, WorkingCopy],
) -> None:
    """Nothing changed there; what a command left behind here is put back."""
    one, _ = copies
    with pytest.raises(RepositoryError), one.changed() as folder:  # noqa: PT012
        publish(folder)
        change(folder, version=2)
        (folder / "fraud" / "gates.yaml").write_text("version: 1\n")
        raise RepositoryError(folder, "no")
    one.refresh()
    assert read_release(one.folder, product="fraud").name == "fraud-1"
    assert len(read_history(one.folder, "fraud")) == 1
    assert not (one.folder / "fraud" / "gates.yaml").exists()


def test_a_copy_that_cannot_be_written_is_told_as_such(
    copies: tuple[WorkingCopy, WorkingCopy],
) -> None:
    """Here a file is in the way; a full disk ends there too, and no worker of it."""
    one, _ = copies
    with one.read() as folder:
        shutil.rmtree(folder / "fraud")
        (folder / "fraud").write_bytes(b"")
    with pytest.raises(RepositoryError, match=r"cannot be written: .*repository/fraud"):
        one.refresh()


def test_a_proposal_that_was_confirmed_is_gone_there_too(
    copies: tuple[WorkingCopy, WorkingCopy],
) -> None:
    """A file that a command removes is removed."""
    one, two = copies
    with one.changed() as folder:
        (folder / "fraud/proposed.json").write_text("{}")
    with two.changed() as folder:
        (folder / "fraud/proposed.json").unlink()
    with one.read() as folder:
        assert not (folder / "fraud/proposed.json").exists()


def test_where_a_store_has_no_conditions_what_was_written_is_seen(
    repository: Path, tmp_path: Path
) -> None:
    """A folder by address: looked up before each write."""
    one, two = (
        WorkingCopy(
            Objects(f"file://{repository}"), folder=tmp_path / name, product="fraud"
        )
        for name in ("one", "two")
    )
    at_once(two, one, change)
    actors = [entry.actor for entry in read_history(repository, "fraud")]
    assert actors[1:] == ["ada"]
