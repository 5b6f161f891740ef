"""
Run a model in this process, to compare its answers with a server's.

A server that loads the same file must give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.engine.onnx_session import OnnxSession
from tollgate.errors import RepositoryError, ServerError
from tollgate.repository.models.artifact_file import (
    TOLERANCE,
    read_artifact,
    require_proof,
)
from tollgate.repository.models.candidate import require_fit
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.models.speed import (
    BATCHES,
    Measure,
    ModelBudget,
    made_up_input,
    model_tensors,
    read_budget,
    require_budget,
    us_per_row,
)
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import FEATURES, PROBABILITIES, RELEVANCE
from tollgate.server.triton import control
from tollgate.server.triton.control import Reachable

F32 = npt.NDArray[np.float32]

_SHOWN = 64  # numbers of an answer in an error
_ANSWER_S = 10.0  # the first request of a model may be a slow one


F64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]


class SourceAnswers(msgspec.Struct, frozen=True):
    """
    Raw rows, and the source model's answers to them in its own process.

    Attributes:
        rows: float64 [N, F].
        probabilities: float64 [N, K].
    """

    rows: F64
    probabilities: F64


class Trial(msgspec.Struct, frozen=True):
    """
    Rows and a model's answers to them.

    Attributes:
        features: float32 [32, F], of a ranker [32, C, F]; float64 for a model that
            takes that.
        probabilities: float32 [32, K], of a ranker its relevance [32, C].
        source: Raw rows with the source's answers; None if the source was not run.
        given: Name of the input that takes the features.
        answer: Name of the output.
    """

    features: Floats
    probabilities: F32
    source: SourceAnswers | None = None
    given: str = FEATURES
    answer: str = PROBABILITIES

    @property
    def ranks(self) -> bool:
        """Return whether the model scores candidates."""
        return self.answer == RELEVANCE


def try_model(model: Path) -> Trial:
    """
    Run a model on a batch of synthetic rows, the first of them zeros.

    Raises:
        RepositoryError: It cannot be loaded or run, or its answers are not
            probabilities; of one column or of a ranker, not finite numbers.
    """
    session = OnnxSession(model, intra_op_threads=1)
    given, output = model_tensors(session)
    rows = made_up_input(session)
    with session.refusals():
        answers: F32 = session.run([output], {given: rows})[0]
    ranks = output == RELEVANCE
    fits = len(answers) == len(rows) and answers.ndim == 2
    if not fits or (ranks and answers.shape[1] != rows.shape[1]):
        problem = f"has shape {list(answers.shape)} for {len(rows)} rows"
        if ranks:
            problem += f" of {rows.shape[1]} candidates"
        raise RepositoryError(model, problem, where=output)
    number = ranks or answers.shape[1] == 1
    valid = (answers >= -TOLERANCE) & (answers <= 1 + TOLERANCE)
    wrong = ~(np.isfinite(answers) if number else valid).all(axis=1)
    if wrong.any():
        first = _shown(answers[int(np.argmax(wrong))])
        kind = "no finite number" if number else "not probabilities"
        problem = f"{first} for an ordinary row: {kind}"
        raise RepositoryError(model, problem, where=output)
    return Trial(features=rows, probabilities=answers, given=given, answer=output)


def _shown(answer: Floats) -> str:
    """Print an answer; of many numbers, the first that is not finite and a few."""
    if len(answer) <= _SHOWN:
        return str(answer.tolist())
    at = int(np.argmin(np.isfinite(answer)))
    few = ", ".join(map(str, answer[at : at + 3].tolist()))
    return f"[..., {few}, ...]"


def require_answers(
    server: Reachable, step: str, *, version: int, trial: Trial
) -> float:
    """
    Fail unless a served version answers as its file does, and as its source does.

    Args:
        version: Its version, queried directly.
        trial: Rows to send and expected answers; sent in batches of 1, 8 and 32 rows.

    Returns:
        The largest difference from the source's answers to raw rows; 0 if the source
        was not run.

    Raises:
        ServerError: It refused, or its answers differ.
    """
    for count in BATCHES:
        answer = control.infer(
            server,
            step,
            inputs={trial.given: trial.features[:count]},
            parameters={},
            timeout_s=_ANSWER_S,
            version=version,
        )
        found, wanted = answer[trial.answer], trial.probabilities[:count]
        same = found.shape == wanted.shape
        if same and (_differences(found, wanted, ranks=trial.ranks).max() <= TOLERANCE):
            continue
        raise ServerError(
            step,
            f"version {version} answers {_shown(found[0])} to {count} row(s), its "
            f"file {_shown(wanted[0])}: the server has another model",
        )
    if trial.source is None:
        return 0.0
    return _apart(server, step, version=version, source=trial.source, trial=trial)


def _differences(found: Floats, wanted: Floats, *, ranks: bool = False) -> F64:
    """
    Return the differences of answers, [N, K]; infinite where one is not finite.

    Of one column, a number, and of candidates they are relative to the larger of the
    number wanted and the median size of all.
    """
    each: F64 = np.abs(found - wanted.astype(np.float64))
    if ranks or wanted.shape[1] == 1:
        size = np.abs(wanted.astype(np.float64))
        each = each / np.maximum(size, np.median(size) or 1.0)
    each[~np.isfinite(each)] = np.inf
    return each


def _apart(
    server: Reachable,
    step: str,
    *,
    version: int,
    source: SourceAnswers,
    trial: Trial,
) -> float:
    """Send raw rows to a served version; return the largest difference found."""
    served = source.rows.astype(trial.features.dtype)
    rows = len(served)
    if trial.ranks:
        # The rows are candidates; zeros fill the last list, as they do when served.
        candidates, columns = trial.features.shape[1:]
        missing = -rows % candidates
        served = np.pad(served, ((0, missing), (0, 0))).reshape(-1, candidates, columns)
    largest = max(BATCHES)
    found = np.concatenate(
        [
            control.infer(
                server,
                step,
                inputs={trial.given: served[first : first + largest]},
                parameters={},
                timeout_s=_ANSWER_S,
                version=version,
            )[trial.answer]
            for first in range(0, len(served), largest)
        ]
    )
    if trial.ranks:
        found = found.reshape(-1, 1)[:rows]
    each = _differences(found, source.probabilities)
    delta = each.max(axis=1)
    row = int(delta.argmax())
    if delta[row] > TOLERANCE:
        over = int((delta > TOLERANCE).sum())
        raise ServerError(
            step,
            f"version {version} answers {over:,} of {len(delta):,} raw rows otherwise "
            f"than the source model, by up to {delta[row]:.2g} (row {row + 1} of those "
            f"asked: {source.probabilities[row].tolist()} by the source)",
        )
    return float(delta[row])


# Check a model, published or copied in by hand, before it counts as a version.


class Proven(msgspec.Struct, frozen=True):
    """A model that passed all checks; `us_per_row`, the fastest, by rows of a batch."""

    trial: Trial
    us_per_row: dict[int, float]
    budget: ModelBudget


def prove(
    version: Path,
    snapshot: RepositorySnapshot,
    *,
    product: str,
    measure: Measure = us_per_row,
    progress: Callable[[str], None] = lambda done: None,
) -> Proven:
    """
    Check that a version could serve in its product as it is released.

    Args:
        version: Directory with its files; no other process changes it.
        measure: Times a model.onnx: rows of a batch -> µs per row.

    Raises:
        RepositoryError: The files are not those in their record, were not proven for
            our onnxruntime, do not fit the product, do not run or break the budget.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    require_fit(version, snapshot, product=product)
    require_proof(version)
    progress("the files are what they say, are proven, and fit the repository")
    oracle = read_artifact(version).oracle
    if oracle is not None:
        for line in (*oracle.lines, *(f"warning: {one}" for one in oracle.warnings)):
            progress(line)
    model = version / MODEL_FILE
    trial = try_model(model)
    budget = read_budget(snapshot.product(product))
    taken = measure(model)
    require_budget(model, taken, budget=budget)
    progress(_speed(taken, budget))
    return Proven(trial, taken, budget)


def _speed(us_per_row: dict[int, float], budget: ModelBudget) -> str:
    found = ", ".join(f"{us:.1f} at {rows}" for rows, us in us_per_row.items())
    largest = max(us_per_row)
    limit_us = budget.limit_us_per_row(largest)
    return f"µs per row: {found}; budget {limit_us:.0f} at {largest} ({budget.source})"
