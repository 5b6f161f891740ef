"""Query a model that a child process has read."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from converters.model import F32, F64, Facts, Floats, Probes, Pruning
from converters.sources.child_process import Child, ChildLost
from converters.sources.files.formats import Format
from converters.sources.worker import Block, Reply, Request
from tollgate.errors import ConversionError, InputError
from tollgate.explanation import Explanation, decode_explanation

TIMEOUT_S = 300.0


_RECORDED = re.compile(rb"_sklearn_version\x94?.{1,3}?(\d+\.\d+\.\d+)", re.DOTALL)


class FileModel:
    """
    Use a model file that a child process reads; a context manager.

    Args:
        path: The file.
        form: Format of the file.
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
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the child."""
        self._child.close()

    @property
    def facts(self) -> Facts:
        """Return the facts about it."""
        found = self._ask("facts").facts
        if found is None:
            raise InputError(self._path, "the reading process gave no facts")
        return found

    def predict(self, rows: Floats) -> F64:
        """Return the probabilities of rows [N, F] as float64 [N, K]."""
        found: F64 = self._array(self._ask("predict", rows).first)
        return found

    def convert(self, *, wide: bool = False) -> bytes:
        """Return the model as ONNX."""
        return self._ask("convert wide" if wide else "convert").model

    def explanation(self) -> Explanation:
        """
        Return its trees and their covers, its coefficients, or why there are none.
        """
        return decode_explanation(self._ask("explain").model, source=self._path)

    def probes(self, samples: F32 | None) -> Probes:
        """
        Return sample rows (generated when None), rows around every split, extremes.
        """
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
