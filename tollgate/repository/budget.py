"""How long a product's model may take, and does a measured one stay within it?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.product import Product
from tollgate.repository.slo import SLO_FILE, read_slo
from tollgate.schema import MAX_BATCH_ROWS

# A model is refused when its fastest run is over the budget by more than this: the
# machine that publishes is not the one that serves, and never quiet.
_ROOM = 1.25


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
    it is what the layers have for the model, less the step's queue delay, spread over
    the largest batch: with the default of 20 ms and a delay of 0.3 ms,
    (20 - 0.3) / 32 rows are 616 µs per row.

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
