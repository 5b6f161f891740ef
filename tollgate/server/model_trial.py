"""
A model tried out in this process: what it answers, and how long it takes.

Its answers are what a server with the same file must answer too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import RepositoryError, ServerError
from tollgate.schema import FEATURES, MAX_BATCH_ROWS, PROBABILITIES
from tollgate.server import control
from tollgate.server.control import Reachable
from tollgate.server.onnx_session import OnnxSession

F32 = npt.NDArray[np.float32]
Measure = Callable[[Path], dict[int, float]]

BATCHES = (1, 8, MAX_BATCH_ROWS)
# Releases of onnxruntime add up in another order; conversion is proven to the same.
_TOLERANCE = 1e-5
_MEASURE_S = 0.3
_ROUNDS = 3  # at least, however slow it is
_ANSWER_S = 10.0  # the first request of a model may be a slow one


class Trial(msgspec.Struct, frozen=True):
    """
    Rows and what a model answers to them.

    Attributes:
        features: float32 [32, F].
        probabilities: float32 [32, K].
    """

    features: F32
    probabilities: F32


def try_model(model: Path) -> Trial:
    """
    Ask a model for a batch of made-up rows, the first of them zeros.

    Raises:
        RepositoryError: It cannot be loaded or run, or answers with something other
            than probabilities.
    """
    session = OnnxSession(model, intra_op_threads=1)
    rows = _rows(session)
    answers = _run(session, rows)
    if len(answers) != len(rows) or answers.ndim != 2:
        problem = f"has shape {list(answers.shape)} for {len(rows)} rows"
        raise RepositoryError(model, problem, where=PROBABILITIES)
    wrong = ~((answers >= -_TOLERANCE) & (answers <= 1 + _TOLERANCE)).all(axis=1)
    if wrong.any():
        first = answers[int(np.argmax(wrong))].tolist()
        problem = f"{first} for an ordinary row: not probabilities"
        raise RepositoryError(model, problem, where=PROBABILITIES)
    return Trial(features=rows, probabilities=answers)


def measure_us_per_row(model: Path) -> dict[int, float]:
    """
    Time a model on one thread, as the model step runs it.

    Returns:
        Rows of a batch -> the fastest time per row, µs. The fastest, because what
        else the machine does only ever adds.

    Raises:
        RepositoryError: It cannot be loaded or run.
    """
    session = OnnxSession(model, intra_op_threads=1)
    rows = _rows(session)
    fastest = dict.fromkeys(BATCHES, float("inf"))
    until = time.monotonic() + _MEASURE_S
    done = 0
    while done < _ROUNDS or time.monotonic() < until:
        for count in BATCHES:
            batch = rows[:count]
            started = time.perf_counter()
            _run(session, batch)
            taken_us = (time.perf_counter() - started) * 1e6
            fastest[count] = min(fastest[count], taken_us / count)
        done += 1
    return fastest


def require_answers(
    server: Reachable, step: str, *, version: int, trial: Trial
) -> None:
    """
    Demand that a served version answers as its file does in this process.

    Args:
        server: A server that has loaded it.
        step: The model.
        version: Its version, asked directly.
        trial: What to ask and what to hear; asked in batches of 1, 8 and 32 rows.

    Raises:
        ServerError: It refused, or answered something else.
    """
    for count in BATCHES:
        answer = control.infer(
            server,
            step,
            inputs={FEATURES: trial.features[:count]},
            parameters={},
            timeout_s=_ANSWER_S,
            version=version,
        )
        found, wanted = answer[PROBABILITIES], trial.probabilities[:count]
        if found.shape == wanted.shape and np.abs(found - wanted).max() <= _TOLERANCE:
            continue
        raise ServerError(
            step,
            f"version {version} answers {found[0].tolist()} to {count} row(s), its "
            f"file {wanted[0].tolist()}: the server has another model",
        )


def _rows(session: OnnxSession) -> F32:
    """Make up rows of small values, whole and broken, always the same."""
    chance = np.random.default_rng(0)
    shape = (MAX_BATCH_ROWS, session.inputs[FEATURES].shape[1])
    whole = chance.integers(0, 5, shape)
    broken = chance.uniform(0, 100, shape)
    rows = np.where(chance.random(shape) < 0.5, whole, broken).astype(np.float32)
    rows[0] = 0.0
    return rows


def _run(session: OnnxSession, rows: F32) -> F32:
    try:
        answer: F32 = session.run([PROBABILITIES], {FEATURES: rows})[0]
    except Exception as error:
        # onnxruntime's errors have no common base; they share a module.
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        problem = f"onnxruntime {session.version}: {' '.join(str(error).split())}"
        raise RepositoryError(session.path, problem) from error
    return answer
