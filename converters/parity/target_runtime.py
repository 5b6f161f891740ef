"""Run a converted model in the onnxruntime of another Triton release."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import converters
import tollgate
from converters.model import F32, Floats
from converters.parity.runner import Runner, onnx_runner
from converters.parity.session import RUNTIME
from converters.parity.target_child import pack, unpack
from converters.sources.child_process import Child, ChildLost
from tollgate.errors import ConversionError, SetupError
from tollgate.repository.models.targets import Target, target

# Create the Python environment with the onnxruntime of another release, once.
#
# The environment is in the user's cache. It is built in a temporary folder and renamed
# once it runs, so an environment that exists is complete even if a builder was killed.

# The newest NumPy that has wheels for Python 3.10, 3.11 and 3.12.
NUMPY = "numpy==2.2.6"
STEP_TIMEOUT_S = 900.0
_PYTHON = Path("bin", "python")
# pip settings that would install elsewhere, or install other packages.
_NOT_FOR_PIP = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_CONSTRAINT")


def environment(target: Target) -> Path:
    """
    Return the Python that has a release's onnxruntime; create it the first time.

    It has the same version as our own Python: onnxruntime contains its kernels, which
    are the same for every Python version.

    Raises:
        SetupError: It cannot be created here; the error says what would help.
    """
    folder = environment_folder(target)
    python = folder / _PYTHON
    if python.exists():
        return python
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent / f".{folder.name}.lock"):
            if not python.exists():
                _build(target, folder)
    except OSError as error:
        raise SetupError(
            f"{folder} cannot be made: {error.strerror or error}",
            remedy="free some 200 MB there, or set XDG_CACHE_HOME to another folder",
        ) from error
    return python


def cache_folder() -> Path:
    """Return the folder of all environments; it need not exist."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    root = named if named.is_absolute() else Path.home() / ".cache"
    return root / "tollgate" / "targets"


def environment_folder(target: Target) -> Path:
    """Return the folder of a release's environment; it need not exist."""
    version = "{}.{}".format(*sys.version_info)
    parts = (*requirements(target), version, sys.base_prefix, platform.machine())
    mark = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return cache_folder() / f"{target.release}-{mark}"


def requirements(target: Target) -> tuple[str, str]:
    """List all packages of an environment; onnxruntime needs no others to run."""
    return (f"onnxruntime=={target.onnxruntime}", NUMPY)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Lock the building of this environment; the kernel frees a dead process's lock."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build(target: Target, folder: Path) -> None:
    """Build an environment in a temporary folder, try it, and rename it into place."""
    prefix = f".{folder.name}.new-"
    for left in folder.parent.glob(f"{prefix}*"):  # from builders that were killed
        shutil.rmtree(left, ignore_errors=True)
    if folder.exists():  # its Python is gone
        shutil.rmtree(folder)
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True
    ) as aside:
        staged = Path(aside, "environment")
        python = staged / _PYTHON
        made = _run([sys.executable, "-I", "-m", "venv", str(staged)])
        if made.returncode:
            raise SetupError(
                f"{sys.executable} -m venv failed: {_last_line(made)}",
                remedy="install Python's venv module (Debian, Ubuntu: python3-venv)",
            )
        options = ("--quiet", "--no-deps", "--no-input", "--disable-pip-version-check")
        wanted = requirements(target)
        install = [
            str(python),
            "-I",
            "-m",
            "pip",
            "install",
            *options,
            "--retries",
            "2",
        ]
        done = _run([*install, "--only-binary", ":all:", *wanted])
        if done.returncode:
            raise _not_installed(target, done)
        tried = _run([str(python), "-I", "-c", "import numpy, onnxruntime"])
        if tried.returncode:
            raise SetupError(
                f"{wanted[0]} does not run here: {_last_line(tried)}",
                remedy="prove the model on a machine where it does",
            )
        os.rename(staged, folder)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    env = {name: os.environ[name] for name in os.environ if name not in _NOT_FOR_PIP}
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=env,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"{Path(command[0]).name} {' '.join(command[2:5])} took more than "
            f"{STEP_TIMEOUT_S:g} s",
            remedy="try again with a faster network",
        ) from error


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1].strip() if lines else f"status {done.returncode}"


def _not_installed(
    target: Target, done: subprocess.CompletedProcess[str]
) -> SetupError:
    """Report why pip failed: no index, no wheel for this Python, or its own message."""
    what = f"the environment of Triton {target.release}"
    missed = re.search(r"requirement (\S+) \(from versions: ([^)]*)\)", done.stderr)
    if missed is None:
        return SetupError(
            f"{what} cannot be made: pip says {_last_line(done)!r}",
            remedy="mend that and try again",
        )
    package, versions = missed.groups()
    if versions == "none":
        return SetupError(
            f"{what} cannot be made: pip finds no package index that has {package}",
            remedy="check the network, or give pip an index or a folder of wheels "
            "(PIP_INDEX_URL, PIP_FIND_LINKS)",
        )
    return SetupError(
        f"{what} cannot be made: there is no {package} for Python "
        f"{sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}",
        remedy=f"run tollgate with another Python; the release has {target.python}",
    )


TIMEOUT_S = 300.0

# Our paths come last: numpy and onnxruntime are the environment's own.
_START = """
import sys
import numpy, onnxruntime
sys.path += sys.argv[1:]
from converters.parity.target_child import main
main()
"""


class TargetRuntime(Protocol):
    """Runtime for the models of one release."""

    @property
    def runtime(self) -> str:
        """Return the runtime's name and version: `onnxruntime 1.27.0`."""

    def runner(self, model: bytes) -> Runner:
        """
        Load a model.

        Raises:
            ConversionError: The runtime cannot load it.
        """


@contextmanager
def open_target(name: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[TargetRuntime]:
    """
    Open the onnxruntime of a release: ours, or one in a child's environment.

    Args:
        name: The release, such as `26.07`.
        timeout_s: Seconds that one reply may take.

    Raises:
        InputError: There is no such release in the table.
        SetupError: Its environment cannot be created, or does not run.
    """
    wanted = f"onnxruntime {target(name).onnxruntime}"
    if wanted == RUNTIME:
        yield _Here()
        return
    python = environment(target(name))
    # The folders that hold `converters` and `tollgate`, which may be one.
    roots = [
        str(Path(found).resolve().parents[1])
        for found in (converters.__file__, tollgate.__file__)
    ]
    broken = f"the environment of Triton {name} does not run"
    remedy = f"remove {python.parent.parent} and try again"
    try:
        child = Child([str(python), "-I", "-c", _START, *roots], timeout_s=timeout_s)
    except OSError as error:
        raise SetupError(f"{broken}: {error.strerror}", remedy=remedy) from error
    try:
        elsewhere = _Elsewhere(child, runtime=wanted)
        try:
            found = elsewhere.ask({"do": "runtime"})[0]
        except ConversionError as error:
            raise SetupError(f"{broken}: {error}", remedy=remedy) from error
        if found.get("runtime") != wanted:
            raise SetupError(f"{broken}: it has {found.get('runtime')}", remedy=remedy)
        yield elsewhere
    finally:
        child.close()


class _Here:
    """Our own onnxruntime."""

    runtime = RUNTIME

    def runner(self, model: bytes) -> Runner:
        """Load a model."""
        return onnx_runner(model)


class _Elsewhere:
    """The onnxruntime of a child process."""

    def __init__(self, child: Child, *, runtime: str) -> None:
        self._child = child
        self.runtime = runtime

    def runner(self, model: bytes) -> Runner:
        """Load a model."""
        head, _ = self.ask({"do": "load"}, model)
        return _Runner(self, at=head["at"])

    def ask(
        self, head: dict[str, Any], body: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the reply; raise ConversionError without one."""
        try:
            found, data = unpack(self._child.ask(pack(head, body)))
        except ChildLost as lost:
            how = f"ended with {lost.how}"
            if not lost.how:
                late = f"{self._child.timeout_s:g} s"
                how = f"did not answer within {late}, or was out of memory"
            raise ConversionError(f"the process of {self.runtime} {how}") from lost
        except ValueError as error:
            raise ConversionError(
                f"the process of {self.runtime} went astray"
            ) from error
        if "problem" in found:
            raise ConversionError(found["problem"])
        return found, data


class _Runner:
    """A model in a child process; a call sends and receives all its rows at once."""

    def __init__(self, elsewhere: _Elsewhere, *, at: int) -> None:
        self._elsewhere = elsewhere
        self._at = at

    @property
    def runtime(self) -> str:
        """Return the runtime's name and version."""
        return self._elsewhere.runtime

    def __call__(self, rows: Floats) -> F32:
        """Predict float32 [N, F] in one run of the model; float32 [N, K]."""
        return self.batched(rows, size=max(1, len(rows)))

    def batched(self, rows: Floats, *, size: int) -> F32:
        """Predict float32 [N, F], N >= 1, `size` rows a run; float32 [N, K]."""
        head = {
            "do": "run",
            "at": self._at,
            "shape": rows.shape,
            "size": size,
            "dtype": rows.dtype.str,
        }
        sent = np.ascontiguousarray(rows).tobytes()
        found, data = self._elsewhere.ask(head, sent)
        answer: F32 = np.frombuffer(data, dtype=np.float32).reshape(found["shape"])
        return answer
