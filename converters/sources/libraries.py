"""Import a library that needs OpenMP's runtime, which pip cannot bring."""

from __future__ import annotations

import importlib

from tollgate.errors import SetupError

_RUNTIME = "libgomp"


def require_library(name: str) -> None:
    """
    Import a library before anything else does.

    Raises:
        SetupError: OpenMP's runtime is missing on this machine.
        ModuleNotFoundError: The library itself is not installed.
    """
    try:
        importlib.import_module(name)
    except Exception as error:
        # An OSError, or a class of the very module that could not be imported.
        said = [line.strip() for line in str(error).splitlines() if _RUNTIME in line]
        if not said:
            raise
        raise SetupError(
            f"{name} cannot start: {said[-1]}",
            remedy="install OpenMP's runtime (Debian, Ubuntu: apt-get install "
            "libgomp1)",
        ) from error
