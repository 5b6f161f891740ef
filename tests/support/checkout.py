"""The checkout, for child processes that import from it."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# Folders of our packages, as PYTHONPATH takes them.
IMPORT_PATH = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "clients" / "python")])


def checkout_environment() -> dict[str, str]:
    """Copy this process's environment; a Python in it imports `tests` and the tools."""
    paths = [IMPORT_PATH, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
