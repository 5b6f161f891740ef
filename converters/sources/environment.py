"""
Ask a model in the environment that trained it, and convert what it learned.

Two processes answer. The one with the given Python reads the file and answers rows:
it is what the converted model is compared with. The other, with our own libraries,
builds the same model from plain data and converts it.
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
from converters.sources.child import Child, ChildLost
from converters.sources.formats import Format
from converters.sources.process import TIMEOUT_S, FileModel
from tollgate.errors import ConversionError, InputError, SetupError
from tollgate.explanation import Explanation

WORKER = Path(__file__).with_name("environment_worker.py")
# Where a package is not called as what it is imported as.
_PACKAGES = {"sklearn": "scikit-learn", "xgboost": "xgboost-cpu"}


class EnvironmentModel:
    """
    A model that another Python has read; use it as a context manager.

    Args:
        path: Its file.
        python: The interpreter of the environment that trained it.
        form: What the file is.
        missing: The number that stands for a missing value, where the file does not
            say; None for NaN.
        timeout_s: How long one answer may take.

    Raises:
        InputError: There is no such Python, or it cannot read the file.
        SetupError: The environment lacks a library that the model needs.
        ConversionError: The model holds code of its user.
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
        # Isolated: neither our modules nor the user's own stand on its path.
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
        """Carry the model over; return what is known of it."""
        told, _ = self._ask({"do": "facts"})
        _, fitted = self._ask({"do": "fitted"}, whole=True)
        path = Path(self._folder.name, "model")
        path.write_bytes(fitted)
        self._converter = FileModel(
            path, form="plain", timeout_s=timeout_s, origin=self._path
        )
        facts = self._converter.facts
        versions = told["versions"]
        name = "sklearn" if told["library"] == "scikit-learn" else told["library"]
        return msgspec.structs.replace(
            facts, version=versions[name], written_by=told["written_by"]
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
        """End both processes."""
        self.close()

    def close(self) -> None:
        """End both processes and remove what was carried over."""
        self._child.close()
        if self._converter is not None:
            self._converter.__exit__(None, None, None)
        self._folder.cleanup()

    @property
    def facts(self) -> Facts:
        """What is known of it; the version is that of its own environment."""
        return self._facts

    def predict(self, rows: Floats) -> F64:
        """Return what its own environment answers to [N, F]; float64 [N, K]."""
        rows = np.ascontiguousarray(rows)
        head = {"do": "predict", "shape": rows.shape, "dtype": rows.dtype.str}
        found, body = self._ask(head, rows.tobytes())
        answer: F64 = np.frombuffer(body, dtype=np.float64).reshape(found["shape"])
        return answer

    def convert(self, *, wide: bool = False) -> bytes:
        """Return it as ONNX."""
        return self._built.convert(wide=wide)

    def explanation(self) -> Explanation:
        """Return its trees and their covers, its coefficients, or why not."""
        return self._built.explanation()

    def probes(self, samples: F32 | None) -> Probes:
        """Return sample rows (made when None), rows around every split, extremes."""
        return self._built.probes(samples)

    def pruned(self, *, trees: int | None, depth: int | None) -> EnvironmentModel:
        """Raise ConversionError: the smaller model has no answers of its own."""
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
        """Send a request; return head and body, or all as the body when `whole`."""
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
