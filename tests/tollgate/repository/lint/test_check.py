"""The linter reads everything, reports everything, and names files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tollgate.errors import RepositoryError
from tollgate.repository.lint.product_rules import check, require_sound
from tollgate.repository.snapshot import RepositorySnapshot

ENSEMBLE = "fraud/config.pbtxt"
FEATURES = "fraud_features/config.pbtxt"
MODEL = "fraud_model/config.pbtxt"
CHECKOUT = Path(__file__).resolve().parents[4]

Edit = Callable[[str, str, str], None]
Lines = Callable[[], list[str]]


# name: (file, text, text instead, file of the finding, start of "where: problem")
BREAKS = {
    "not_protobuf": (
        MODEL,
        "max_batch_size: 32",
        "max_batch_sise: 32",
        MODEL,
        'line 7: Message type "inference.ModelConfig" has no field named '
        '"max_batch_sise"',
    ),
    "other_name": (
        MODEL,
        'name: "fraud_model"',
        'name: "fraud_modell"',
        MODEL,
        'name: is "fraud_modell" but the directory is "fraud_model"',
    ),
    "step_without_directory": (
        ENSEMBLE,
        'model_name: "fraud_decision"',
        'model_name: "fraud_policy"',
        "fraud_policy/config.pbtxt",
        "cannot be read: No such file or directory",
    ),
    "trained_with_another_spec": (
        "fraud_features/1/features.yaml",
        "lateness: 1d",
        "lateness: 2d",
        "fraud_model/1/artifact.json",
        "spec_hash: ",
    ),
    "features_in_another_order": (
        "fraud_model/1/artifact.json",
        '"during_weekend"',
        '"during_week"',
        "fraud_model/1/artifact.json",
        'features[1]: "during_week" is "during_weekend" in features.yaml',
    ),
    "release_without_a_step": (
        "fraud/release.json",
        '"fraud_decision": 1',
        '"fraud_policy": 1',
        "fraud/release.json",
        'versions: names no version of "fraud_decision"',
    ),
    "release_of_another_product": (
        "fraud/release.json",
        '"product": "fraud"',
        '"product": "credit"',
        "fraud/release.json",
        'product: is "credit" but the ensemble is "fraud"',
    ),
    "labels": (
        "fraud_decision/1/policy.yaml",
        "labels: [",
        "labels: [unknown, ",
        "fraud_decision/1/policy.yaml",
        "labels: 3 for a model with probabilities [2]",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_file_that_does_not_fit_is_named(
    repository: Path, lines: Lines, edit: Edit, name: str
) -> None:
    """Each broken file gives a one-line finding with its place."""
    file, old, new, found_in, start = BREAKS[name]
    edit(file, old, new)
    found = lines()
    assert any(line.startswith(f"{repository / found_in}: {start}") for line in found)
    assert all("\n" not in line for line in found)


def test_the_committed_repository_is_sound() -> None:
    """What is in the checkout has no finding."""
    assert (
        check(RepositorySnapshot(CHECKOUT / "model_repository"), product="fraud") == []
    )


def test_first_finding_is_the_wire_that_is_cut(repository: Path, edit: Edit) -> None:
    """`require_sound` raises the first finding as it stands, facts kept apart."""
    edit(
        ENSEMBLE, 'key: "features"      value: "features"', 'key: "features" value: "x"'
    )
    first = check(RepositorySnapshot(repository), product="fraud")[0]
    with pytest.raises(RepositoryError) as raised:
        require_sound(RepositorySnapshot(repository), product="fraud")
    assert str(raised.value) == str(first)
    assert raised.value.source == str(repository / ENSEMBLE)
    assert raised.value.where == "fraud_model: input_map features"


def test_ensemble_without_version_is_found(repository: Path) -> None:
    """Git does not keep an empty directory; Triton needs it."""
    for path in (repository / "fraud/1").iterdir():
        path.unlink()
    (repository / "fraud/1").rmdir()
    (finding,) = check(RepositorySnapshot(repository), product="fraud")
    assert str(finding).startswith(f"{repository}/fraud: has no version")


def test_release_with_a_missing_version_is_found(repository: Path, edit: Edit) -> None:
    """The release is to blame, not the newest version that is there."""
    edit("fraud/release.json", '"fraud_model": 1', '"fraud_model": 9')
    (finding,) = check(RepositorySnapshot(repository), product="fraud")
    assert str(finding) == (
        f"{repository}/fraud/release.json: fraud_model: version 9 is not in the "
        "repository"
    )


def test_release_for_another_spec_is_found(repository: Path) -> None:
    """A release whose spec hash is not that of its features.yaml decides nothing."""
    path = repository / "fraud/release.json"
    release = json.loads(path.read_text())
    actual = release["spec_hash"]
    path.write_text(json.dumps(release | {"spec_hash": "0" * 16}))
    (finding,) = check(RepositorySnapshot(repository), product="fraud")
    assert str(finding) == (
        f"{path}: spec_hash: 0000000000000000 is not features.yaml's {actual}: made "
        "for another spec"
    )


def test_every_finding_is_reported_at_once(repository: Path, edit: Edit) -> None:
    """Three mistakes in three files are three findings."""
    edit(FEATURES, "max_batch_size: 32", "max_batch_size: 16")
    edit(MODEL, "max_batch_size: 32", "max_batch_size: 8")
    (repository / "fraud/release.json").unlink()
    assert [
        Path(finding.file).name
        for finding in check(RepositorySnapshot(repository), product="fraud")
    ] == [
        "config.pbtxt",
        "config.pbtxt",
        "release.json",
    ]
