"""Read how long a product's model may take, and check a measured time against it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.product import Product
from tollgate.repository.slo import SLO_FILE, read_slo
from tollgate.schema import MAX_BATCH_ROWS

# A model is refused when its fastest run exceeds the budget by more than this factor:
# the machine that publishes is not the one that serves, and other work runs on it.
_ROOM = 1.25


class ModelBudget(msgspec.Struct, frozen=True):
    """
    Time that the model may take for one row.

    Attributes:
        us_per_row: Time per row at the largest batch, µs.
        source: Text that describes the source of the figure.
    """

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
        model: The model.onnx, for the message.
        us_per_row: Rows of a batch -> the fastest measured time per row, µs.
        budget: Time that it may take.

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
