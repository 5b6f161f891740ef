"""Measure how long a model.onnx takes for one row, on one thread of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.engine.onnx_session import OnnxSession
from tollgate.errors import RepositoryError
from tollgate.ranking.candidates import CANDIDATES
from tollgate.repository.product_models import Product
from tollgate.repository.slo import SLO_FILE, read_slo
from tollgate.schema import (
    CANDIDATE_FEATURES,
    FEATURES,
    MAX_BATCH_ROWS,
    PROBABILITIES,
    RELEVANCE,
)

# Read how long a product's model may take, and check a measured time against it.

# A model is refused when its fastest run exceeds the budget by more than this factor:
# the machine that publishes is not the one that serves, and other work runs on it.
_ROOM = 1.25


class ModelBudget(msgspec.Struct, frozen=True):
    """Time that the model may take for one row at the largest batch, µs."""

    us_per_row: float
    source: str

    def limit_us_per_row(self, rows: int) -> float:
        """
        Return the time that a row may take in a batch of `rows`, µs.

        Every batch may take as long as the largest one, so the rows of a small batch
        may cost more each.
        """
        return self.us_per_row * MAX_BATCH_ROWS / rows


def read_budget(models: Product) -> ModelBudget:
    """
    Read the model budget of a product.

    It is `model_budget_us_per_row` in the slo.yaml next to the ensemble. Without this
    key it is the model's share of the time in the layers, less the step's queue delay,
    divided by the largest batch: with the default of 20 ms and a delay of 0.3 ms, (20 -
    0.3) / 32 rows are 616 µs per row.

    Raises:
        RepositoryError: The slo.yaml cannot be used, or the delay uses up the layer.
    """
    slo = read_slo(models.repository, product=models.name)
    if slo.model_budget_us_per_row is not None:
        source = f"model_budget_us_per_row in {models.name}/{SLO_FILE}"
        return ModelBudget(us_per_row=slo.model_budget_us_per_row, source=source)
    batching = models.steps[models.model_step].dynamic_batching
    delay_ms = batching.max_queue_delay_microseconds / 1000
    left_ms = slo.layers_ms.model - delay_ms
    if left_ms <= 0:
        path = models.repository / models.name / SLO_FILE
        problem = f"{slo.layers_ms.model:g} ms are less than the queue delay"
        raise RepositoryError(path, problem, where="budget_ms.model")
    return ModelBudget(
        us_per_row=left_ms * 1000 / MAX_BATCH_ROWS,
        source=f"{slo.layers_ms.model:g} ms of {slo.latency_objective_ms:g} are the "
        f"model's, less {delay_ms:g} ms of queue delay, over {MAX_BATCH_ROWS} rows",
    )


def require_budget(
    model: Path, us_per_row: Mapping[int, float], *, budget: ModelBudget
) -> None:
    """
    Check that a model stays within its budget, with a margin for a busy machine.

    Args:
        us_per_row: Rows of a batch -> the fastest measured time per row, µs.

    Raises:
        RepositoryError: It takes too long; the message has the batch and the figures.
    """
    for rows, found_us in sorted(us_per_row.items(), reverse=True):
        limit_us = budget.limit_us_per_row(rows)
        if found_us > limit_us * _ROOM:
            raise RepositoryError(
                model,
                f"takes {found_us:.0f} µs per row in batches of {rows} "
                f"({found_us * rows / 1e3:.1f} ms), the budget is {limit_us:.0f} µs "
                f"({limit_us * rows / 1e3:.1f} ms; {budget.source}): make it smaller",
                where="budget",
            )


F32 = npt.NDArray[np.float32]
Measure = Callable[[Path], dict[int, float]]

BATCHES = (1, 8, MAX_BATCH_ROWS)
MEASURE_S = 0.3
_ROUNDS = 3  # minimum, however slow the model is


def us_per_row(
    model: Path | bytes, *, measure_s: float = MEASURE_S
) -> dict[int, float]:
    """
    Measure the processor time of a model on one thread, as the model step runs it.

    Args:
        model: An ONNX file, or its bytes.
        measure_s: Seconds to measure; three rounds of every batch at least.

    Returns:
        Rows of a batch -> the shortest time per row, µs. The shortest, because other
        work on the machine only ever adds time: it takes the processor's caches.

    Raises:
        RepositoryError: It cannot be loaded or run, or is no model of `features` or
            `candidate_features`.
    """
    session = OnnxSession(model, intra_op_threads=1)
    given, answer = model_tensors(session)
    rows = made_up_input(session)
    fastest = dict.fromkeys(BATCHES, float("inf"))
    until = time.monotonic() + measure_s
    done = 0
    while done < _ROUNDS or time.monotonic() < until:
        for count in BATCHES:
            taken_us = _run_us(session, {given: rows[:count]}, answer)
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


def model_tensors(session: OnnxSession) -> tuple[str, str]:
    """Return the names of a model's input and output: those of a ranker, or others."""
    if CANDIDATE_FEATURES in session.inputs:
        return CANDIDATE_FEATURES, RELEVANCE
    return FEATURES, PROBABILITIES


def made_up_input(session: OnnxSession) -> npt.NDArray[np.floating[Any]]:
    """
    Generate the input of a batch, in the type of the model's input.

    Returns:
        [32, F]; of a ranker [32, C, F]. The features of the first row are zeros.

    Raises:
        RepositoryError: It takes other inputs, or no fixed number of features.
    """
    given, _ = model_tensors(session)
    if set(session.inputs) != {given}:
        problem = f"takes {sorted(session.inputs)}, not {given} alone"
        raise RepositoryError(session.source, problem)
    shape, kind = session.inputs[given].shape, session.inputs[given].dtype
    ranks = given == CANDIDATE_FEATURES
    if len(shape) != (3 if ranks else 2) or shape[-1] < 0:
        first = "rows, candidates" if ranks else "rows"
        problem = f"has shape {list(shape)}, not [{first}, a number of columns]"
        raise RepositoryError(session.source, problem, where=given)
    rows = made_up_rows(shape[-1]).astype(kind, copy=False)
    if not ranks:
        return rows
    candidates = CANDIDATES if shape[1] < 0 else shape[1]
    at = np.arange(MAX_BATCH_ROWS)[:, None] * (1 + np.arange(candidates))
    return np.ascontiguousarray(rows[at % MAX_BATCH_ROWS])


def _run_us(
    session: OnnxSession,
    feeds: Mapping[str, npt.NDArray[np.floating[Any]]],
    answer: str,
) -> float:
    with session.refusals():
        # Of this thread, in which the session runs: other work does not count.
        started_ns = time.thread_time_ns()
        session.run([answer], feeds)
        return (time.thread_time_ns() - started_ns) / 1e3
