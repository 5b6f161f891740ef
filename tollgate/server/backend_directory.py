"""
Build a Triton backend directory: the wheel's layout with the right Python stub.

Triton looks for the stub next to libtriton_python.so, where the wheel has none, and
loads `onnxruntime/model.py` as a backend written in Python. Files are copied, not
linked, for three measured reasons: the server refuses a library whose real path lies
outside the backend directory, it changes the stub's mode to 0100, and the binaries find
their libraries by a path relative to their own location, so the copy repeats the
wheel's layout around a link to those libraries.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tollgate.server.environment import Wheel

_OURS = Path(__file__).parent / "backends"


def build_backend_directory(state: Path, *, wheel: Wheel) -> Path:
    """
    Create or update the backend directory below a state folder.

    Args:
        state: The state folder; only `state/server` is touched.
        wheel: Location of the wheel's files.

    Returns:
        The value for --backend-directory.
    """
    root = state.resolve() / "server"
    backends = root / "pytriton" / "tritonserver" / "backends"
    for name in ("python", "onnxruntime"):
        (backends / name).mkdir(parents=True, exist_ok=True)
    _link(wheel.libraries, root / wheel.libraries.name)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        _copy(wheel.python_backend / name, backends / "python" / name)
    _copy(wheel.stub, backends / "python" / wheel.stub.name)
    _copy(_OURS / "onnxruntime" / "model.py", backends / "onnxruntime" / "model.py")
    return backends


def _link(source: Path, target: Path) -> None:
    if target.is_symlink() and Path(os.readlink(target)) == source:
        return
    target.unlink(missing_ok=True)
    target.symlink_to(source)


def _copy(source: Path, target: Path) -> None:
    """Copy by rename, so that a server running on the old file keeps it."""
    wanted = source.stat()
    if target.exists():
        present = target.stat()
        same = (present.st_size, present.st_mtime_ns) == (
            wanted.st_size,
            wanted.st_mtime_ns,
        )
        if same:
            return
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(source, draft)
    draft.replace(target)
