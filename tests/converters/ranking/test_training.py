"""Retrieval, splits and measures equal plain definitions; training beats chance."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from converters.ranking.catalogue_building import (
    RetrievalSettings,
    build_catalogue,
    ease_factors,
    learn_items,
)
from converters.ranking.interactions import Interactions, read_interactions
from converters.ranking.metrics import ndcg_of, recall_of
from converters.ranking.retrieval import ease_weights, retrieval_graph
from converters.ranking.splits import newest_fifth, queries_of
from converters.ranking.training import score_queries, train_shop
from tollgate.engine.onnx_session import OnnxSession
from tollgate.errors import InputError
from tollgate.ranking.catalogue import EVERYONE, Catalogue
from tollgate.schema import hash_words

USERS, ITEMS, GROUPS = 80, 60, 4


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users who mostly meet items of one of four groups, in a random order of rows."""
    rng = np.random.default_rng(5)
    rows = []
    for user in range(USERS):
        group = user % GROUPS
        near = [one for one in range(ITEMS) if one % GROUPS == group]
        others = [one for one in range(ITEMS) if one % GROUPS != group]
        chosen = [*rng.permutation(near)[:12], *rng.permutation(others)[:3]]
        for step, item in enumerate(rng.permutation(chosen)):
            rows.append((f"u{user}", f"i{item}", 1_700_000_000 + user + step * 3600))
    frame = pl.DataFrame(rows, schema=["user", "item", "at"], orient="row")
    path = tmp_path_factory.mktemp("shop") / "interactions.parquet"
    frame.sample(fraction=1.0, shuffle=True, seed=3).write_parquet(path)
    return path


@pytest.fixture(scope="module")
def interactions(table: Path) -> Interactions:
    return read_interactions(table, user="user", item="item", time="at")


def test_the_newest_fifth_of_each_user_is_held_out(
    table: Path, interactions: Interactions
) -> None:
    split = newest_fifth(interactions)
    queries = queries_of(split, repeats=False)
    by_user = pl.read_parquet(table).sort("at").group_by("user", maintain_order=True)
    held = {name: group["item"].to_list()[-3:] for (name,), group in by_user}
    for user, relevant in zip(queries.users, queries.relevant, strict=True):
        names = {interactions.item_ids[one].decode() for one in relevant}
        assert names == set(held[interactions.user_ids[user]])
    assert len(queries.users) == USERS


def test_the_measures_are_those_of_plain_python() -> None:
    lists = np.array([[3, 1, 2, 9], [5, 6, 7, -1]], np.int32)
    relevant = [np.array([1, 9], np.int32), np.array([8], np.int32)]
    found = ndcg_of(lists, relevant, shown=4)
    best = 1 + 1 / math.log2(3)
    assert found[0] == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / best)
    assert found[1] == 0.0
    assert recall_of(lists, relevant, deep=2).tolist() == [0.5, 0.0]


def test_ease_is_its_closed_form() -> None:
    rng = np.random.default_rng(2)
    matrix = (rng.random((40, 12)) < 0.3).astype(np.float64)
    gram = matrix.T @ matrix
    inverse = np.linalg.inv(gram + 7.0 * np.eye(12))
    wanted = np.empty((12, 12))
    for row in range(12):
        for column in range(12):
            wanted[row, column] = -inverse[row, column] / inverse[column, column]
    np.fill_diagonal(wanted, 0.0)
    found = ease_weights(gram.astype(np.float32), ridge=7.0)
    assert found == pytest.approx(wanted, abs=1e-5)


def test_the_graph_returns_the_best_items_that_have_no_penalty() -> None:
    rng = np.random.default_rng(4)
    factors = rng.normal(size=(6, 300)).astype(np.float32)
    session = OnnxSession(retrieval_graph(factors), intra_op_threads=1)
    user = rng.normal(size=(1, 6)).astype(np.float32)
    penalty = np.zeros((1, 300), np.float32)
    penalty[0, ::3] = -np.inf
    index, score, scores = session.run(
        ["index", "score", "scores"], {"user": user, "penalty": penalty}
    )
    wanted = user.astype(np.float64) @ factors
    assert scores == pytest.approx(wanted, abs=1e-5)
    allowed = [one for one in range(300) if one % 3]
    best = sorted(allowed, key=lambda one: -wanted[0, one])
    assert index[0][: len(best)].tolist() == best[:200]
    assert score[0][0] == scores[0][best[0]]


def test_a_trained_shop_finds_the_items_of_a_users_group(
    interactions: Interactions, tmp_path: Path
) -> None:
    split = newest_fifth(interactions)
    shop = train_shop(split.before, seed=1)
    shop.save(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {
        "catalogue.npz",
        "retrieval.onnx",
    }
    diversity = shop.choice.diversity
    assert diversity.chosen.ndcg >= 0.98 * diversity.tried[0].ndcg > 0
    queries = queries_of(split, repeats=shop.choice.repeats)
    scored = score_queries(
        shop.catalogue,
        OnnxSession(shop.retrieval, intra_op_threads=1),
        split.before,
        queries,
        history=shop.choice.history,
        repeats=shop.choice.repeats,
    )
    lists = scored.ranked(shop.ranker)
    ours = ndcg_of(lists, queries.relevant).mean()
    counts = np.bincount(split.before.items, minlength=ITEMS)
    popular = []
    for seen in queries.seen:
        left = [one for one in np.argsort(-counts, kind="stable") if one not in seen]
        popular.append(left[:10])
    assert ours > 1.5 * ndcg_of(np.array(popular, np.int32), queries.relevant).mean()


def test_each_segment_has_its_popular_items_first(table: Path, tmp_path: Path) -> None:
    """In the order that plain counts give; the catalogue names the request's field."""
    frame = pl.read_parquet(table)
    country = [
        None if int(user[1:]) % 5 == 0 else ("no", "se")[int(user[1:]) % 2]
        for user in frame["user"].to_list()
    ]
    path = tmp_path / "table.parquet"
    frame.with_columns(pl.Series("country", country)).write_parquet(path)
    read = read_interactions(
        path, user="user", item="item", time="at", segment="country"
    )
    catalogue = build_catalogue(
        learn_items(read, seed=0),
        ease_factors(learn_items(read, seed=0), ridge=1.0, size=8, seed=0),
        RetrievalSettings(ridge=1.0, size=8, half_life=math.inf),
    )
    assert catalogue.segments == [EVERYONE, "no", "se"]
    assert catalogue.segment_field == "country"
    catalogue.save(tmp_path)
    assert Catalogue.load(tmp_path).hash == catalogue.hash
    every = Counter(frame["item"].to_list())
    for place, word in enumerate([None, "no", "se"]):
        own = Counter(
            item
            for item, one in zip(frame["item"].to_list(), country, strict=True)
            if word in (None, one)
        )
        wanted = sorted(every, key=lambda one: (-own[one], -every[one], one))
        found = [catalogue.item_ids[at].decode() for at in catalogue.popular[place]]
        assert found == wanted
    words = hash_words([b"se", b"", b"no", b"dk", b"everyone"])
    segments = catalogue.segments_of({"country": words}, rows=5)
    assert segments.tolist() == [2, 0, 1, 0, 0]
    assert catalogue.segments_of({}, rows=2).tolist() == [0, 0]


def test_bad_tables_are_refused_in_words(table: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="who: column missing; the file has"):
        read_interactions(table, user="who", item="item", time="at")
    with pytest.raises(InputError, match="item: is named for two of user, item, time"):
        read_interactions(table, user="user", item="item", time="item")
    frame = pl.read_parquet(table)
    path = tmp_path / "bad.parquet"
    frame.with_columns(item=pl.lit("a|b")).write_parquet(path)
    with pytest.raises(InputError, match=r"item.*\|"):
        read_interactions(path, user="user", item="item", time="at")
    frame.head(1).write_parquet(path)
    with pytest.raises(InputError, match="has 1 rows"):
        read_interactions(path, user="user", item="item", time="at")
