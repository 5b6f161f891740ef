"""Run a product's hook: the same code offline, online and in the replay."""

from __future__ import annotations

import builtins
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType, TracebackType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import HookError
from tollgate.features.hook.source_rules import BUILTINS, FUNCTION, read_text
from tollgate.features.spec.spec_definition import FeatureSpec, Hook
from tollgate.schema import Degraded

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]
Outputs = Mapping[str, F64]

_CALM_BATCHES = 1_000  # batches without failure before the hook counts as working again
_SHOWN_TEXT = 200
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), np.generic, np.ufunc)
_CODE = (FunctionType, BuiltinFunctionType, ModuleType, type)


class HookColumns(msgspec.Struct, frozen=True):
    """
    Hold the input of a hook for N rows; read-only arrays of [N].

    Attributes:
        rows: N.
        request: By name: amount float64; event_time int64, µs since the epoch; numbers
            float64, NaN where there is none; codes of categories int64.
        features: By name: float64, NaN where the vector has the default.
    """

    rows: int
    request: Mapping[str, Array]
    features: Mapping[str, F64]

    def part(self, chosen: slice | npt.NDArray[np.int64]) -> HookColumns:
        """Select some of the rows, in the order given."""
        rows = len(np.arange(self.rows)[chosen])
        return HookColumns(
            rows=rows,
            request={name: sealed(one[chosen]) for name, one in self.request.items()},
            features={name: sealed(one[chosen]) for name, one in self.features.items()},
        )


Run = Callable[[Hook, HookColumns], Outputs]


def sealed(column: Array) -> Array:
    """Copy a column to a contiguous, read-only array."""
    own = np.array(column, order="C")
    own.setflags(write=False)
    return own


def run_hook(hook: Hook, given: HookColumns) -> Outputs:
    """
    Run a hook on a batch.

    Returns:
        float64 [N] by name; NaN where there is no value.

    Raises:
        HookError: The hook failed, or returned something else; with the line.
    """
    if given.rows == 0:
        return {name: np.zeros(0) for name in hook.columns}
    function = _function(hook.path, hook.source)
    try:
        with np.errstate(all="ignore"):  # NaN and infinity already report it
            made = function(given.request, given.features)
    except Exception as exc:
        raise _failure(exc, hook.path) from exc
    for name, column in made.items():
        if problem := _problem(column, given.rows):
            line = read_text(hook.source, Path(hook.path)).columns[name]
            raise HookError(hook.path, f"{name!r} {problem}", where=f"line {line}")
    return made


def _problem(value: object, rows: int) -> str:
    """Describe the problem of an output column; empty when there is none."""
    if type(value) is not np.ndarray:
        return f"is a {type(value).__name__}, not an array"
    if value.shape != (rows,):
        return f"has shape {value.shape} for {rows} rows, not ({rows},)"
    if value.dtype != np.float64:
        return f"is {value.dtype}, not float64: .astype(np.float64)"
    return ""


def _failure(exc: Exception, path: str) -> HookError:
    """Describe the exception that a hook raised, and the line in the hook."""
    line, trace = 0, exc.__traceback__
    while isinstance(trace, TracebackType):
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    text = " ".join(f"{type(exc).__name__}: {exc}".split())[:_SHOWN_TEXT]
    return HookError(path, text, where=f"line {line}" if line else "")


@functools.lru_cache(maxsize=64)
def _function(path: str, source: str) -> Callable[..., Outputs]:
    """Compile the hook's function; nothing is imported, cached or written for it."""
    read_text(source, Path(path))
    names: dict[str, Any] = {
        "__name__": FUNCTION,
        # NumPy's own functions import parts of NumPy at their first call, with the
        # __import__ of the caller; the hook's text cannot use that name itself.
        "__builtins__": {
            name: getattr(builtins, name) for name in (*BUILTINS, "__import__")
        },
    }
    flags = annotations.compiler_flag  # annotations are never evaluated
    try:
        with np.errstate(all="ignore"):
            exec(compile(source, path, "exec", flags, dont_inherit=True), names)
    except Exception as exc:
        raise _failure(exc, path) from exc
    for name, value in names.items():
        if not name.startswith("__"):
            _freeze(name, value, path)
    found: Callable[..., Outputs] = names[FUNCTION]
    return found


def _freeze(name: str, value: object, path: str) -> None:
    """Make a constant of a hook immutable, or refuse it."""
    if isinstance(value, np.ndarray) and value.dtype != np.object_:
        value.setflags(write=False)
    elif isinstance(value, tuple):
        for one in value:
            _freeze(name, one, path)
    elif not isinstance(value, (*_CONSTANTS, *_CODE)):
        problem = f"is a {type(value).__name__}, which calls could change: use a tuple"
        raise HookError(path, f"{problem} or np.array", where=name)


class HookGuard:
    """
    Run the hook of a product while a caller waits for an answer.

    A row for which it raises has no values; the other rows of its batch have theirs.

    Attributes:
        bits: Degraded bits of the last batch's rows; uint32 [N].
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.bits: U32 = np.zeros(1, np.uint32)  # for batches without a hook
        self._bit = np.uint32(Degraded.HOOK_FAILED if spec.hook else 0)
        hanging: list[bool] = []
        for one in spec.features:
            inputs = () if one.hook is not None else one.inputs or ()
            hanging.append(one.hook is not None or any(hanging[at] for at in inputs))
            if one.essential and hanging[-1]:
                self._bit |= np.uint32(Degraded.ESSENTIAL_MISSING)
        self._calm = _CALM_BATCHES

    def run(self, hook: Hook, given: HookColumns) -> Outputs:
        """Run the hook on a batch; row by row when it raises for the whole batch."""
        self.bits = np.zeros(given.rows, np.uint32)
        try:
            outputs = run_hook(hook, given)
        except HookError as error:
            self._failed(error)
            return self._row_by_row(hook, given)
        self._calm += 1
        if self._calm == _CALM_BATCHES:
            log.warning("%s works again", Path(hook.path).name)
        return outputs

    def mark(
        self, degraded: U32, rows: slice | npt.NDArray[np.bool_] = slice(None)
    ) -> None:
        """Set the bits of the last batch; `rows` are the rows of that batch."""
        if self._bit:
            degraded[rows] |= self.bits

    def _row_by_row(self, hook: Hook, given: HookColumns) -> Outputs:
        outputs = {name: np.full(given.rows, np.nan) for name in hook.columns}
        for row in range(given.rows):
            try:
                made = run_hook(hook, given.part(slice(row, row + 1)))
            except HookError:
                self.bits[row] = self._bit
                continue
            for name, column in made.items():
                outputs[name][row] = column[0]
        return outputs

    def _failed(self, error: HookError) -> None:
        """
        Log the failure once; its message may hold a row's values, and is left out.
        """
        if self._calm >= _CALM_BATCHES:
            place = " ".join(filter(None, (Path(error.source).name, error.where)))
            kind = type(error.__cause__).__name__ if error.__cause__ else "wrong form"
            log.error("%s: %s: its features are their defaults", place, kind)
        self._calm = 0
