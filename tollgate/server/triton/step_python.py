"""
Build the Python environment of the steps: this one, but it writes no bytecode.

A stub runs an isolated interpreter: no PYTHON* variable reaches it, and it takes its
packages from the environment whose python3 is first on PATH. Bytecode that it wrote
next to a model.py would change an immutable version, and would make Triton start the
step a second time. So the first python3 on PATH belongs to a small environment that
turns bytecode off, then adds our packages, and imports numpy at a lower priority.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

from tollgate.repository.atomic import replace_file
from tollgate.server.processes.allocator import allocator_environment
from tollgate.server.processes.environment import SYSTEM_LIBRARIES, find_libpython

_FOLDER = "python"
_BEGIN = "import sys; sys.dont_write_bytecode = True"
# Triton's own module imports numpy before any of ours, at full priority.
_END = "import tollgate.imports; tollgate.imports.import_at_start('numpy')"


def build_step_python(root: Path) -> Path:
    """Create or update the environment in `root`; return the first folder for PATH."""
    home = root.resolve() / _FOLDER
    packages = home / "lib" / f"python{sysconfig.get_python_version()}"
    packages = packages / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    binaries = home / "bin"
    binaries.mkdir(exist_ok=True)
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    _link(base, binaries / "python3")
    replace_file(home / "pyvenv.cfg", f"home = {base.parent}\n".encode())
    added = [f"import site; site.addsitedir({path!r})" for path in _packages()]
    lines = [_BEGIN, *added, _END]
    replace_file(packages / "tollgate.pth", "".join(f"{x}\n" for x in lines).encode())
    return binaries


def server_environment(
    *, store_url: str, binaries: Path, allocator: str = ""
) -> dict[str, str]:
    """
    Make the environment variables that the server passes on to its steps.

    The stub takes its packages from the environment whose python3 is first on PATH and
    must find the libpython of that very interpreter.

    Args:
        binaries: Folder with the steps' python3.
        allocator: See tollgate.server.processes.allocator.

    Raises:
        InputError: The allocator is no file.
    """
    return (
        os.environ
        | allocator_environment(allocator)
        | {
            "PATH": _prepended(str(binaries), os.environ.get("PATH", os.defpath)),
            "LD_LIBRARY_PATH": _with_libpython(os.environ.get("LD_LIBRARY_PATH", "")),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TOLLGATE_STORE_URL": store_url,
        }
    )


def _with_libpython(present: str, directory: Path | None = None) -> str:
    """Add libpython to a search path: in front, but system folders at the end."""
    directory = directory or find_libpython()
    if present and directory in SYSTEM_LIBRARIES:
        # The system's folders hold many other libraries: an image puts its CUDA before
        # them.
        return f"{present}:{directory}"
    return _prepended(str(directory), present)


def _prepended(first: str, rest: str) -> str:
    return f"{first}:{rest}" if rest else first


def _packages() -> list[str]:
    """List the package folders of this interpreter."""
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    found += site.getsitepackages()
    return [path for path in dict.fromkeys(found) if os.path.isdir(path)]


def _link(source: Path, target: Path) -> None:
    if not (target.is_symlink() and Path(os.readlink(target)) == source):
        target.unlink(missing_ok=True)
        target.symlink_to(source)
