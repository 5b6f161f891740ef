"""A product that ranks is checked end to end, and each of its rules has a case."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.products.small_shop import (
    RANKING,
    linear_ranker_onnx,
    release_shop,
    small_catalogue,
    write_shop,
)
from tollgate.features.spec.feature_spec import load_spec
from tollgate.ranking.candidates import FEATURE_NAMES
from tollgate.repository.lint.linting import Question, lint
from tollgate.repository.lint.product_rules import check
from tollgate.repository.models.artifact_file import read_artifact
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import ARTIFACT_FILE

ENSEMBLE = "shop/config.pbtxt"
FIRST = "shop_candidates/config.pbtxt"
MODEL = "shop_model/config.pbtxt"
LAST = "shop_ranking/config.pbtxt"
POLICY = "shop_ranking/1/policy.yaml"
WIDE = f"dims: [ 200, {len(FEATURE_NAMES)} ]"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A small product that ranks, without a release."""
    repository = tmp_path / "models"
    write_shop(repository)
    return repository


def problems(shop: Path, *edits: tuple[str, str, str]) -> list[str]:
    """Replace texts in files, release what is there, and list what is found."""
    for file, old, new in edits:
        text = (shop / file).read_text()
        assert old in text, f"{file} has no {old!r}"
        (shop / file).write_text(text.replace(old, new))
    release_shop(shop, load_spec(shop / "shop_candidates/1/features.yaml"))
    found = check(RepositorySnapshot(shop), product="shop")
    return [
        f"{one.code} {Path(one.file).relative_to(shop)}: {one.where}: {one.problem}"
        for one in found
    ]


def test_a_complete_product_has_no_finding(shop: Path) -> None:
    """Neither its own check nor the linter of a repository objects to anything."""
    assert problems(shop) == []
    report = lint(Question(repository=shop, cores=2))
    assert report.products == ("shop",)
    assert {one.rule.code for one in report.issues} == {"TG205"}


def test_an_ensemble_is_found_as_a_product_without_a_release(shop: Path) -> None:
    """It answers with items and the name of a release."""
    assert lint(Question(repository=shop, cores=2)).products == ("shop",)


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        (
            [
                (
                    ENSEMBLE,
                    '"items" data_type: TYPE_STRING dims: [ -1 ]',
                    '"items" data_type: TYPE_STRING dims: [ 10 ]',
                ),
                (
                    LAST,
                    '"items" data_type: TYPE_STRING dims: [ -1 ]',
                    '"items" data_type: TYPE_STRING dims: [ 10 ]',
                ),
            ],
            [
                "TG120 shop/config.pbtxt: output items: TYPE_STRING [10] (ensemble "
                "output) must be TYPE_STRING [-1]"
            ],
        ),
        (
            [
                (
                    ENSEMBLE,
                    'output { name: "source" data_type: TYPE_STRING dims: [ -1 ] }',
                    "",
                )
            ],
            [
                "TG120 shop/config.pbtxt: output source: is part of the answer and is "
                "missing"
            ],
        ),
        (
            [(ENSEMBLE, '"request_id"', '"event_id"')],
            [
                "TG325 shop/config.pbtxt: shop_candidates: input_map transaction_id: "
                "is event_id, must be request_id: clients send that"
            ],
        ),
        (
            [
                (
                    FIRST,
                    'output { name: "ranking_context"',
                    'output { name: "other_context"',
                )
            ],
            [
                "TG102 shop/config.pbtxt: shop_candidates: output_map ranking_context: "
                "shop_candidates has no such output",
                "TG103 shop/config.pbtxt: shop_ranking: input_map ranking_context: "
                "ranking_context is neither an ensemble input nor an output of an "
                "earlier step",
                "TG325 shop_candidates/config.pbtxt: output ranking_context: is "
                "missing: a product that ranks has TYPE_UINT8 [a number]",
            ],
        ),
        (
            [
                (
                    FIRST,
                    'name: "exclude" data_type: TYPE_STRING dims: [ 1 ]',
                    'name: "exclude" data_type: TYPE_STRING dims: [ 2 ]',
                ),
                (
                    ENSEMBLE,
                    'name: "exclude" data_type: TYPE_STRING dims: [ 1 ]',
                    'name: "exclude" data_type: TYPE_STRING dims: [ 2 ]',
                ),
            ],
            [
                "TG325 shop_candidates/config.pbtxt: input exclude: TYPE_STRING [2] "
                "(config.pbtxt) must be TYPE_STRING [1], optional"
            ],
        ),
        (
            [(POLICY, RANKING, "")],
            [
                "TG327 shop_ranking/1/policy.yaml: ranking: is missing: shop answers "
                "with items"
            ],
        ),
    ],
)
def test_what_does_not_fit_is_named(
    shop: Path, edits: list[tuple[str, str, str]], expected: list[str]
) -> None:
    """One change, and exactly the findings that follow from it."""
    assert problems(shop, *edits) == expected


def test_steps_with_other_numbers_of_candidates_are_found(shop: Path) -> None:
    """The wire has two lengths, and 200 is what the library fills."""
    edit = (MODEL, WIDE, f"dims: [ 100, {len(FEATURE_NAMES)} ]")
    found = problems(shop, edit, (MODEL, "dims: [ 200 ]", "dims: [ 100 ]"))
    assert [one.split(":")[0] for one in found] == [
        "TG104 shop/config.pbtxt",
        "TG104 shop/config.pbtxt",
        "TG325 shop_model/config.pbtxt",
        "TG325 shop_model/config.pbtxt",
        "TG313 shop_model/1/model.onnx",
        "TG313 shop_model/1/model.onnx",
    ]


def test_a_feature_that_the_catalogue_lacks_is_found(shop: Path) -> None:
    """Configurations and model agree with each other, and not with the catalogue."""
    count = len(FEATURE_NAMES)
    edits = [(file, WIDE, f"dims: [ 200, {count + 1} ]") for file in (FIRST, MODEL)]
    names = (*FEATURE_NAMES, "price")
    model = shop / "shop_model/1/model.onnx"
    model.write_bytes(linear_ranker_onnx({}, names))
    record = read_artifact(model.parent)
    (model.parent / ARTIFACT_FILE).write_bytes(
        msgspec.json.encode(msgspec.structs.replace(record, features=names))
    )
    found = problems(shop, *edits)
    shape = f"TYPE_FP32 [200, {count + 1}] (config.pbtxt) must be TYPE_FP32 [200, "
    assert found[:2] == [
        f"TG325 {file}: {side} candidate_features: {shape}{count}], by the catalogue "
        "of the product"
        for file, side in ((FIRST, "output"), (MODEL, "input"))
    ]
    assert found[-1] == (
        f"TG312 shop_model/1/artifact.json: features: {count + 1} names, catalogue.npz "
        f"has {count}"
    )


@pytest.mark.parametrize(
    "file",
    [
        "shop_candidates/1/catalogue.npz",
        "shop_candidates/1/retrieval.onnx",
        "shop_ranking/1/catalogue.npz",
    ],
)
def test_a_missing_file_of_the_catalogue_is_found(shop: Path, file: str) -> None:
    """Both Python steps read items by their position."""
    (shop / file).unlink()
    assert problems(shop) == [
        f"TG326 {file}: : is missing: the items of the product, or their retrieval"
    ]


def test_two_catalogues_are_found(shop: Path) -> None:
    """A position would mean one item to the first step and another to the last."""
    other = small_catalogue()
    other.item_ids.reverse()
    other.save(shop / "shop_ranking/1")
    (found,) = problems(shop)
    assert found.startswith("TG326 shop_ranking/1/catalogue.npz: : is not ")
    assert found.endswith("the two steps would mean other items")


def test_segments_that_no_request_can_name_are_found(shop: Path) -> None:
    """Their field must be a category of a request, not of an event."""
    for folder in ("shop_candidates", "shop_ranking"):
        catalogue = msgspec.structs.replace(small_catalogue(), segment_field="item")
        catalogue.save(shop / folder / "1")
    (found,) = problems(shop)
    assert found == (
        "TG326 shop_candidates/1/catalogue.npz: : has segments by item, which is no "
        "category that requests have"
    )


def test_a_damaged_catalogue_is_one_line(shop: Path) -> None:
    """The file is named, and not what follows from it."""
    for step in ("shop_candidates", "shop_ranking"):
        np.savez(shop / step / "1/catalogue.npz", format=np.asarray(9))
    assert problems(shop) == [
        "TG326 shop_candidates/1/catalogue.npz: : has format 9; this version reads 1"
    ]


def test_a_policy_with_a_ranking_does_not_fit_a_decision(repository: Path) -> None:
    """A product that decides has no list of items."""
    path = repository / "fraud_decision/1/policy.yaml"
    path.write_text(path.read_text() + "\nranking: {items: 4}\n")
    found = check(RepositorySnapshot(repository), product="fraud")
    assert [(one.code, one.where) for one in found] == [
        ("TG327", "ranking"),
        ("TG310", "hashes: fraud_decision/1/policy.yaml"),
    ]
