"""A product that ranks: made from a table of events, served, judged by plain Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from converters.ranking.diversity import MOST_LOST
from tollgate.errors import InputError, RepositoryError
from tollgate.features.spec.feature_spec import load_spec
from tollgate.history import read_history
from tollgate.product.interactions import (
    CreatedRanking,
    InteractionChoices,
    create_interactions,
    publish_ranking,
    read_events,
)
from tollgate.product.placement import folders_of
from tollgate.ranking.catalogue import Catalogue
from tollgate.repository.lint.product_rules import check
from tollgate.repository.releases.served_versions import load_policy_of
from tollgate.repository.slo import read_slo
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import list_versions
from tollgate.schema import hash_words
from tollgate.simulate.shop import simulate_shop

PRODUCT = "corner"


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    """Sixty users of a shop, as a table with other names."""
    shop = simulate_shop(users=60, items=80, weeks=4, views_per_user=25, seed=3)
    items = shop.items.select("item", kind="category")
    joined = shop.events.join(items, on="item", maintain_order="left")
    return joined.select(
        who="user_id", sku="item", at="event_time", did="action", kind="kind"
    )


@pytest.fixture(scope="module")
def choices(
    events: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> InteractionChoices:
    """Name the columns of the table."""
    path = tmp_path_factory.mktemp("events") / "events.parquet"
    events.write_parquet(path)
    return InteractionChoices(
        product=PRODUCT,
        table=path,
        user="who",
        item="sku",
        time="at",
        action="did",
        category="kind",
    )


def test_events_without_actions_are_views(choices: InteractionChoices) -> None:
    """So the store has the same events as the table."""
    plain = read_events(msgspec.structs.replace(choices, action=None, category=None))
    assert set(plain.actions.tolist()) == {0}
    assert plain.category_names == []
    whole = read_events(choices)
    assert set(whole.actions.tolist()) == {0, 1, 2}
    assert len(whole.category_names) > 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user": "customer"}, "customer: column missing; the file has who, sku"),
        ({"time": "kind"}, "kind"),
        ({"action": "kind"}, "kind"),
        ({"id": "number"}, "number: column missing"),
    ],
)
def test_an_unusable_table_is_refused(
    choices: InteractionChoices, change: dict[str, str], words: str, tmp_path: Path
) -> None:
    """With the column, and nothing is written."""
    with pytest.raises(InputError, match=words):
        create_interactions(
            msgspec.structs.replace(choices, **change),
            repository=tmp_path,
            report=lambda step, text: None,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda table: table.with_columns(who=pl.lit("u1")), "1 users have 5 events"),
        (lambda table: table.with_columns(at=table["at"][0]), "have the same time"),
        (lambda table: table.with_columns(sku=pl.lit("i1")), "has one item"),
        (lambda table: table.with_columns(item="sku"), "item: would be read in place"),
        (lambda table: table[:5], "has 5 rows"),
    ],
)
def test_a_table_to_learn_nothing_from_is_refused(
    choices: InteractionChoices,
    events: pl.DataFrame,
    make: object,
    words: str,
    tmp_path: Path,
) -> None:
    """In one line with the reason."""
    assert callable(make)
    table = tmp_path / "odd.parquet"
    make(events).write_parquet(table)
    repository = tmp_path / "models"
    repository.mkdir()
    with pytest.raises(InputError, match=words) as caught:
        create_interactions(
            msgspec.structs.replace(choices, table=table),
            repository=repository,
            report=lambda step, text: None,
        )
    assert "\n" not in str(caught.value)
    assert list(repository.iterdir()) == []


@pytest.fixture(scope="module")
def created(
    choices: InteractionChoices, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, CreatedRanking, list[str]]:
    """Create the product: this trains, converts, serves and compares lists."""
    repository = tmp_path_factory.mktemp("created") / "models"
    repository.mkdir()
    lines: list[str] = []
    made = create_interactions(
        choices,
        repository=repository,
        report=lambda step, text: lines.append(f"{step}: {text}"),
    )
    return repository, made, lines


pytestmark = pytest.mark.slow


def test_served_lists_are_those_of_the_table(
    created: tuple[Path, CreatedRanking, list[str]],
) -> None:
    """The trial compared lists and scores; a difference would have raised."""
    _, made, lines = created
    assert made.trial.lists > 40
    assert made.trial.largest_difference < 1e-5
    assert any(line.startswith("served and ranked") for line in lines)


def test_the_product_is_valid_and_ranks_better_than_popular_items(
    created: tuple[Path, CreatedRanking, list[str]],
) -> None:
    """Its four folders, without a finding; its weight loses at most what it may."""
    repository, made, _ = created
    assert sorted(folders_of(repository, PRODUCT)) == sorted(
        path.name for path in repository.iterdir()
    )
    found = check(RepositorySnapshot(repository), product=PRODUCT)
    assert [str(one) for one in found] == []
    diversity = made.trained.choice.diversity
    plain, chosen = diversity.tried[0], diversity.chosen
    assert chosen.ndcg >= (1 - MOST_LOST) * plain.ndcg
    assert made.ndcg > made.popular_ndcg
    assert read_slo(repository, product=PRODUCT).latency_objective_ms == 100


def test_the_policy_has_the_measured_weight(
    created: tuple[Path, CreatedRanking, list[str]],
) -> None:
    """And the figures of it in a comment."""
    repository, made, _ = created
    spec = load_spec(repository / "corner_candidates" / "1" / "features.yaml")
    folder = repository / "corner_ranking" / "1"
    rules = load_policy_of(folder, spec).ranking
    assert rules is not None
    chosen = made.trained.choice.diversity.chosen
    assert rules.diversity == chosen.weight
    assert (rules.items, rules.stock, rules.exploration) == (10, "out_of_stock", None)
    text = (folder / "policy.yaml").read_text()
    line = f"weight {chosen.weight:<4g}  NDCG@10 {chosen.ndcg:.4f}"
    assert line in text
    assert max(len(line) for line in text.splitlines()) <= 92


def test_the_catalogue_is_of_the_whole_table(
    created: tuple[Path, CreatedRanking, list[str]], events: pl.DataFrame
) -> None:
    """Items, categories and shares as polars counts them; both steps have the same."""
    repository, _, _ = created
    catalogue = Catalogue.load(repository / "corner_candidates" / "1")
    assert catalogue.hash == Catalogue.load(repository / "corner_ranking" / "1").hash
    counts = events.group_by("sku").agg(pl.len(), pl.col("kind").first()).sort("sku")
    assert [one.decode() for one in catalogue.item_ids] == counts["sku"].to_list()
    names = [catalogue.category_names[one] for one in catalogue.categories]
    assert names == counts["kind"].to_list()
    share = counts["len"].to_numpy() / len(events)
    np.testing.assert_allclose(catalogue.popularity, share, rtol=1e-6)


def test_the_table_is_a_history_of_the_product(
    created: tuple[Path, CreatedRanking, list[str]],
    choices: InteractionChoices,
    events: pl.DataFrame,
) -> None:
    """`materialize` loads it: by the names of its columns, with ids it has not."""
    repository, _, _ = created
    spec = load_spec(repository / "corner_candidates" / "1" / "features.yaml")
    history = read_history(choices.table, spec=spec)
    assert len(set(history.transaction_id)) == len(events)
    for name, column in (("item", "sku"), ("action", "did")):
        words = hash_words([one.encode() for one in events[column]])
        assert history.fields[name].tolist() == words.tolist()


def test_a_name_in_use_is_refused_before_the_work(
    created: tuple[Path, CreatedRanking, list[str]], choices: InteractionChoices
) -> None:
    """Even one whose ensemble is gone."""
    repository, _, _ = created
    with pytest.raises(RepositoryError, match="there already"):
        create_interactions(
            choices, repository=repository, report=lambda step, text: pytest.fail(step)
        )


def test_newer_parts_are_published_for_every_step(
    created: tuple[Path, CreatedRanking, list[str]], choices: InteractionChoices
) -> None:
    """As train.py does; the release stays, and the new versions fit together."""
    repository, made, _ = created
    versions = publish_ranking(
        made.trained, read_events(choices), repository=repository, product=PRODUCT
    )
    assert versions == {
        "corner_model": 2,
        "corner_candidates": 2,
        "corner_ranking": 2,
    }
    script = (repository / PRODUCT / "train.py").read_text()
    compile(script, "train.py", "exec")
    for step in ("corner_candidates", "corner_ranking"):
        old, new = (repository / step / str(one) for one in (1, 2))
        assert sorted(path.name for path in old.iterdir()) == sorted(
            path.name for path in new.iterdir()
        )
    assert list_versions(repository, "corner_model") == [1, 2]


def test_the_script_for_requests_is_python(
    created: tuple[Path, CreatedRanking, list[str]],
) -> None:
    """Without a server it prints the popular items of the table, which it holds."""
    repository, made, _ = created
    done = subprocess.run(
        [sys.executable, repository / PRODUCT / "ask.py", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=True,
    )
    shown = re.findall(r"^(\S+) .* client$", done.stdout, re.MULTILINE)
    catalogue = made.trained.catalogue
    popular = [catalogue.item_ids[one].decode() for one in catalogue.popular[0][:10]]
    assert shown == popular
