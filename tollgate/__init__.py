"""Tollgate: real-time decisions on payments, served by NVIDIA Triton."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tollgate.server.local_engine import Engine

__all__ = ["Engine"]
__version__ = "0.1.0"
# The distributions of this project. The package `tollgate` of another project, which
# PyPI has, lists none.
PARTS = ("tollgate", "tollgate_client", "tollgate_converters")


def __getattr__(name: str) -> Any:
    """Import `Engine` on first access: importing this package costs nothing."""
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tollgate.server.local_engine"), name)
