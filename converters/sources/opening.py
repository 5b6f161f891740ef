"""
Open a model file of any supported format, in a process of its own.

Where the environment that trained the model is named, a second process runs its Python:
it reads the file and predicts rows, with which the converted model is compared. The
first rebuilds the same model from plain data and converts it.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from converters.model import F32, F64, Facts, Floats, Probes, Pruning, TrainedModel
from converters.sources.child_process import Child, ChildLost
from converters.sources.files.formats import Format, format_of
from converters.sources.worker import Block, Reply, Request
from tollgate.errors import ArgumentError, ConversionError, InputError, SetupError
from tollgate.explanation import Explanation, decode_explanation

TIMEOUT_S = 300.0


_RECORDED = re.compile(rb"_sklearn_version\x94?.{1,3}?(\d+\.\d+\.\d+)", re.DOTALL)


class FileModel:
    """
    A `TrainedModel` whose file a child process reads; a context manager.

    Args:
        missing: The number that stands for a missing value, where the file does not
            say; None for NaN.
        columns: Number of features, for ONNX files that do not say.
        timeout_s: Seconds that one reply may take.
        origin: The file that messages name; None for this one.
    """

    def __init__(
        self,
        path: Path,
        *,
        form: Format,
        missing: float | None = None,
        columns: int | None = None,
        timeout_s: float = TIMEOUT_S,
        origin: Path | None = None,
    ) -> None:
        self._path = origin or path
        self._pruning = Pruning()
        value = "" if missing is None else repr(missing)
        worker = "converters.sources.worker"
        self._child = Child(
            [
                *(sys.executable, "-m", worker, str(path.resolve()), form, value),
                str(columns or 0),
            ],
            timeout_s=timeout_s,
        )

    def __enter__(self) -> FileModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the child."""
        self._child.close()

    @property
    def facts(self) -> Facts:
        found = self._ask("facts").facts
        if found is None:
            raise InputError(self._path, "the reading process gave no facts")
        return found

    def predict(self, rows: Floats) -> F64:
        found: F64 = self._array(self._ask("predict", rows).first)
        return found

    def convert(self, *, wide: bool = False) -> bytes:
        return self._ask("convert wide" if wide else "convert").model

    def explanation(self) -> Explanation:
        return decode_explanation(self._ask("explain").model, source=self._path)

    def probes(self, samples: F32 | None) -> Probes:
        reply = self._ask("probes", samples)
        return Probes(rows=self._array(reply.first), kind=self._array(reply.second))

    def pruned(self, *, trees: int | None, depth: int | None) -> FileModel:
        """
        Return the model with fewer or shallower trees; the same child serves it.

        Raises:
            ConversionError: There are none to remove.
        """
        smaller = copy.copy(self)
        smaller._pruning = Pruning(trees, depth)
        smaller.facts  # noqa: B018  (refused now, not later)
        return smaller

    def _array(self, block: Block | None) -> Any:
        if block is None:
            raise InputError(self._path, "the reading process gave no rows")
        return block.array()

    def _ask(self, do: str, rows: Floats | None = None) -> Reply:
        block = None if rows is None else Block.of(rows)
        request = Request(do, block, self._pruning)
        try:
            body = self._child.ask(msgspec.msgpack.encode(request))
        except ChildLost as lost:
            raise InputError(self._path, self._end(lost)) from lost
        try:
            reply = msgspec.msgpack.decode(body, type=Reply)
        except msgspec.DecodeError as error:
            raise InputError(self._path, "the reading process went astray") from error
        if reply.newer:
            raise ConversionError(
                f"{self._path}: {reply.problem.rstrip('.')}; if another environment "
                f"wrote it{_wanted(self._path)}, name that one's Python"
            )
        if reply.problem:
            raise ConversionError(f"{self._path}: {reply.problem}")
        return reply

    def _end(self, lost: ChildLost) -> str:
        if not lost.how:
            return f"was not read within {self._child.timeout_s:g} s, or out of memory"
        return f"the process that read it ended with {lost.how}: the file is damaged"


def _wanted(path: Path) -> str:
    """Return what a pickle records of its environment, read as bytes."""
    body = path.read_bytes()
    found = [f"scikit-learn {one.decode()}" for one in _RECORDED.findall(body)[:1]]
    if b"numpy._core" in body:
        found.append("NumPy 2")
    return f" (it records {' and '.join(found)})" if found else ""


WORKER = Path(__file__).with_name("environment_worker.py")
# Packages whose name differs from the module's.
_PACKAGES = {"sklearn": "scikit-learn", "xgboost": "xgboost-cpu"}


class EnvironmentModel:
    """
    A `TrainedModel` that another Python reads; a context manager.

    Args:
        python: The interpreter of the environment that trained it.
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
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop both processes and remove the transferred data."""
        self._child.close()
        if self._converter is not None:
            self._converter.close()
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
        return self._built.convert(wide=wide)

    def explanation(self) -> Explanation:
        return self._built.explanation()

    def probes(self, samples: F32 | None) -> Probes:
        return self._built.probes(samples)

    def pruned(self, *, trees: int | None, depth: int | None) -> EnvironmentModel:
        """Raise ConversionError: another environment's model cannot be pruned here."""
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


@contextmanager
def open_source(
    path: Path,
    *,
    trust_pickle: bool = False,
    missing: float | None = None,
    columns: int | None = None,
    python: Path | None = None,
) -> Iterator[TrainedModel]:
    """
    Open a model file; a child process reads formats that may run code or crash.

    Args:
        trust_pickle: True to load a pickle, which runs the code in it.
        missing: Number that stands for a missing value in XGBoost's files, which do not
            store it.
        columns: Number of features, for ONNX files that do not say.
        python: Python of the environment that trained it, which then reads the model
            and predicts; None for our own.

    Raises:
        InputError: It is missing, damaged, of an unknown format, or a pickle that is
            not trusted.
        ConversionError: Its model would not convert faithfully.
    """
    form = format_of(path)
    if form == "pickle" and not trust_pickle:
        raise ArgumentError(
            "trust_pickle",
            f"{path} is a pickle: loading it runs whatever code is in it; a pickle "
            "that you trust is loaded in a process of its own",
        )
    if python is not None:
        if form == "onnx":
            raise ArgumentError("python", f"{path} is ONNX, which needs no Python")
        with EnvironmentModel(
            path, python=python, form=form, missing=missing
        ) as elsewhere:
            yield elsewhere
        return
    with FileModel(path, form=form, missing=missing, columns=columns) as child:
        child.facts  # noqa: B018  (the file is read now, not later)
        yield child
