"""A product that cannot run in one process is refused in the fused form."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tollgate.errors import RepositoryError
from tollgate.repository.product_models import read_product
from tollgate.repository.serving_form import queue_delay_us, require_form

REPOSITORY = Path(__file__).parents[3] / "model_repository"
MODEL, ENSEMBLE = "fraud_model/config.pbtxt", "fraud/config.pbtxt"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the committed repository."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def delay_parameter(value: str) -> str:
    """Write the parameter of the ensemble."""
    text = f'key: "fused_queue_delay_us" value {{ string_value: "{value}" }}'
    return f"parameters {{ {text} }}\n"


@pytest.mark.parametrize("product", ["fraud", "credit"])
def test_the_committed_products_fit_both_forms(product: str) -> None:
    """Their models run in onnxruntime on the CPU."""
    models = read_product(REPOSITORY, product)
    require_form(models, "ensemble")
    require_form(models, "fused")
    assert queue_delay_us(models.ensemble, source="") == 1000


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        (MODEL, 'backend: "onnxruntime"', 'backend: "tensorrt"', "is tensorrt, not"),
        (MODEL, "KIND_CPU", "KIND_GPU", "is KIND_GPU, not KIND_CPU"),
        (
            MODEL,
            "max_batch_size: 32",
            "max_batch_size: 32\noptimization { execution_accelerators { "
            'gpu_execution_accelerator: { name: "tensorrt" } } }',
            "has execution_accelerators",
        ),
        (
            "fraud_features/config.pbtxt",
            'backend: "python"',
            'backend: "dali"',
            "is dali, not python",
        ),
        (
            ENSEMBLE,
            "max_batch_size: 32",
            "max_batch_size: 32\n" + delay_parameter("soon"),
            "'soon' is not whole microseconds",
        ),
    ],
)
def test_another_product_is_refused(
    repository: Path, file: str, old: str, new: str, problem: str
) -> None:
    """The error names the file and what is in the way."""
    path = repository / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    models = read_product(repository, "fraud")
    require_form(models, "ensemble")
    with pytest.raises(RepositoryError, match=re.escape(problem)) as caught:
        require_form(models, "fused")
    assert caught.value.source == str(path)


def test_the_queue_delay_is_a_parameter_of_the_ensemble(repository: Path) -> None:
    """Whole microseconds."""
    path = repository / ENSEMBLE
    path.write_text(path.read_text() + delay_parameter("250"))
    models = read_product(repository, "fraud")
    require_form(models, "fused")
    assert queue_delay_us(models.ensemble, source=path) == 250
