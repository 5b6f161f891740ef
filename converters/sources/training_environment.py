"""
Query a model in the environment that trained it, and convert what it learned.

Two child processes do this. The one that runs the given Python reads the file and
predicts rows; the converted model is compared with these predictions. The other runs
our own libraries, rebuilds the same model from plain data and converts it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from converters.model import F32, F64, Facts, Floats, Probes
from converters.sources.child_process import Child, ChildLost
from converters.sources.files.formats import Format
from converters.sources.process import TIMEOUT_S, FileModel
from tollgate.errors import ConversionError, InputError, SetupError
from tollgate.explanation import Explanation

WORKER = Path(__file__).with_name("environment_worker.py")
# Packages whose name differs from the module's.
_PACKAGES = {"sklearn": "scikit-learn", "xgboost": "xgboost-cpu"}


class EnvironmentModel:
    """
    Use a model that another Python reads; a context manager.

    Args:
        path: Its file.
        python: The interpreter of the environment that trained it.
        form: Format of the file.
        missing: The number that stands for a missing value, where the file does not
            say; None for NaN.
        timeout_s: Seconds that one reply may take.

    Raises:
        InputError: There is no such Python, or it cannot read the file.
        SetupError: The environment lacks a library that the model needs.
        ConversionError: The model contains code written by its user.
    """

    def __init__(
        self,
        path: Path,
        *,
        python: Path,
        form: Format,
        missing: float | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._path = path
        self._python = python
        value = "" if missing is None else repr(missing)
        # Isolated mode: its path contains neither our modules nor the user's own.
        command = [
            str(python.absolute()),
            "-I",
            str(WORKER),
            str(path.resolve()),
            form,
            value,
        ]
        try:
            self._child = Child(command, timeout_s=timeout_s)
        except OSError as error:
            problem = f"cannot be started: {error.strerror}"
            raise InputError(python, f"{problem}; name a Python") from error
        self._folder = tempfile.TemporaryDirectory(prefix="tollgate-")
        self._converter: FileModel | None = None
        try:
            self._facts = self._opened(timeout_s)
        except BaseException:
            self.close()
            raise

    def _opened(self, timeout_s: float) -> Facts:
        """Transfer the model as plain data; return its facts."""
        reply, _ = self._ask({"do": "facts"})
        _, fitted = self._ask({"do": "fitted"}, whole=True)
        path = Path(self._folder.name, "model")
        path.write_bytes(fitted)
        self._converter = FileModel(
            path, form="plain", timeout_s=timeout_s, origin=self._path
        )
        facts = self._converter.facts
        versions = reply["versions"]
        name = "sklearn" if reply["library"] == "scikit-learn" else reply["library"]
        return msgspec.structs.replace(
            facts, version=versions[name], written_by=reply["written_by"]
        )

    def __enter__(self) -> EnvironmentModel:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop both processes."""
        self.close()

    def close(self) -> None:
        """Stop both processes and remove the transferred data."""
        self._child.close()
        if self._converter is not None:
            self._converter.__exit__(None, None, None)
        self._folder.cleanup()

    @property
    def facts(self) -> Facts:
        """Return its facts; the version is that of its own environment."""
        return self._facts

    def predict(self, rows: Floats) -> F64:
        """Return its own environment's probabilities for [N, F]; float64 [N, K]."""
        rows = np.ascontiguousarray(rows)
        head = {"do": "predict", "shape": rows.shape, "dtype": rows.dtype.str}
        found, body = self._ask(head, rows.tobytes())
        answer: F64 = np.frombuffer(body, dtype=np.float64).reshape(found["shape"])
        return answer

    def convert(self, *, wide: bool = False) -> bytes:
        """Return it as ONNX."""
        return self._built.convert(wide=wide)

    def explanation(self) -> Explanation:
        """
        Return its trees and their covers, its coefficients, or why there are none.
        """
        return self._built.explanation()

    def probes(self, samples: F32 | None) -> Probes:
        """
        Return sample rows (generated when None), rows around every split, extremes.
        """
        return self._built.probes(samples)

    def pruned(self, *, trees: int | None, depth: int | None) -> EnvironmentModel:
        """
        Raise ConversionError: a model of another environment cannot be pruned here.
        """
        raise ConversionError(
            f"{self._path}: pruning is not done for a model of another environment: "
            "train a smaller one there"
        )

    @property
    def _built(self) -> FileModel:
        assert self._converter is not None
        return self._converter

    def _ask(
        self, head: dict[str, Any], body: bytes = b"", *, whole: bool = False
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request; return head and body, or everything as body if `whole`."""
        line = json.dumps(head).encode() + b"\n"
        try:
            answer = self._child.ask(line + body)
        except ChildLost as lost:
            how = f"ended with {lost.how}" if lost.how else "was late or out of memory"
            problem = f"{self._python}, which read it, {how}"
            raise InputError(self._path, problem) from lost
        first, _, rest = answer.partition(b"\n")
        try:
            found = json.loads(first)
        except ValueError as error:
            problem = f"{self._python}, which read it, went astray"
            raise InputError(self._path, problem) from error
        if "lacks" in found:
            name = str(found["lacks"]).partition(".")[0]
            package = _PACKAGES.get(name, name)
            raise SetupError(
                f"{self._path} needs {name!r}, which {self._python} lacks",
                remedy=f"{self._python} -m pip install {package}",
            )
        if "problem" in found:
            raise ConversionError(f"{self._path}: {found['problem']}")
        return found, answer if whole else rest
