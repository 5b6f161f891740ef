"""slo.yaml: the field's table unless told, and nothing that does not add up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.products.small_shop import write_shop
from tollgate.errors import RepositoryError
from tollgate.repository.slo import Layers, Slo, read_slo


def read(folder: Path, text: str) -> Slo:
    """Read a slo.yaml of this text."""
    (folder / "shop").mkdir(exist_ok=True)
    (folder / "shop/slo.yaml").write_bytes(text.encode("latin-1"))
    return read_slo(folder, product="shop")


def test_without_a_file_it_is_the_fields_table(tmp_path: Path) -> None:
    """2, 15, 20, 3, 2 and a reserve of 8 are 50 ms."""
    slo = read_slo(tmp_path, product="shop")
    assert slo == Slo()
    assert (slo.latency_objective_ms, slo.latency_target_ms) == (50.0, 20.0)
    assert slo.objective_percent == 99.9
    assert slo.layers_ms == Layers(2.0, 15.0, 20.0, 3.0, 2.0, 8.0)
    assert slo.layers_ms.total_ms == 50.0
    assert read(tmp_path, "") == slo


def test_what_is_left_out_stays(tmp_path: Path) -> None:
    """Of the file, and of a table in it."""
    slo = read(tmp_path, "budget_ms: {features: 10}\nlatency_target_ms: 30\n")
    assert slo == Slo(latency_target_ms=30.0, budget_ms=Layers(features=10.0))


def test_another_promise_scales_the_table(tmp_path: Path) -> None:
    """Half of the time, half of each layer; a table that is given stays."""
    assert read(tmp_path, "latency_objective_ms: 25\n").layers_ms == Layers(
        1.0, 7.5, 10.0, 1.5, 1.0, 4.0
    )
    slo = read(tmp_path, "latency_objective_ms: 60\nbudget_ms: {model: 25}\n")
    assert slo.layers_ms == Layers(model=25.0)


def test_a_product_that_ranks_has_another_table(tmp_path: Path) -> None:
    """For 100 ms: 4, 10 and 12, 40, 20, 4 and a reserve of 10; scaled as the other."""
    write_shop(tmp_path)
    slo = read(tmp_path, "latency_objective_ms: 100\n")
    table = {"features": 10.0, "candidates": 12.0, "model": 40.0, "request": 4.0}
    rest = {"post_processing": 20.0, "response": 4.0, "reserve": 10.0}
    assert slo.layers_ms == Layers(**table, **rest)
    assert slo.layers_ms.total_ms == 100.0
    assert read(tmp_path, "").layers_ms.candidates == 6.0
    slo = read(
        tmp_path,
        "{latency_objective_ms: 100, budget_ms: {model: 35}, "
        "latency_target_ms: 90, target_ms: {features: 5, reserve: 5}}",
    )
    assert slo.layers_ms == Layers(**{**table, "model": 35.0}, **rest)
    target = {**rest, "reserve": 5.0}
    assert slo.target_ms == Layers(**{**table, "features": 5.0}, **target)
    with pytest.raises(RepositoryError, match="adds up to 101 ms of 100"):
        read(tmp_path, "{latency_objective_ms: 100, budget_ms: {candidates: 13}}")


def test_the_fraud_product_aims_higher(repository: Path) -> None:
    """The field's table for the promise, one of our own for the aim."""
    slo = read_slo(repository, product="fraud")
    assert slo.budget_ms == slo.layers_ms == Layers()
    assert slo.target_ms is not None
    assert slo.target_ms.total_ms == slo.latency_target_ms == 20.0


def test_the_page_shows_the_fraud_products(tmp_path: Path, repository: Path) -> None:
    """Its example is that file; the keys of its table are those there are."""
    page = (Path(__file__).parents[3] / "docs/budget.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert read(tmp_path, block) == read_slo(repository, product="fraud")
    keys = re.findall(
        r"^\| `(\w+)` \| .* \| .* \|$", page.partition("## Layers")[0], re.M
    )
    assert tuple(keys) == Slo.__struct_fields__


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("budget_ms: {model: 21}\n", "budget_ms: adds up to 51 ms of 50"),
        ("target_ms: {}\n", "target_ms: adds up to 50 ms of 20"),
        (
            "latency_objective: 50\n",
            "latency_objective: is no key; did you mean latency_objective_ms? there ",
        ),
        (
            "budget_ms: {queue: 1}\n",
            "budget_ms.queue: is no key; did you mean request? there are candidates, ",
        ),
        ("objective_percent: 100\n", "Expected `float` < 100"),
        ("latency_objective_ms: 0\n", "Expected `float` > 0"),
        ("model_budget_us_per_row: 0\n", "Expected `float` > 0"),
        ("a: [", "while parsing"),
        ("- 1\n", "Expected `object`"),
        ("\xff", "slo.yaml"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    """It names the file and what is wrong."""
    with pytest.raises(RepositoryError) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'shop/slo.yaml'}: ")
    assert problem in said
    assert "\n" not in said
