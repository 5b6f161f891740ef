"""A declared field is an optional input of the step and of the ensemble, wired."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tollgate.repository.lint.product_rules import field_findings
from tollgate.repository.product_models import read_product

Edit = Callable[[str, str, str], None]

ENSEMBLE = "fraud/config.pbtxt"
FEATURES = "fraud_features/config.pbtxt"
SPEC = "fraud_features/1/features.yaml"
INPUT = '  { name: "items" data_type: TYPE_FP64 dims: [ 1 ] optional: true },\n'
AMOUNT = '  { name: "amount" '
MAPPED = '      input_map { key: "items" value: "items" }\n'
OUTPUT = '      output_map { key: "features" value: "features" }\n'


@pytest.fixture
def declared(edit: Edit) -> None:
    """The product with a declared field, as it must be."""
    fields = "fields: [{name: items, type: number}]\n\nentities:\n"
    feature = "features:\n  - {name: items, field: items}\n"
    edit(SPEC, "entities:\n", fields)
    edit(SPEC, "features:\n", feature)
    for file in (ENSEMBLE, FEATURES):
        edit(file, AMOUNT, f"{INPUT}{AMOUNT}")
    edit(ENSEMBLE, OUTPUT, f"{MAPPED}{OUTPUT}")


def of_fields(repository: Path) -> list[str]:
    """Print what is found of declared fields alone."""
    from tollgate.features.spec.feature_spec import load_spec

    product = read_product(repository, "fraud")
    fields = load_spec(repository / SPEC).fields
    found = field_findings(product, step=product.features_step, fields=fields)
    return [
        f"{Path(one.file).parent.name}: {one.where}: {one.problem}" for one in found
    ]


@pytest.mark.usefixtures("declared")
def test_field_that_is_wired_is_sound(
    repository: Path, lines: Callable[[], list[str]]
) -> None:
    """No finding names it; that the model has a feature too few is another's."""
    assert of_fields(repository) == []
    assert not any("input" in line for line in lines())


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("file", "old", "new", "wanted"),
    [
        (FEATURES, INPUT, "", ["fraud_features: input items: is missing: features.ya"]),
        (ENSEMBLE, INPUT, "", ["fraud: input items: is missing: features.yaml decl"]),
        (
            FEATURES,
            "optional: true",
            "optional: false",
            ["fraud_features: input items: must be optional: features.yaml decl"],
        ),
        (ENSEMBLE, "optional: true", "", ["fraud: input items: must be optional"]),
        (
            FEATURES,
            '"items" data_type: TYPE_FP64',
            '"items" data_type: TYPE_INT64',
            ["fraud_features: input items: TYPE_INT64 [1] (config.pbtxt) must be "],
        ),
        (
            ENSEMBLE,
            MAPPED,
            "",
            ["fraud: fraud_features: input_map: input items, which features.yaml decl"],
        ),
    ],
)
def test_field_that_is_not_wired_is_found(
    repository: Path,
    edit: Edit,
    lines: Callable[[], list[str]],
    file: str,
    old: str,
    new: str,
    wanted: list[str],
) -> None:
    """By file and tensor; `tollgate check` says it too."""
    edit(file, old, new)
    found = of_fields(repository)
    assert len(found) == len(wanted)
    for line, words in zip(found, wanted, strict=True):
        assert line.startswith(words)
    assert any(found[0].partition(": ")[2] in line for line in lines())
