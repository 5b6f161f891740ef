"""
A model tried out in this process: what it answers.

Its answers are what a server with the same file must answer too.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import RepositoryError, ServerError
from tollgate.repository.speed import BATCHES, made_up_rows
from tollgate.schema import FEATURES, PROBABILITIES
from tollgate.server import control
from tollgate.server.control import Reachable
from tollgate.server.onnx_session import OnnxSession

F32 = npt.NDArray[np.float32]

# Releases of onnxruntime add up in another order; conversion is proven to the same.
_TOLERANCE = 1e-5
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
    taken = session.inputs[FEATURES]
    rows = made_up_rows(taken.shape[1]).astype(taken.dtype, copy=False)
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
