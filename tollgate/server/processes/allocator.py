"""
Preload jemalloc into the server, its steps and its Redis, if it is installed.

Triton allocates and frees many small pieces of memory for every request, on several
threads. glibc takes a fifth of the server's processor time for that, jemalloc a few
percent (docs/performance-log.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tollgate.errors import InputError
from tollgate.server.processes.environment import SYSTEM_LIBRARIES

LIBRARY = "libjemalloc.so.2"  # Debian, Ubuntu: libjemalloc2; Fedora: jemalloc
_NONE = "none"
_PRELOAD = "LD_PRELOAD"


def allocator_environment(
    said: str = "",
    *,
    environment: Mapping[str, str] | None = None,
    directories: Sequence[Path] = SYSTEM_LIBRARIES,
) -> dict[str, str]:
    """
    Return the variables that make a process and its children allocate with jemalloc.

    Args:
        said: The setting `allocator`: the file of a library, "none" for glibc's
            allocator, or empty for jemalloc if it is installed.
        environment: Their other variables; those of this process by default. If they
            already preload an allocator, it stays the only one.
        directories: Folders to search for the library, best first.

    Returns:
        Variables to add; none if there is no jemalloc, or if it is not wanted.

    Raises:
        InputError: `said` names no file.
    """
    environment = os.environ if environment is None else environment
    there = environment.get(_PRELOAD, "")
    if said == _NONE or "malloc" in there:
        return {}
    if said and not Path(said).is_file():
        problem = f"{said} is not a file; name a library such as {LIBRARY}, or {_NONE}"
        raise InputError("allocator", problem)
    found = (path / LIBRARY for path in directories)
    library = said or next((str(path) for path in found if path.is_file()), "")
    if not library:
        return {}
    return {_PRELOAD: f"{library}:{there}" if there else library}
