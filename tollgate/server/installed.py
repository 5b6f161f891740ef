"""
Use the Triton that an image installs, such as NVIDIA's, instead of the wheel's.

Its backends are used in place: the stub lies next to the library there, and
`onnxruntime` is the backend written in C++. Nothing is copied or written, so the folder
may belong to another user and be read-only.
"""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import msgspec

from tollgate.errors import SetupError
from tollgate.server.placement import has_gpu

INSTALLED = Path("/opt/tritonserver")  # the folder in NVIDIA's images
_LINKED = re.compile(rb"libpython(\d+\.\d+)\.so")


class Installed(msgspec.Struct, frozen=True):
    """Locations of the files of an installed Triton."""

    tritonserver: Path
    backends: Path  # value for --backend-directory
    caches: Path  # value for --cache-directory
    gpu: bool  # whether there is a GPU that it can use


def find_installed(root: Path = INSTALLED) -> Installed | None:
    """
    Locate an installed Triton and check that it fits the running Python.

    Args:
        root: The folder with `bin` and `backends`.

    Returns:
        Its files; None if there is none.

    Raises:
        SetupError: It lacks a backend that every product needs, or its Python steps run
            another Python than this one.
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
    """Fail if a stub would find none of this Python's packages."""
    try:
        linked = _LINKED.search(stub.read_bytes())
    except PermissionError:  # Triton removes the right to read from its own stub
        return
    here = ".".join(platform.python_version_tuple()[:2])
    if linked is not None and linked[1].decode() != here:
        version = linked[1].decode()
        raise SetupError(
            f"{stub} runs Python {version}, this is {here} ({sys.executable})",
            remedy=f"install Tollgate into an environment of Python {version}",
        )
