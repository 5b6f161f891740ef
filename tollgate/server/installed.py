"""
A Triton that an image brings, such as NVIDIA's, instead of the wheel's.

Its backends are taken as they lie: the stub is beside the library there, and
`onnxruntime` is the one written in C++. Nothing is copied or written, so its folder
may belong to somebody else and be read-only.
"""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import msgspec

from tollgate.errors import SetupError
from tollgate.server.placement import has_gpu

INSTALLED = Path("/opt/tritonserver")  # where NVIDIA's images have theirs
_LINKED = re.compile(rb"libpython(\d+\.\d+)\.so")


class Installed(msgspec.Struct, frozen=True):
    """Where the files of an installed Triton lie."""

    tritonserver: Path
    backends: Path  # what to pass as --backend-directory
    caches: Path  # what to pass as --cache-directory
    gpu: bool  # whether there is one that it can use


def find_installed(root: Path = INSTALLED) -> Installed | None:
    """
    Locate an installed Triton and hold it against the running Python.

    Args:
        root: The folder with `bin` and `backends`.

    Returns:
        None when there is none.

    Raises:
        SetupError: It lacks a backend that every product needs, or its Python steps
            run another Python than this one.
    """
    tritonserver, backends = root / "bin" / "tritonserver", root / "backends"
    if not tritonserver.is_file():
        return None
    stub = backends / "python" / "triton_python_backend_stub"
    for path in (stub, backends / "onnxruntime"):
        if not path.exists():
            raise SetupError(
                f"the Triton in {root} has no {path.relative_to(root)}",
                remedy="take an image with the backends python and onnxruntime, such "
                "as NVIDIA's tritonserver:26.07-py3",
            )
    _require_python(stub)
    return Installed(tritonserver, backends, root / "caches", gpu=has_gpu())


def _require_python(stub: Path) -> None:
    """Refuse a stub that would find none of this Python's packages."""
    try:
        linked = _LINKED.search(stub.read_bytes())
    except PermissionError:  # Triton takes the right to read from a stub of its own
        return
    here = ".".join(platform.python_version_tuple()[:2])
    if linked is not None and linked[1].decode() != here:
        version = linked[1].decode()
        raise SetupError(
            f"{stub} runs Python {version}, this is {here} ({sys.executable})",
            remedy=f"install Tollgate into an environment of Python {version}",
        )
