"""Import a library that needs the OpenMP runtime, which pip cannot install."""

from __future__ import annotations

import importlib

from tollgate.errors import SetupError

_RUNTIME = "libgomp"


def require_library(name: str) -> None:
    """
    Import a library before any other module does.

    Raises:
        SetupError: The OpenMP runtime is missing on this machine.
        ModuleNotFoundError: The library itself is not installed.
    """
    try:
        importlib.import_module(name)
    except Exception as error:
        # The library raises OSError, or an exception class of its own.
        lines = [line.strip() for line in str(error).splitlines() if _RUNTIME in line]
        if not lines:
            raise
        raise SetupError(
            f"{name} cannot start: {lines[-1]}",
            remedy="install OpenMP's runtime (Debian, Ubuntu: apt-get install "
            "libgomp1)",
        ) from error
