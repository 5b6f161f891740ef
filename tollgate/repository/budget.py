"""How long a product's model may take, and does a measured one stay within it?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.product import Product
from tollgate.schema import MAX_BATCH_ROWS

SLO_FILE = "slo.yaml"

# The field's table for an answer within 50 ms: request 2, features 15, model 20,
# post-processing 3, response 2, reserve 8.
MODEL_LAYER_US = 20_000
ANSWER_US = 50_000
# A model is refused when its fastest run is over the budget by more than this: the
# machine that publishes is not the one that serves, and never quiet.
_ROOM = 1.25


class _Slo(msgspec.Struct, frozen=True):
    """The lines of slo.yaml that matter here; other readers take the rest."""

    model_budget_us_per_row: Annotated[float, msgspec.Meta(gt=0)] | None = None
    latency_objective_ms: Annotated[float, msgspec.Meta(gt=0)] = ANSWER_US / 1000


class ModelBudget(msgspec.Struct, frozen=True):
    """
    What one row may cost in the model.

    Attributes:
        us_per_row: At the largest batch, µs.
        source: Where the figure comes from, in words.
    """

    us_per_row: float
    source: str

    def limit_us_per_row(self, rows: int) -> float:
        """
        Tell what a row may cost in a batch of so many, µs.

        Every batch may take as long as the largest one, so the rows of a small one
        may cost more each.
        """
        return self.us_per_row * MAX_BATCH_ROWS / rows


def read_budget(models: Product) -> ModelBudget:
    """
    Read the model budget of a product.

    It is `model_budget_us_per_row` in the slo.yaml beside the ensemble. Without one
    it is what the model layer has of the field's 50 ms, less the step's queue delay,
    spread over the largest batch: (20 ms - 5 ms) / 32 rows = 469 µs per row.

    Raises:
        RepositoryError: The slo.yaml cannot be read, or the number is none.
    """
    slo = _read_slo(models.repository / models.name / SLO_FILE)
    if slo.model_budget_us_per_row is not None:
        source = f"model_budget_us_per_row in {models.name}/{SLO_FILE}"
        return ModelBudget(us_per_row=slo.model_budget_us_per_row, source=source)
    batching = models.steps[models.model_step].dynamic_batching
    delay_us = batching.max_queue_delay_microseconds
    return ModelBudget(
        us_per_row=(MODEL_LAYER_US - delay_us) / MAX_BATCH_ROWS,
        source=f"{MODEL_LAYER_US / 1e3:g} ms of 50 are the model's, less "
        f"{delay_us / 1e3:g} ms of queue delay, over {MAX_BATCH_ROWS} rows",
    )


def read_objective_ms(repository: Path, product: str) -> float:
    """
    Read within how many ms an answer of a product must be there: 50 unless told.

    It is `latency_objective_ms` in the slo.yaml beside the ensemble.

    Raises:
        RepositoryError: The slo.yaml cannot be read, or the number is none.
    """
    return _read_slo(repository / product / SLO_FILE).latency_objective_ms


def _read_slo(path: Path) -> _Slo:
    """Read a slo.yaml; all defaults where there is none."""
    try:
        content = path.read_bytes() if path.exists() else b"{}"
        return msgspec.yaml.decode(content, type=_Slo)
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise RepositoryError(path, " ".join(str(exc).split())) from exc


def require_budget(
    model: Path, us_per_row: Mapping[int, float], *, budget: ModelBudget
) -> None:
    """
    Demand that a model stays within its budget, with room for a noisy machine.

    Args:
        model: The model.onnx, for the message.
        us_per_row: Rows of a batch -> the fastest time seen per row, µs.
        budget: What it may take.

    Raises:
        RepositoryError: It takes too long; says at which batch, with the figures.
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
