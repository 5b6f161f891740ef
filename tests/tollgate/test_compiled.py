"""The compiled loops are used where they were built, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tollgate import compiled

SOURCES = sorted(one.stem for one in compiled.FOLDER.glob("*.pyx"))


def described(**variables: str) -> str:
    """Ask a new process which loops it uses."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from tollgate import compiled as c; print(c.describe())",
        ],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_every_loop_is_in_use_where_a_compiler_is() -> None:
    """A suite that ran without them would prove nothing about them."""
    if not shutil.which("cc"):
        pytest.skip("this machine has no C compiler")
    in_use = described(TOLLGATE_COMPILED="")
    assert in_use == (", ".join(sorted(SOURCES, key=_order)) or compiled.NONE)


def _order(name: str) -> int:
    return compiled.NAMES.index(name)


def test_a_variable_switches_them_off() -> None:
    """TOLLGATE_COMPILED=0 leaves all work to NumPy."""
    assert described(TOLLGATE_COMPILED="0") == compiled.NONE


def test_a_module_older_than_its_source_is_stale(tmp_path: Path) -> None:
    """Otherwise a new source would run with old loops."""
    source = tmp_path / "windows.pyx"
    built = tmp_path / f"windows{EXTENSION_SUFFIXES[0]}"
    for path, age_s in ((source, 100), (built, 50)):
        path.touch()
        os.utime(path, (age_s, age_s))
    assert compiled.is_stale(tmp_path / "windows")
    os.utime(built, (100, 100))
    assert not compiled.is_stale(tmp_path / "windows")
    source.unlink()  # as in a wheel
    assert not compiled.is_stale(tmp_path / "windows")
