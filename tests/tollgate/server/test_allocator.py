"""jemalloc is taken where it is, and where nobody said otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.server.processes.allocator import LIBRARY, allocator_environment
from tollgate.server.triton.launcher import TritonServer
from tollgate.settings import load_settings

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file of the library's name; nothing loads it."""
    path = tmp_path / "lib" / LIBRARY
    path.parent.mkdir()
    path.touch()
    return path


def test_the_first_folder_that_has_it_is_taken(library: Path, tmp_path: Path) -> None:
    """And nothing is preloaded where none has."""
    folders = [tmp_path / "nowhere", library.parent]
    assert allocator_environment(environment={}, directories=folders) == {
        "LD_PRELOAD": str(library)
    }
    assert allocator_environment(environment={}, directories=folders[:1]) == {}


def test_what_is_preloaded_already_stays(library: Path) -> None:
    """Behind ours; an allocator of somebody else's choice stays alone."""
    folders = [library.parent]
    other = {"LD_PRELOAD": "/opt/libtrace.so"}
    assert allocator_environment(environment=other, directories=folders) == {
        "LD_PRELOAD": f"{library}:/opt/libtrace.so"
    }
    theirs = {"LD_PRELOAD": "/usr/lib/libtcmalloc.so.4"}
    assert allocator_environment(environment=theirs, directories=folders) == {}


def test_a_person_has_the_last_word(library: Path) -> None:
    """None, another file, or a word about one that is not there."""
    folders = [library.parent]
    assert allocator_environment("none", environment={}, directories=folders) == {}
    assert allocator_environment(str(library), environment={}, directories=[]) == {
        "LD_PRELOAD": str(library)
    }
    with pytest.raises(InputError, match=r"allocator: /none\.so is not a file"):
        allocator_environment("/none.so", environment={}, directories=[])


def test_it_is_a_setting(tmp_path: Path) -> None:
    """By file or by environment, as every other."""
    said = {"TOLLGATE_ALLOCATOR": "none"}
    found = load_settings(environment=said, folder=tmp_path, flags={})
    assert found.allocator == "none"


@pytest.mark.slow
def test_the_systems_own_is_used_where_that_is_said(tmp_path: Path) -> None:
    """Nothing is preloaded into the server then."""
    with TritonServer(
        REPOSITORY, state=tmp_path, store_url="unix:///nowhere", allocator="none"
    ) as server:
        assert LIBRARY not in Path(f"/proc/{server.pid}/maps").read_text()


@pytest.mark.slow
def test_the_server_runs_with_what_was_found(tmp_path: Path) -> None:
    """Its memory map has the library where this machine does, and only there."""
    with TritonServer(
        REPOSITORY, state=tmp_path / "state", store_url="unix:///nowhere"
    ) as server:
        mapped = Path(f"/proc/{server.pid}/maps").read_text()
    assert (LIBRARY in mapped) == bool(allocator_environment())
