"""jemalloc is taken where it is, and where nobody said otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import SetupError
from tollgate.server.allocator import LIBRARY, allocator_environment
from tollgate.server.launcher import TritonServer

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
    assert allocator_environment({}, directories=folders) == {
        "LD_PRELOAD": str(library)
    }
    assert allocator_environment({}, directories=folders[:1]) == {}


def test_what_is_preloaded_already_stays(library: Path) -> None:
    """Behind ours; an allocator of somebody else's choice stays alone."""
    folders = [library.parent]
    other = {"LD_PRELOAD": "/opt/libtrace.so"}
    assert allocator_environment(other, directories=folders) == {
        "LD_PRELOAD": f"{library}:/opt/libtrace.so"
    }
    theirs = {"LD_PRELOAD": "/usr/lib/libtcmalloc.so.4"}
    assert allocator_environment(theirs, directories=folders) == {}


def test_a_person_has_the_last_word(library: Path) -> None:
    """None, another file, or a word about one that is not there."""
    said = {"TOLLGATE_ALLOCATOR": "none"}
    assert allocator_environment(said, directories=[library.parent]) == {}
    said = {"TOLLGATE_ALLOCATOR": str(library)}
    assert allocator_environment(said, directories=[]) == {"LD_PRELOAD": str(library)}
    with pytest.raises(SetupError, match=r"TOLLGATE_ALLOCATOR: /none\.so is not a"):
        allocator_environment({"TOLLGATE_ALLOCATOR": "/none.so"}, directories=[])


@pytest.mark.slow
def test_the_server_runs_with_what_was_found(tmp_path: Path) -> None:
    """Its memory map has the library where this machine does, and only there."""
    with TritonServer(
        REPOSITORY, state=tmp_path / "state", store_url="unix:///nowhere"
    ) as server:
        mapped = Path(f"/proc/{server.pid}/maps").read_text()
    assert (LIBRARY in mapped) == bool(allocator_environment())
