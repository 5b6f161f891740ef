"""
Find the compiled loops: the same bits as their NumPy definitions, in less time.

Each is optional. A module is None where nothing was built (no compiler), where its
source is newer than the build, and where TOLLGATE_COMPILED is 0; NumPy computes then.
"""

from __future__ import annotations

import importlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

COMPILED_VARIABLE = "TOLLGATE_COMPILED"  # 0: NumPy computes everything
NAMES = ("windows", "events", "decisions", "appends")
NONE = "none, NumPy computes everything"
FOLDER = Path(__file__).parent / "_compiled"


def is_stale(module: Path) -> bool:
    """Return True if the source of a module (its path, no suffix) changed since."""
    source = module.with_suffix(".pyx")
    built = module.with_suffix(EXTENSION_SUFFIXES[0])
    try:
        return source.stat().st_mtime > built.stat().st_mtime
    except OSError:  # not built, or from a wheel, which has no sources
        return False


def describe() -> str:
    """List the compiled modules in use, for `tollgate --version`."""
    loaded = zip(NAMES, (windows, events, decisions, appends), strict=True)
    return ", ".join(name for name, module in loaded if module is not None) or NONE


def _load(name: str) -> Any:
    if os.environ.get(COMPILED_VARIABLE, "") == "0" or is_stale(FOLDER / name):
        return None
    try:
        return importlib.import_module(f"tollgate._compiled.{name}")
    except ImportError:
        return None


windows, events, decisions, appends = map(_load, NAMES)
