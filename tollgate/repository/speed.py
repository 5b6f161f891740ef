"""Measure how long a model.onnx takes for one row, on one thread of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tollgate.errors import RepositoryError
from tollgate.schema import FEATURES, MAX_BATCH_ROWS, PROBABILITIES

if TYPE_CHECKING:
    import onnxruntime

F32 = npt.NDArray[np.float32]
Measure = Callable[[Path], dict[int, float]]

BATCHES = (1, 8, MAX_BATCH_ROWS)
MEASURE_S = 0.3
_ROUNDS = 3  # minimum, however slow the model is


def us_per_row(
    model: Path | bytes, *, measure_s: float = MEASURE_S
) -> dict[int, float]:
    """
    Time a model on one thread, as the model step runs it.

    Args:
        model: An ONNX file, or its bytes.
        measure_s: Seconds to measure; three rounds of every batch at least.

    Returns:
        Rows of a batch -> the fastest time per row, µs. The fastest, because other work
        on the machine only ever adds time.

    Raises:
        RepositoryError: It cannot be loaded or run, or is no model of `features`.
    """
    source = model if isinstance(model, Path) else "model"
    session = _session(model, source=source)
    single = made_up_rows(_columns(session, source=source))
    wide = session.get_inputs()[0].type == "tensor(double)"
    rows = single.astype(np.float64) if wide else single
    fastest = dict.fromkeys(BATCHES, float("inf"))
    until = time.monotonic() + measure_s
    done = 0
    while done < _ROUNDS or time.monotonic() < until:
        for count in BATCHES:
            taken_us = _run_us(session, rows[:count], source=source)
            fastest[count] = min(fastest[count], taken_us / count)
        done += 1
    return fastest


def made_up_rows(columns: int) -> F32:
    """
    Generate rows of small values, integers and fractions, always the same.

    Returns:
        float32 [32, columns]; the first row is zeros.
    """
    chance = np.random.default_rng(0)
    shape = (MAX_BATCH_ROWS, columns)
    whole = chance.integers(0, 5, shape)
    broken = chance.uniform(0, 100, shape)
    rows = np.where(chance.random(shape) < 0.5, whole, broken).astype(np.float32)
    rows[0] = 0.0
    return rows


@contextmanager
def _refusals(source: Path | str) -> Iterator[None]:
    """Map onnxruntime's errors to one line with its version."""
    import onnxruntime

    try:
        yield
    except Exception as error:
        # onnxruntime's errors have no common base; they share a module.
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        problem = (
            f"onnxruntime {onnxruntime.__version__}: {' '.join(str(error).split())}"
        )
        raise RepositoryError(source, problem) from error


def _session(
    model: Path | bytes, *, source: Path | str
) -> onnxruntime.InferenceSession:
    import onnxruntime

    if isinstance(model, Path) and not model.is_file():
        raise RepositoryError(source, "no such file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, and reported once
    with _refusals(source):
        return onnxruntime.InferenceSession(
            str(model) if isinstance(model, Path) else model,
            options,
            providers=["CPUExecutionProvider"],
        )


def _columns(session: onnxruntime.InferenceSession, *, source: Path | str) -> int:
    """Read how many features a model takes."""
    shapes = {node.name: node.shape for node in session.get_inputs()}
    if set(shapes) != {FEATURES}:
        raise RepositoryError(source, f"takes {sorted(shapes)}, not {FEATURES} alone")
    columns = shapes[FEATURES][1:]
    if len(columns) != 1 or not isinstance(columns[0], int):
        problem = f"has shape {shapes[FEATURES]}, not [rows, a number of columns]"
        raise RepositoryError(source, problem, where=FEATURES)
    return columns[0]


def _run_us(
    session: onnxruntime.InferenceSession,
    rows: npt.NDArray[np.floating[Any]],
    *,
    source: Path | str,
) -> float:
    with _refusals(source):
        started = time.perf_counter()
        session.run([PROBABILITIES], {FEATURES: rows})
        return (time.perf_counter() - started) * 1e6
