"""Tests of one server per state folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tollgate.errors import SetupError
from tollgate.server.processes.state_lock import FolderLock
from tollgate.server.serving.copy_slots import Slots


def test_a_held_folder_names_its_owner(tmp_path: Path) -> None:
    """The second comer is refused at once, with the process that is there."""
    lock = FolderLock(tmp_path / "state", name="lock")
    with pytest.raises(SetupError, match=rf"in use by process {os.getpid()}"):
        FolderLock(tmp_path / "state", name="lock")
    lock.release()
    FolderLock(tmp_path / "state", name="lock").release()


@pytest.mark.parametrize("hold", [FolderLock, Slots])
@pytest.mark.parametrize("below", [".", "state"])
def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, below: str, hold: Callable[..., object]
) -> None:
    """A file in its place: one line that says which, and what to do."""
    (tmp_path / "file").write_text("")
    more = {"name": "lock"} if hold is FolderLock else {}
    with pytest.raises(SetupError, match=r"file.* cannot be written: .*another state"):
        hold(tmp_path / "file" / below, **more)


def test_children_of_a_dead_owner_still_hold_it(tmp_path: Path) -> None:
    """The folder is free only when the last process that inherited it is gone."""
    lock = FolderLock(tmp_path, name="lock")
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock.fd]
    )
    lock.release()
    lock.path.write_text("")  # as if the owner were gone
    with pytest.raises(SetupError, match="in use by a server's remains"):
        FolderLock(tmp_path, name="lock", patience_s=0.2)
    child.communicate(b"\n")
    FolderLock(tmp_path, name="lock").release()
