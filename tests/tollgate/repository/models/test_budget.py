"""A model that is too slow is refused with the figures; noise alone refuses none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import RepositoryError
from tollgate.repository.models.speed import (
    ModelBudget,
    read_budget,
    require_budget,
)
from tollgate.repository.product_models import read_product

MODEL = Path("dir/model.onnx")


def test_default_is_the_fields_layer_less_the_queue_delay(repository: Path) -> None:
    """(20 ms - 0.3 ms) / 32 rows = 615.625 µs; a small batch may take as long."""
    budget = read_budget(read_product(repository, "fraud"))
    assert budget.us_per_row == 615.625
    assert budget.limit_us_per_row(32) == 615.625
    assert budget.limit_us_per_row(8) == 2462.5
    assert budget.limit_us_per_row(1) == 19_700.0


def test_products_own_figure_counts(repository: Path) -> None:
    """slo.yaml beside the ensemble decides: the figure itself, or the model's layer."""
    slo = repository / "fraud" / "slo.yaml"
    slo.write_text("budget_ms: {model: 8.3}\n")
    assert read_budget(read_product(repository, "fraud")).us_per_row == 250.0
    slo.write_text("model_budget_us_per_row: 40\n")
    budget = read_budget(read_product(repository, "fraud"))
    assert budget.us_per_row == 40.0
    assert "fraud/slo.yaml" in budget.source


def test_a_layer_that_the_delay_uses_up_is_refused(repository: Path) -> None:
    """0.3 ms of delay in a layer of 0.3 ms leave nothing for the model."""
    (repository / "fraud" / "slo.yaml").write_text("budget_ms: {model: 0.3}\n")
    with pytest.raises(
        RepositoryError, match=r"budget_ms\.model: 0\.3 ms are less than"
    ):
        read_budget(read_product(repository, "fraud"))


def test_slow_model_is_refused_with_the_figures() -> None:
    """500 µs against 100 at 32 rows: the message says both, per row and per batch."""
    budget = ModelBudget(us_per_row=100.0, source="a test")
    with pytest.raises(RepositoryError) as caught:
        require_budget(MODEL, {1: 600.0, 8: 520.0, 32: 500.0}, budget=budget)
    assert str(caught.value) == (
        "dir/model.onnx: budget: takes 500 µs per row in batches of 32 (16.0 ms), the "
        "budget is 100 µs (3.2 ms; a test): make it smaller"
    )


def test_single_row_may_cost_as_much_as_a_batch_and_no_more() -> None:
    """One row has the time of 32: 3.2 ms, and a quarter for a noisy machine."""
    budget = ModelBudget(us_per_row=100.0, source="a test")
    require_budget(MODEL, {1: 4000.0, 8: 500.0, 32: 125.0}, budget=budget)
    with pytest.raises(RepositoryError, match="4001 µs per row in batches of 1 "):
        require_budget(MODEL, {1: 4001.0, 8: 1.0, 32: 1.0}, budget=budget)
