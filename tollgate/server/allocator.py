"""
jemalloc for the server, its steps and its Redis, where the machine has it.

Triton makes and drops many small pieces of memory for every request, on several
threads. glibc takes a fifth of the server's processor time for that, jemalloc a few
percent (docs/performance-log.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tollgate.errors import InputError
from tollgate.server.environment import SYSTEM_LIBRARIES

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
    Say what has a process and its children allocate with jemalloc.

    Args:
        said: The setting `allocator`: a library's file, "none" for glibc's own, or
            empty for jemalloc where it is.
        environment: What they get else; this process's by default. An allocator that
            it preloads already stays alone.
        directories: Where to look for the library, best first.

    Returns:
        Variables to add; none where there is no jemalloc, or none is wanted.

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
