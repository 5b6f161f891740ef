"""A version directory is there with all its files, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.server.published_version import publish_version
from tollgate.errors import RepositoryError
from tollgate.repository.versions import list_versions


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository with a step that has no version."""
    (tmp_path / "models" / "step").mkdir(parents=True)
    return tmp_path / "models"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A version to publish: two files, one in a folder, and byte code."""
    folder = tmp_path / "source"
    (folder / "data").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    (folder / "model.py").write_text("x = 1\n")
    (folder / "data" / "table.bin").write_bytes(bytes(range(256)) * 40)
    (folder / "__pycache__" / "model.pyc").touch()
    return folder


def _content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_versions_are_what_triton_would_see(place: Path) -> None:
    """Numbers without a leading zero count; files and other names do not."""
    for name in ("1", "12", "3", "02", "0", "x4", ".5", "²"):
        (place / "step" / name).mkdir()
    (place / "step" / "7").touch()
    assert list_versions(place, "step") == [1, 3, 12]


def test_published_version_has_the_files(place: Path, source: Path) -> None:
    """Content and folders are copied, byte code is not, anyone may read them."""
    assert publish_version(place, step="step", source=source) == 1
    published = place / "step" / "1"
    assert _content(published) == {
        "model.py": b"x = 1\n",
        "data/table.bin": bytes(range(256)) * 40,
    }
    assert published.stat().st_mode & 0o555 == 0o555
    assert (published / "model.py").stat().st_mode & 0o444 == 0o444
    assert (source / "__pycache__" / "model.pyc").exists()


def test_number_is_one_above_the_highest(place: Path, source: Path) -> None:
    """A gap is not filled: the number of a removed version may be remembered."""
    (place / "step" / "1").mkdir()
    (place / "step" / "4").mkdir()
    (place / "step" / "4" / "old").write_text("old")
    assert publish_version(place, step="step", source=source) == 5
    assert _content(place / "step" / "4") == {"old": b"old"}


def test_publishers_at_once_get_numbers_of_their_own(place: Path, source: Path) -> None:
    """Eight publishers in parallel make eight whole versions."""
    with ThreadPoolExecutor(8) as pool:
        jobs = [
            pool.submit(publish_version, place, step="step", source=source)
            for _ in range(8)
        ]
        numbers = sorted(job.result() for job in jobs)
    assert numbers == list(range(1, 9))
    assert all(len(_content(place / "step" / str(number))) == 2 for number in numbers)


def test_failure_half_way_leaves_nothing(place: Path, source: Path) -> None:
    """A source that cannot be copied to the end leaves the tree as it was."""
    (source / "zzz").symlink_to(source / "gone")
    before = sorted(place.parent.rglob("*"))
    with pytest.raises(RepositoryError, match="cannot be published: No such file") as e:
        publish_version(place, step="step", source=source)
    assert str(source / "zzz") in str(e.value)
    assert sorted(place.parent.rglob("*")) == before


def test_full_disk_leaves_nothing(place: Path, source: Path) -> None:
    """A disk that fills up inside a file leaves the tree as it was."""
    before = sorted(place.parent.rglob("*"))
    program = f"""
import resource, signal
from pathlib import Path
from tollgate.errors import RepositoryError
from tollgate.repository.versions import staged_version
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # bytes: half of table.bin
try:
    staging = staged_version(
        Path({str(place)!r}), step="step", source=Path({str(source)!r})
    )
    with staging:
        print("staged")
except RepositoryError as exc:
    print(exc.problem.partition(": /")[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.stdout == "cannot be published: File too large\n"
    assert sorted(place.parent.rglob("*")) == before


@pytest.mark.parametrize("step", ["other", "step/1"])
def test_unknown_step_is_refused(place: Path, source: Path, step: str) -> None:
    """Publishing makes versions, never models."""
    with pytest.raises(RepositoryError, match="there is no such model directory"):
        publish_version(place, step=step, source=source)


def test_empty_source_is_refused(place: Path, source: Path, tmp_path: Path) -> None:
    """A version without a file, and one that is not there, are not versions."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(RepositoryError, match="empty: there is no file to publish"):
        publish_version(place, step="step", source=empty)
    with pytest.raises(RepositoryError, match="gone: there is no such version"):
        publish_version(place, step="step", source=tmp_path / "gone")
    assert list_versions(place, "step") == []
