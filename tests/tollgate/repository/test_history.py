"""What was active can always be found, with who, when, why and from what."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from tollgate.errors import InputError, RepositoryError
from tollgate.repository.atomic import lock_folder
from tollgate.repository.releases import activation
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
    write_release,
)
from tollgate.repository.releases.release_history import (
    difference_lines,
    find_release,
    history_path,
    last_change,
    read_history,
)
from tollgate.repository.snapshot import RepositorySnapshot

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed product, with a second version of model and policy."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for step in ("fraud_model", "fraud_decision"):
        shutil.copytree(copy / step / "1", copy / step / "2")
    return copy


def make(repository: Path, **versions: int) -> Release:
    """Describe the next release."""
    return compose_next(
        RepositorySnapshot(repository),
        product="fraud",
        versions=versions,
        actor="ada",
        reason="because",
    )


def go(repository: Path, release: Release, *, actor: str = "ada") -> None:
    """Make it active."""
    activate(
        RepositorySnapshot(repository),
        release,
        action="activate",
        actor=actor,
        reason="because",
    )


def names(repository: Path) -> list[tuple[str, str, str | None]]:
    """Action, release and origin of each entry."""
    return [
        (one.action, one.release.name, one.origin)
        for one in read_history(repository, "fraud")
    ]


def test_a_release_that_was_there_before_the_history_is_its_first(
    repository: Path,
) -> None:
    """Reading alone writes nothing; the first change writes it down."""
    first = read_release(repository, product="fraud")
    assert names(repository) == [("activate", "fraud-1", None)]
    assert not history_path(repository, "fraud").exists()
    go(repository, make(repository, fraud_model=2))
    assert names(repository) == [
        ("activate", "fraud-1", None),
        ("activate", "fraud-2", "fraud-1"),
    ]
    assert find_release(repository, "fraud", "fraud-1") == first


def test_the_way_back_is_the_same_release_under_its_name(repository: Path) -> None:
    """Versions and hashes are those of then; what it replaces stays at hand."""
    first = read_release(repository, product="fraud")
    go(repository, make(repository, fraud_model=2, fraud_decision=2))
    back = recompose_release(
        RepositorySnapshot(repository), find_release(repository, "fraud", "fraud-1")
    )
    activate(
        RepositorySnapshot(repository),
        back,
        action="rollback",
        actor="ada",
        reason="slower",
    )
    now = read_release(repository, product="fraud")
    assert (now.name, now.versions, now.time) == ("fraud-1", first.versions, first.time)
    assert now.previous == {"fraud_features": 1, "fraud_model": 2, "fraud_decision": 2}
    assert now.hashes_of(now.versions) == first.hashes
    verify_release(repository, now)
    assert names(repository)[-1] == ("rollback", "fraud-1", "fraud-2")


def test_a_name_is_never_given_twice(repository: Path) -> None:
    """Numbers go on from the highest there ever was, after a way back too."""
    go(repository, make(repository, fraud_model=2))
    back = recompose_release(
        RepositorySnapshot(repository), find_release(repository, "fraud", "fraud-1")
    )
    activate(
        RepositorySnapshot(repository), back, action="rollback", actor="ada", reason="x"
    )
    assert make(repository, fraud_decision=2).name == "fraud-3"


def test_of_two_at_once_one_is_told(repository: Path) -> None:
    """Both describe the same number; the second finds it taken."""
    one, two = make(repository, fraud_model=2), make(repository, fraud_decision=2)
    assert one.name == two.name
    go(repository, one)
    with pytest.raises(RepositoryError, match="fraud-2 is another release by now"):
        go(repository, two)
    assert read_release(repository, product="fraud") == one


def test_many_at_once_leave_whole_lines(repository: Path) -> None:
    """Each either is in the history whole, or was told that it came too late."""
    release = make(repository, fraud_model=2)
    threads = [threading.Thread(target=go, args=(repository, release)) for _ in "12345"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_history(repository, "fraud")) == 6


def test_half_a_line_of_a_killed_writer_is_no_entry(repository: Path) -> None:
    """What is written after it is found."""
    go(repository, make(repository, fraud_model=2))
    path = history_path(repository, "fraud")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:100])
    assert len(read_history(repository, "fraud")) == 2
    go(repository, make(repository, fraud_decision=2))
    assert [one.release.name for one in read_history(repository, "fraud")] == [
        "fraud-1",
        "fraud-2",
        "fraud-3",
    ]


def test_a_full_disk_takes_no_half_of_an_entry(repository: Path) -> None:
    """The command fails, and neither file is other than before."""
    go(repository, make(repository, fraud_model=2))
    path = history_path(repository, "fraud")
    before = path.read_bytes(), release_path(repository, "fraud").read_bytes()
    program = f"""
import resource, signal
from pathlib import Path
from tollgate.errors import RepositoryError
from tollgate.repository.releases.release_history import Entry, add_entry
from tollgate.repository.releases.release_file import read_release
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
repository = Path({str(repository)!r})
release = read_release(repository, product="fraud")
entry = Entry("activate", release.time, "ada", "because", "fraud-1", release)
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before[0]) + 100},) * 2)  # bytes
try:
    add_entry(repository, entry)
except RepositoryError as exc:
    print(exc.problem)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "cannot be written: No space left on device\n"
    now = path.read_bytes(), release_path(repository, "fraud").read_bytes()
    assert now == before


def test_what_was_written_down_and_no_more_is_not_gone_back_to(
    repository: Path,
) -> None:
    """A command that ended between the two files has changed nothing that answered."""
    go(repository, make(repository, fraud_model=2))
    there = read_release(repository, product="fraud")
    go(repository, make(repository, fraud_model=1, fraud_decision=2))
    write_release(repository, there)  # as if the disk was full just then
    entries = read_history(repository, "fraud")
    assert [one.release.name for one in entries][-2:] == ["fraud-3", "fraud-2"]
    change = last_change(entries)
    assert change is not None
    assert change.origin == "fraud-1"
    go(repository, make(repository, fraud_decision=2))
    change = last_change(read_history(repository, "fraud"))
    assert change is not None
    assert change.origin == "fraud-2"


def test_a_change_is_made_of_what_is_there_still(repository: Path) -> None:
    """The other steps "as they are" are not those of a release that is gone."""
    first = read_release(repository, product="fraud")
    go(repository, make(repository, fraud_decision=2))
    seen = read_release(repository, product="fraud")
    late = make(repository, fraud_model=2)
    assert late.versions["fraud_decision"] == 2
    back = recompose_release(
        RepositorySnapshot(repository), find_release(repository, "fraud", "fraud-1")
    )
    activate(
        RepositorySnapshot(repository),
        back,
        action="rollback",
        actor="bob",
        reason="it declines all",
    )
    with pytest.raises(RepositoryError, match="somebody changed the release in betwe"):
        activate(
            RepositorySnapshot(repository),
            late,
            action="activate",
            actor="ada",
            reason="because",
            instead_of=seen,
        )
    assert read_release(repository, product="fraud").versions == first.versions


def test_a_version_that_is_moved_away_meanwhile_is_not_released(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the checks, before the turn: whoever finds it bad moves it just then."""
    heard: list[RepositoryError] = []
    before = release_path(repository, "fraud").read_bytes()
    release = make(repository, fraud_model=2)

    def late() -> None:
        try:
            go(repository, release)
        except RepositoryError as error:
            heard.append(error)

    ready = threading.Event()

    def turn(folder: Path) -> AbstractContextManager[None]:
        ready.set()  # it has checked, and waits for its turn
        return lock_folder(folder)

    monkeypatch.setattr(activation, "lock_folder", turn)
    with lock_folder(repository / "fraud"):
        thread = threading.Thread(target=late)
        thread.start()
        assert ready.wait(60)
        shutil.move(repository / "fraud_model/2", repository / "fraud_model/.away")
    thread.join()
    assert "version 2 is not in the repository any more" in str(heard[0])
    assert release_path(repository, "fraud").read_bytes() == before


@pytest.mark.parametrize("line", [b'{"action": "remove"}', b'{"actor": "\xff"}'])
def test_a_changed_line_is_named(repository: Path, line: bytes) -> None:
    """It is JSON, but not of an entry."""
    path = history_path(repository, "fraud")
    path.write_bytes(line + b"\n")
    with pytest.raises(RepositoryError, match=r"history\.jsonl: line 1: "):
        read_history(repository, "fraud")


def test_what_does_not_fit_is_not_written(repository: Path) -> None:
    """The file of a version is changed: nothing of the release is there."""
    release = make(repository, fraud_model=2)
    before = release_path(repository, "fraud").read_bytes()
    with (repository / "fraud_model/2/artifact.json").open("a") as file:
        file.write(" ")
    with pytest.raises(RepositoryError, match="the file has changed"):
        go(repository, release)
    assert release_path(repository, "fraud").read_bytes() == before
    assert not history_path(repository, "fraud").exists()


def test_a_step_that_is_none_is_named(repository: Path) -> None:
    """With those there are."""
    with pytest.raises(InputError, match='"policy" is not a step of "fraud"; there'):
        make(repository, policy=2)


def test_a_second_person_confirms(repository: Path) -> None:
    """Not the one who proposed it, and not another release than the one that waits."""
    release = make(repository, fraud_model=2)
    before = read_release(repository, product="fraud")
    propose(
        RepositorySnapshot(repository),
        release,
        action="activate",
        actor="ada",
        reason="because",
    )
    with pytest.raises(InputError, match="ada proposed it"):
        approve(
            RepositorySnapshot(repository), product="fraud", name="fraud-2", actor="ada"
        )
    with pytest.raises(RepositoryError, match="fraud-2 waits, not fraud-3"):
        approve(
            RepositorySnapshot(repository), product="fraud", name="fraud-3", actor="bob"
        )
    assert read_release(repository, product="fraud") == before
    approve(
        RepositorySnapshot(repository), product="fraud", name="fraud-2", actor="bob"
    )
    assert read_release(repository, product="fraud") == release
    last = read_history(repository, "fraud")[-1]
    assert (last.actor, last.approver) == ("ada", "bob")
    with pytest.raises(RepositoryError, match="no release of fraud waits"):
        approve(
            RepositorySnapshot(repository), product="fraud", name="fraud-2", actor="bob"
        )


def test_a_difference_shows_the_text_that_changed(repository: Path) -> None:
    """Versions, the hash of each file, and the lines of a policy."""
    policy = repository / "fraud_decision/2/policy.yaml"
    policy.write_text(policy.read_text().replace("0.35", "0.36", 1))
    old = read_release(repository, product="fraud")
    new = make(repository, fraud_decision=2)
    lines = list(difference_lines(repository, old, new))
    assert lines[0] == "fraud-1 -> fraud-2"
    assert "fraud_model  1, the same" in lines
    assert "fraud_decision  1 -> 2" in lines
    (changed,) = (line for line in lines if "policy.yaml" in line)
    before, after = (
        one.hashes[f"fraud_decision/{version}/policy.yaml"][:12]
        for one, version in ((old, 1), (new, 2))
    )
    assert changed.split() == ["policy.yaml", before, "->", after]
    assert [line.split(maxsplit=1)[0][0] for line in lines[-4:-1]].count("-") == 1


def test_an_entry_is_one_line_of_json(repository: Path) -> None:
    """For whoever reads it with other tools."""
    go(repository, make(repository, fraud_model=2))
    lines = history_path(repository, "fraud").read_text().splitlines()
    assert [msgspec.json.decode(line)["release"]["name"] for line in lines] == [
        "fraud-1",
        "fraud-2",
    ]
