"""Run a converted model in the onnxruntime of another Triton release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from converters.model import F32, Floats
from converters.runner import Runner, onnx_runner
from converters.session import RUNTIME
from converters.sources.child import Child, ChildLost
from converters.target_child import pack, unpack
from converters.target_environment import environment
from tollgate.errors import ConversionError, SetupError
from tollgate.repository.targets import target

TIMEOUT_S = 300.0

# Our path comes last: numpy and onnxruntime are the environment's own.
_START = """
import sys
import numpy, onnxruntime
sys.path.append(sys.argv[1])
from converters.target_child import main
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
    root = Path(__file__).resolve().parent.parent
    broken = f"the environment of Triton {name} does not run"
    remedy = f"remove {python.parent.parent} and try again"
    try:
        child = Child([str(python), "-I", "-c", _START, str(root)], timeout_s=timeout_s)
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
        """
        Send a request and return the reply; without a reply, raise ConversionError.
        """
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
