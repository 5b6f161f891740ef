"""A model for new features can be published before they are released together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.products.committed_product import copy_product
from tollgate.errors import RepositoryError
from tollgate.features.spec.feature_spec import load_spec
from tollgate.repository.releases.activation import activate, compose_next
from tollgate.repository.releases.release_file import read_release
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.publishing import publish
from tollgate.supervisor.version_checks import validate


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed product, with a second version of its features."""
    copy = tmp_path / "models"
    copy_product(copy)
    step = copy / "fraud_features"
    shutil.copytree(step / "1", step / "2")
    draft = step / "2" / "features.yaml"
    draft.write_text(draft.read_text().replace("default: 1", "default: 2", 1))
    return copy


def converted(repository: Path, *, spec_hash: str) -> Path:
    """Hand in the committed model as one that was trained with other features."""
    folder = repository.parent / "candidate"
    shutil.copytree(repository / "fraud_model/1", folder)
    record = folder / "artifact.json"
    told = json.loads(record.read_text()) | {"spec_hash": spec_hash}
    record.write_text(json.dumps(told))
    return folder


def released(repository: Path, **versions: int) -> str:
    """Release versions; the hash of their features."""
    made = compose_next(
        RepositorySnapshot(repository),
        product="fraud",
        versions=versions,
        actor="ada",
        reason="x",
    )
    activate(
        RepositorySnapshot(repository), made, action="activate", actor="ada", reason="x"
    )
    return read_release(repository, product="fraud").spec_hash


def test_a_model_for_features_that_wait_is_published_and_released_with_them(
    repository: Path,
) -> None:
    """Neither could come first; one without the other is refused."""
    spec = load_spec(repository / "fraud_features/2/features.yaml")
    spec_hash = f"{spec.spec_hash:016x}"
    folder = converted(repository, spec_hash=spec_hash)
    made = publish(folder, repository=repository, product="fraud", dry_load=False)
    assert made.version == 2
    assert validate(repository, product="fraud", version=2).state == "sound"
    for alone in ({"fraud_model": 2}, {"fraud_features": 2}):
        with pytest.raises(RepositoryError, match="made for another spec"):
            released(repository, **alone)
    assert released(repository, fraud_features=2, fraud_model=2) == spec_hash


def test_a_model_for_features_that_are_nowhere_is_refused(repository: Path) -> None:
    """Half a version of the features is none, and stops nobody."""
    (repository / "fraud_features/2/features.yaml").write_text("version: 1\n")
    folder = converted(repository, spec_hash="0" * 16)
    with pytest.raises(RepositoryError, match="made for another spec"):
        publish(folder, repository=repository, product="fraud", dry_load=False)
