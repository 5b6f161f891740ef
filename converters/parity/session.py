"""
Load and run an ONNX model with the settings of the model step.

This project imports the module, and so do the environments of other releases, which
contain only numpy and onnxruntime (`converters.parity.target_runtime`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from tollgate.schema import CANDIDATE_FEATURES, FEATURES, PROBABILITIES, RELEVANCE

RUNTIME = f"onnxruntime {onnxruntime.__version__}"
WANTED = ([(FEATURES, "tensor(float)")], [(PROBABILITIES, "tensor(float)")])
WIDE = ([(FEATURES, "tensor(double)")], [(PROBABILITIES, "tensor(float)")])
RANKED = ([(CANDIDATE_FEATURES, "tensor(float)")], [(RELEVANCE, "tensor(float)")])

_LEAST_BATCHES = 64  # of each thread

_F32 = npt.NDArray[np.float32]
_Floats = npt.NDArray[np.floating[Any]]


class SessionError(Exception):
    """onnxruntime cannot load or run a model, or the model fits no model step."""


def require_loadable(model: bytes) -> None:
    """Raise SessionError if onnxruntime cannot load a graph."""
    _loaded(model)


def _loaded(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise _reworded(error, "cannot load the model") from error


class Session:
    """
    A model on one CPU thread, as the model step's configuration runs it.

    Raises:
        SessionError: onnxruntime cannot load it, or its inputs and outputs are not
            those of a model step.
    """

    def __init__(self, model: bytes) -> None:
        self._session = _loaded(model)
        inputs = [(i.name, i.type) for i in self._session.get_inputs()]
        outputs = [(o.name, o.type) for o in self._session.get_outputs()]
        if (inputs, outputs) not in (WANTED, WIDE, RANKED):
            raise SessionError(
                f"the model maps {inputs} to {outputs}; a model step maps "
                f"{WANTED[0]} to {WANTED[1]}"
            )
        self.wide = (inputs, outputs) == WIDE
        self._ranks = (inputs, outputs) == RANKED

    def run(self, rows: _Floats) -> _F32:
        """
        Predict rows [N, F] in one run, in the precision of its input; of a ranker also
        lists [N, C, F]. For it, a row is a list of one candidate.
        """
        given = rows.astype(np.float64 if self.wide else np.float32, copy=False)
        name, output = (FEATURES, PROBABILITIES)
        if self._ranks:
            name, output = CANDIDATE_FEATURES, RELEVANCE
            given = given if given.ndim == 3 else given[:, None, :]
        try:
            answer: _F32 = self._session.run([output], {name: given})[0]
        except Exception as error:
            raise _reworded(error, "cannot run the model") from error
        return answer


def in_batches(infer: Callable[[_Floats], _F32], rows: _Floats, *, size: int) -> _F32:
    """
    Predict rows [N, F], N >= 1, `size` rows at a time; float32 [N, K].

    Two threads each predict one half of the batches: a run of onnxruntime does not hold
    Python's lock, and its result depends only on its own rows.
    """

    def answers(starts: range) -> list[_F32]:
        return [infer(rows[i : i + size]) for i in starts]

    batches = range(0, len(rows), size)
    half = len(batches) // 2
    if half < _LEAST_BATCHES:
        return np.concatenate(answers(batches))
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(answers, (batches[:half], batches[half:]))
        return np.concatenate([answer for part in parts for answer in part])


def _reworded(error: Exception, what: str) -> Exception:
    # onnxruntime's errors have no common base class; they share a module.
    if type(error).__module__.startswith("onnxruntime."):
        return SessionError(f"{RUNTIME} {what}: {' '.join(str(error).split())}")
    return error
