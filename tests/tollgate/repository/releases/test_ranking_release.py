"""A release of a product that ranks: parameters of its steps, canary, archive."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from tests.support.products.small_shop import (
    release_shop,
    write_linear_model,
    write_shop,
)
from tollgate.audit.releases.archive import read_release_files
from tollgate.errors import RepositoryError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.repository.configs import add_canary, merge
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import (
    Challenger,
    Release,
    spec_hash_text,
    write_release,
)
from tollgate.repository.releases.rendering import merged_configs, ranker_hash
from tollgate.repository.releases.serving_plan import plan_serving
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.tuning.settings import Roles


@pytest.fixture
def spec(tmp_path: Path) -> FeatureSpec:
    """A small product that ranks, without a release."""
    return write_shop(tmp_path / "models")


@pytest.fixture
def shop(tmp_path: Path, spec: FeatureSpec) -> Path:
    """The same with a release."""
    release_shop(tmp_path / "models", spec)
    return tmp_path / "models"


def canary(shop: Path, spec: FeatureSpec) -> Release:
    """Add a second model, and let it answer a quarter of the users."""
    second = shop / "shop_model" / "2"
    second.mkdir()
    write_linear_model(second, spec, weights={"trend": 1.0})
    versions = {"shop_candidates": 1, "shop_model": 2, "shop_ranking": 1}
    snapshot = RepositorySnapshot(shop)
    theirs = compose_release(
        snapshot,
        product="shop",
        versions=versions,
        actor="test",
        reason="second",
        spec_hash=spec_hash_text(spec.spec_hash),
    )
    first = snapshot.release("shop")
    release = msgspec.structs.replace(
        first,
        hashes=dict(first.hashes) | dict(theirs.hashes),
        challenger=Challenger(
            release="shop-2",
            versions=versions,
            spec_hash=first.spec_hash,
            mode="canary",
            percent=25.0,
            seed=7,
            actor="test",
            reason="second",
            time=first.time,
        ),
    )
    write_release(shop, release)
    return release


def test_the_roles_are_read_from_the_tensors(shop: Path) -> None:
    """No role is guessed from a name."""
    models = read_product(shop, "shop")
    assert models.ranks
    roles = (models.features_step, models.model_step, models.decision_step)
    assert roles == ("shop_candidates", "shop_model", "shop_ranking")
    assert Roles(models).instances == {
        "features_instances": "shop_candidates",
        "model_instances": "shop_model",
        "decision_instances": "shop_ranking",
    }


def test_both_python_steps_get_their_parameters(shop: Path) -> None:
    """The first step learns who prepares lists, the last one the store's settings."""
    snapshot = RepositorySnapshot(shop)
    release = snapshot.release("shop")
    parts = plan_serving(snapshot, release, form="fused").parts
    assert parts["shop_candidates"].parameters == {
        "stock": "out_of_stock",
        "ranker": ranker_of(shop, "shop_candidates", "shop_model"),
    }
    assert parts["shop_model"].parameters is None
    assert parts["shop_ranking"].parameters == {
        "release": "shop-1",
        "expected_spec_hash": release.spec_hash,
        "feature_names": "events_1h,events_30d",
        "entity_names": "user",
        "fields": "slot=category",
        "store_deadline_ms": "20",
    }
    rendered = {one.name: one.parameters for one in merged_configs(shop, "shop")}
    for step in ("shop_candidates", "shop_ranking"):
        for name, value in (parts[step].parameters or {}).items():
            assert rendered[step][name].string_value == value


def ranker_of(shop: Path, *steps: str) -> str:
    """Hash the names and the contents of the files of version 1 of some steps."""
    digest = hashlib.blake2b(digest_size=8)
    for step in steps:
        for file in sorted((shop / step / "1").iterdir()):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{step} {file.name} {content};".encode())
    return digest.hexdigest()


def test_prepared_lists_outlive_a_policy_and_no_model(
    shop: Path, spec: FeatureSpec
) -> None:
    models = read_product(shop, "shop")
    first = ranker_hash(RepositorySnapshot(shop).release("shop"), models)
    policy = shop / "shop_ranking/1/policy.yaml"
    policy.write_text(policy.read_text() + "\n")
    assert ranker_hash(release_shop(shop, spec), models) == first
    write_linear_model(shop / "shop_model/1", spec, weights={"trend": 1.0})
    assert ranker_hash(release_shop(shop, spec), models) != first


def test_the_policys_lists_reach_the_first_step(shop: Path, spec: FeatureSpec) -> None:
    """They are read in the round trip that the step makes anyway."""
    path = shop / "shop_ranking/1/policy.yaml"
    rule = "rules:\n  - {name: tested, owner: shop, when: {testers: true}, "
    rule += "at_least: weak, code: TESTER}\n"
    rule += "lists:\n  - {name: testers, of: user_id, meaning: deny}\n"
    text = path.read_text().replace("rules: []\n", rule)
    path.write_text(text.replace("reasons:\n", "reasons:\n  TESTER: A tester.\n"))
    release = release_shop(shop, spec)
    parts = plan_serving(RepositorySnapshot(shop), release).parts
    assert (parts["shop_candidates"].parameters or {})["lists"] == (
        "testers:user_id=tollgate:shop:list:testers"
    )


def test_a_canary_is_a_second_relevance(shop: Path, spec: FeatureSpec) -> None:
    """Its model runs on the same candidates; the last step gets both answers."""
    release = canary(shop, spec)
    plan = plan_serving(RepositorySnapshot(shop), release)
    assert plan.canary is not None
    assert (plan.canary.step, plan.canary.version) == ("shop_model", 2)
    # The first step serves the challenger's users nothing that another model prepared.
    for step in ("shop_candidates", "shop_ranking"):
        assert dict(plan.parts[step].parameters or {})["challenger"] == "shop-2"
    ensemble = merge(plan.ensemble, pins=release.versions)
    add_canary(ensemble, step="shop_model", version=2)
    *_, last, second = ensemble.ensemble_scheduling.step
    assert last.input_map["challenger_relevance"] == "challenger_relevance"
    assert second.input_map == {"candidate_features": "candidate_features"}
    assert second.output_map == {"relevance": "challenger_relevance"}


def test_a_last_step_without_the_input_takes_no_canary(
    shop: Path, spec: FeatureSpec
) -> None:
    """The error names the file and the input."""
    path = shop / "shop_ranking/config.pbtxt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(one for one in lines if "challenger" not in one))
    with pytest.raises(RepositoryError, match="has no optional input challenger_rel"):
        plan_serving(RepositorySnapshot(shop), canary(shop, spec))


def test_the_archive_of_a_release_has_its_items(shop: Path) -> None:
    """Records name items by position, and the catalogue may change."""
    files = read_release_files(shop, "shop-1", product="shop")
    for name in ("catalogue.npz", "retrieval.onnx", "features.yaml"):
        assert files[name] == (shop / "shop_candidates/1" / name).read_bytes()
    for name in ("policy.yaml", "artifact.json", "release.json"):
        assert name in files
