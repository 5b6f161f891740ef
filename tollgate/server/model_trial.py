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
    made_up_rows,
    read_budget,
    require_budget,
    us_per_row,
)
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import FEATURES, PROBABILITIES
from tollgate.server.triton import control
from tollgate.server.triton.control import Reachable

F32 = npt.NDArray[np.float32]

_ANSWER_S = 10.0  # the first request of a model may be a slow one


F64 = npt.NDArray[np.float64]


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
        features: float32 [32, F]; float64 for a model that takes that.
        probabilities: float32 [32, K].
        source: Raw rows with the source's answers; None if the source was not run.
    """

    features: F32
    probabilities: F32
    source: SourceAnswers | None = None


def try_model(model: Path) -> Trial:
    """
    Run a model on a batch of synthetic rows, the first of them zeros.

    Raises:
        RepositoryError: It cannot be loaded or run, or its answers are not
            probabilities; of one column, not finite numbers.
    """
    session = OnnxSession(model, intra_op_threads=1)
    taken = session.inputs[FEATURES]
    rows = made_up_rows(taken.shape[1]).astype(taken.dtype, copy=False)
    with session.refusals():
        answers: F32 = session.run([PROBABILITIES], {FEATURES: rows})[0]
    if len(answers) != len(rows) or answers.ndim != 2:
        problem = f"has shape {list(answers.shape)} for {len(rows)} rows"
        raise RepositoryError(model, problem, where=PROBABILITIES)
    number = answers.shape[1] == 1
    valid = (answers >= -TOLERANCE) & (answers <= 1 + TOLERANCE)
    wrong = ~(np.isfinite(answers) if number else valid).all(axis=1)
    if wrong.any():
        first = answers[int(np.argmax(wrong))].tolist()
        kind = "no finite number" if number else "not probabilities"
        problem = f"{first} for an ordinary row: {kind}"
        raise RepositoryError(model, problem, where=PROBABILITIES)
    return Trial(features=rows, probabilities=answers)


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
            inputs={FEATURES: trial.features[:count]},
            parameters={},
            timeout_s=_ANSWER_S,
            version=version,
        )
        found, wanted = answer[PROBABILITIES], trial.probabilities[:count]
        same = found.shape == wanted.shape
        if same and _differences(found, wanted).max() <= TOLERANCE:
            continue
        raise ServerError(
            step,
            f"version {version} answers {found[0].tolist()} to {count} row(s), its "
            f"file {wanted[0].tolist()}: the server has another model",
        )
    if trial.source is None:
        return 0.0
    kind = trial.features.dtype
    return _apart(server, step, version=version, source=trial.source, kind=kind)


def _differences(
    found: npt.NDArray[np.floating[Any]], wanted: npt.NDArray[np.floating[Any]]
) -> F64:
    """
    Return the differences of answers, [N, K]; infinite where one is not finite.

    Of one column, a number, they are relative to the larger of the number wanted and
    the median size of all.
    """
    each: F64 = np.abs(found - wanted.astype(np.float64))
    if wanted.shape[1] == 1:
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
    kind: np.dtype[Any],
) -> float:
    """Send raw rows to a served version; return the largest difference found."""
    served = source.rows.astype(kind)
    largest = max(BATCHES)
    found = [
        control.infer(
            server,
            step,
            inputs={FEATURES: served[first : first + largest]},
            parameters={},
            timeout_s=_ANSWER_S,
            version=version,
        )[PROBABILITIES]
        for first in range(0, len(served), largest)
    ]
    each = _differences(np.concatenate(found), source.probabilities)
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
