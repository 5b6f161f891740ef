"""A release is read strictly, written whole, verified by hash, named by field."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tollgate.errors import RepositoryError
from tollgate.repository.releases.release_file import (
    read_release,
    release_path,
    verify_release,
    write_release,
)
from tollgate.repository.releases.rendering import merged_configs

STEPS = ("fraud_features", "fraud_model", "fraud_decision")
Edit = Callable[[str, str, str], None]


def _change(repository: Path, **fields: Any) -> Path:
    path = release_path(repository, "fraud")
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return path


def test_committed_hashes_are_those_of_sha256(repository: Path) -> None:
    """The release names every file of its versions with the hash hashlib gives."""
    release = read_release(repository, product="fraud")
    expected = {
        path.relative_to(repository).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for step in STEPS
        for path in (repository / step / str(release.versions[step])).iterdir()
    }
    assert release.hashes == expected
    verify_release(repository, release)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"owner": "me"}, "Object contains unknown field `owner`"),
        ({"versions": {"fraud_model": 0}}, "Expected `int` >= 1"),
        ({"versions": {"fraud_model": "1"}}, "Expected `int`, got `str`"),
        ({"spec_hash": "c36f"}, "at `spec_hash`"),
        ({"spec_hash": 7}, "Expected `str`, got `int` - at `spec_hash`"),
        ({"hashes": {"a": "b"}}, "at `hashes"),
        ({"time": "yesterday"}, "at `time`"),
        ({"name": "fraud 1"}, "at `name`"),
    ],
)
def test_wrong_field_is_named(
    repository: Path, fields: dict[str, Any], problem: str
) -> None:
    """An unknown key or a value of the wrong form is refused, by file and field."""
    path = _change(repository, **fields)
    with pytest.raises(RepositoryError) as raised:
        read_release(repository, product="fraud")
    assert str(raised.value).startswith(f"{path}: ")
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": "\xff"}'])
def test_what_is_not_a_release_is_refused(repository: Path, content: bytes) -> None:
    """Half a file, another type and broken text are one line each."""
    release_path(repository, "fraud").write_bytes(content)
    with pytest.raises(RepositoryError, match=r"fraud/release\.json: ") as raised:
        read_release(repository, product="fraud")
    assert "\n" not in str(raised.value)


def test_missing_version_is_named(repository: Path) -> None:
    """A version that is not there is named by step and number."""
    _change(repository, versions=dict.fromkeys(STEPS, 1) | {"fraud_model": 4})
    with pytest.raises(RepositoryError) as raised:
        merged_configs(repository, product="fraud")
    assert raised.value.where == "fraud_model"
    assert raised.value.problem == "version 4 is not in the repository"


def test_missing_previous_version_is_named(repository: Path) -> None:
    """What is kept for a roll-back must be there too."""
    _change(repository, previous=dict.fromkeys(STEPS, 1) | {"fraud_decision": 3})
    with pytest.raises(RepositoryError, match="fraud_decision: version 3 is not in"):
        merged_configs(repository, product="fraud")


def test_changed_file_is_named_with_both_hashes(repository: Path) -> None:
    """A changed policy is not loaded; both hashes are shortened to 12 digits."""
    path = repository / "fraud_decision/1/policy.yaml"
    was = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(path.read_text() + "\n")
    now = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(RepositoryError) as raised:
        merged_configs(repository, product="fraud")
    assert raised.value.where == "hashes: fraud_decision/1/policy.yaml"
    assert raised.value.problem == (
        f"the file has changed: release {was[:12]}…, file {now[:12]}…"
    )


def test_extra_file_is_refused_but_byte_code_is_not(repository: Path) -> None:
    """A file that the release does not name could be imported by a step."""
    (repository / "fraud_features/1/__pycache__").mkdir()
    (repository / "fraud_features/1/__pycache__/model.cpython-311.pyc").touch()
    verify_release(repository, read_release(repository, product="fraud"))
    (repository / "fraud_features/1/numpy.py").touch()
    with pytest.raises(RepositoryError, match=r"numpy\.py: the file is there but"):
        verify_release(repository, read_release(repository, product="fraud"))


def test_a_link_to_a_folder_is_refused(repository: Path, tmp_path: Path) -> None:
    """What lies behind it is in no hash, and in no server's copy."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "words.py").write_text("WORD = 1\n")
    (repository / "fraud_decision/1/lib").symlink_to(tmp_path / "lib")
    release = read_release(repository, product="fraud")
    with pytest.raises(RepositoryError, match=r"1/lib: cannot be read: Is a direct"):
        verify_release(repository, release)


def test_written_release_reads_back(repository: Path) -> None:
    """What is written is what is read, and nothing is left beside it."""
    release = read_release(repository, product="fraud")
    changed = msgspec.structs.replace(release, name="fraud-2", reason="Größe ≤ 3")
    before = {path.name for path in (repository / "fraud").iterdir()}
    write_release(repository, changed)
    assert read_release(repository, product="fraud") == changed
    assert {path.name for path in (repository / "fraud").iterdir()} == before


def test_release_that_nobody_could_read_is_not_written(repository: Path) -> None:
    """A bad value is refused before the old file is touched."""
    release = read_release(repository, product="fraud")
    bad = msgspec.structs.replace(release, spec_hash="xyz")
    with pytest.raises(RepositoryError, match="at `spec_hash`"):
        write_release(repository, bad)
    assert read_release(repository, product="fraud") == release


def test_full_disk_leaves_the_old_release(repository: Path) -> None:
    """A write that fails half-way leaves the old file and no other."""
    path = release_path(repository, "fraud")
    before = path.read_bytes()
    names = sorted(one.name for one in path.parent.iterdir())
    program = f"""
import resource, signal
from pathlib import Path
from tollgate.errors import RepositoryError
from tollgate.repository.releases.release_file import read_release, write_release
repository = Path({str(repository)!r})
release = read_release(repository, product="fraud")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # bytes: less than a release
try:
    write_release(repository, release)
except RepositoryError as exc:
    print(exc)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{path}: cannot be written: File too large\n"
    assert path.read_bytes() == before
    assert sorted(one.name for one in path.parent.iterdir()) == names
