"""The committed product that ranks is the one that tools/shop_product.py makes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import shop_product

from converters.ranking.catalogue_building import learn_items
from converters.ranking.interactions import Interactions, read_interactions
from tests.support.products.committed_product import REPOSITORY
from tollgate.features.spec.feature_spec import load_spec
from tollgate.product.interactions import ranking_texts
from tollgate.product.placement import folders_of
from tollgate.ranking.catalogue import Catalogue
from tollgate.repository.lint.product_rules import check
from tollgate.repository.releases.served_versions import load_policy_of
from tollgate.repository.snapshot import RepositorySnapshot

FIRST, LAST = REPOSITORY / "shop_candidates", REPOSITORY / "shop_ranking"
MOST_BYTES = 3_000_000


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    """Its items."""
    return Catalogue.load(FIRST / "1")


@pytest.fixture(scope="module")
def interactions(tmp_path_factory: pytest.TempPathFactory) -> Interactions:
    """The events that the tool simulates."""
    path = tmp_path_factory.mktemp("shop") / "events.parquet"
    shop_product.simulated_events().write_parquet(path)
    return read_interactions(
        path,
        user="user_id",
        item="item",
        time="event_time",
        action="action",
        category="category",
    )


def test_the_files_follow_from_features_and_catalogue(catalogue: Catalogue) -> None:
    """In every letter."""
    spec = load_spec(FIRST / "1" / "features.yaml")
    for name, text in ranking_texts(spec, catalogue).items():
        assert (REPOSITORY / name).read_text() == text, name
    assert shop_product.ORIGIN in (FIRST / "1" / "features.yaml").read_text()


def test_the_catalogue_is_learnt_from_the_simulated_events(
    catalogue: Catalogue, interactions: Interactions
) -> None:
    """Numbers up to another processor's; vectors up to their signs."""
    assert catalogue.hash == Catalogue.load(LAST / "1").hash
    assert catalogue.item_ids == interactions.item_ids
    assert catalogue.categories.tolist() == interactions.categories.tolist()
    counts = np.bincount(interactions.items)
    np.testing.assert_allclose(catalogue.popularity, counts / counts.sum(), rtol=1e-6)
    learnt = learn_items(interactions, seed=0)
    np.testing.assert_allclose(catalogue.similarities, learnt.similarities, atol=1e-5)
    np.testing.assert_allclose(
        catalogue.vectors @ catalogue.vectors.T,
        learnt.vectors @ learnt.vectors.T,
        atol=1e-3,
    )


def test_the_policy_has_the_weight_of_its_comment() -> None:
    """The last but one of the measured figures, where there are three."""
    folder = LAST / "1"
    rules = load_policy_of(folder, load_spec(FIRST / "1" / "features.yaml")).ranking
    assert rules is not None
    text = (folder / "policy.yaml").read_text()
    found = re.findall(r"# weight (\S+) +NDCG@10 (\S+), diversity (\S+)", text)
    figures = [tuple(map(float, one)) for one in found]
    plain, chosen = figures[:2]
    assert (plain[0], chosen[0]) == (0.0, rules.diversity)
    assert chosen[1] >= 0.985 * plain[1] - 1e-4
    assert chosen[2] > 1.1 * plain[2]


def test_the_product_is_valid_and_small() -> None:
    """No finding, and few bytes for those who clone the repository."""
    found = check(RepositorySnapshot(REPOSITORY), product="shop")
    assert [str(one) for one in found] == []
    size = sum(
        path.stat().st_size
        for folder in folders_of(REPOSITORY, "shop")
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    assert size < MOST_BYTES
