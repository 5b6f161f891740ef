"""Check a model, published or copied in by hand, before it counts as a version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from tollgate.repository.models.artifact_file import read_artifact, require_proof
from tollgate.repository.models.candidate import require_fit
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.models.speed import (
    Measure,
    ModelBudget,
    read_budget,
    require_budget,
    us_per_row,
)
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.model_trial import Trial, try_model


class Proven(msgspec.Struct, frozen=True):
    """
    A model that passed all checks.

    Attributes:
        trial: Rows with its answers.
        us_per_row: Rows of a batch -> the fastest time per row, µs.
        budget: Budget that the time was compared with.
    """

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
        snapshot: The model repository.
        product: Name of the ensemble.
        measure: Times a model.onnx: rows of a batch -> µs per row.
        progress: Called with a description of each check that passed.

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
