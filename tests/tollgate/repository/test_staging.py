"""What a killed publisher left is removed; what a living one works on is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tollgate.repository.lint.product_rules import check
from tollgate.repository.releases.rendering import merged_configs
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import remove_leftovers, staging

STAGE = """
import sys, time
from pathlib import Path
from tollgate.repository.versions import staging
with staging(Path(sys.argv[1])) as staged:
    staged.version.mkdir()
    (staged.version / "model.onnx").write_text("half")
    print(staged.folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def publisher(repository: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that stages a version for the repository."""
    with subprocess.Popen(
        [sys.executable, "-c", STAGE, str(repository)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_only_what_the_dead_left_is_removed(
    repository: Path, publisher: subprocess.Popen[str]
) -> None:
    """The folder of a living publisher stays; once it is killed, it goes."""
    assert publisher.stdout is not None
    folder = Path(publisher.stdout.readline().strip())
    assert folder.parent == repository.parent
    remove_leftovers(repository)
    assert (folder / "version" / "model.onnx").read_text() == "half"
    os.kill(publisher.pid, signal.SIGKILL)
    publisher.wait()
    assert folder.exists()
    with staging(repository) as mine:
        assert not folder.exists()
        assert mine.folder.exists()
    assert not list(repository.parent.glob(".publish-*"))


def test_folder_of_somebody_else_is_left_alone(repository: Path) -> None:
    """A name like ours is not enough: what a publisher never makes is not removed."""
    foreign = repository.parent / ".publish-notes"
    foreign.mkdir()
    (foreign / "diary.txt").write_text("mine")
    (repository.parent / ".publish-file").write_text("mine too")
    remove_leftovers(repository)
    assert (foreign / "diary.txt").read_text() == "mine"
    assert (repository.parent / ".publish-file").exists()


def test_leftovers_inside_a_repository_are_ignored_and_removed(
    repository: Path,
) -> None:
    """Where the repository is a mount of its own, staging happens inside it."""
    plan = merged_configs(repository, product="fraud")
    leftover = repository / ".publish-x1"
    (leftover / "version").mkdir(parents=True)
    (leftover / "version" / "model.onnx").write_text("half")
    assert check(RepositorySnapshot(repository), product="fraud") == []
    assert merged_configs(repository, product="fraud") == plan
    remove_leftovers(repository)
    assert not leftover.exists()
