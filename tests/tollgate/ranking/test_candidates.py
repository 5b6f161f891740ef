"""Candidates and their features equal plain Python, alone and in any batch."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from converters.ranking.retrieval import retrieval_graph
from tests.support.products.small_shop import small_catalogue
from tollgate.engine.onnx_session import OnnxSession
from tollgate.ranking.candidates import (
    CANDIDATES,
    FEATURE_NAMES,
    Events,
    candidate_features,
    events_of,
    retrieve,
)
from tollgate.ranking.history import UserHistory
from tollgate.schema import MISSING, SOURCES, hash_words

CATALOGUE = small_catalogue()
ALL = np.ones(CATALOGUE.size, np.bool_)
NOTHING = np.zeros(0, np.int32)


def session() -> OnnxSession:
    graph = retrieval_graph(np.ascontiguousarray(CATALOGUE.factors.T))
    return OnnxSession(graph, intra_op_threads=1)


def events(*rows: list[tuple[int, int, float]]) -> Events:
    """Make histories of (item, action, age), padded to four events."""
    padded = [[*row, *[(-1, -1, 0.0)] * (4 - len(row))] for row in rows]
    return Events(
        items=np.array([[one[0] for one in row] for row in padded], np.int32),
        actions=np.array([[one[1] for one in row] for row in padded], np.int8),
        age_s=np.array([[one[2] for one in row] for row in padded]),
    )


def test_histories_become_items_of_the_catalogue() -> None:
    history = UserHistory(
        time_us=np.array([[90, 50, 0]]) * 1_000_000,
        columns={
            "item": np.array([[*hash_words([b"i4", b"gone"]), MISSING]]),
            "action": np.array([[*hash_words([b"purchase", b"view"]), MISSING]]),
        },
        count=np.array([2]),
        known=np.array([True]),
        prepared=np.array([None], np.object_),
    )
    found = events_of(CATALOGUE, history, np.array([100_000_000]))
    assert found.items.tolist() == [[4, -1, -1]]
    assert found.actions.tolist() == [[2, 0, -1]]
    assert found.age_s.tolist() == [[10.0, 50.0, 0.0]]


def test_candidates_are_the_best_products_and_the_nearest_items() -> None:
    available = ALL.copy()
    available[1] = False
    found = retrieve(
        CATALOGUE,
        session(),
        events([(0, 0, 5.0), (3, 2, 9.0)]),
        available=available,
        skip=[np.array([4], np.int32)],
    )
    # Weights 1 for the view of the newest item, and 3 for the purchase of the next,
    # halved for every ten newer items; the squares of both add up to 1.
    weights = np.array([1.0, 3.0 * 0.5**0.1])
    user = (weights / math.hypot(*weights)) @ CATALOGUE.factors[[0, 3]].astype(float)
    scores = CATALOGUE.factors.astype(float) @ user
    allowed = sorted([0, 2, 3, 5], key=lambda one: -scores[one])
    assert found.items[0].tolist() == allowed + [-1] * (CANDIDATES - 4)
    assert np.allclose(found.scores[0, :4], scores[allowed], atol=1e-6)
    # Neighbours of 0 are 1 and 2, those of 3 are 4 and 5; 1 and 4 may not come.
    words = [SOURCES[one] for one in found.sources[0, :4].tolist()]
    near = {
        item for item, word in zip(allowed, words, strict=True) if word == "similar"
    }
    assert near == {2, 5}


def test_features_are_those_of_plain_python() -> None:
    given = events([(0, 0, 7_200.0), (3, 2, 10_800.0), (0, 1, 14_400.0)])
    found = retrieve(CATALOGUE, session(), given, available=ALL, skip=[NOTHING])
    features = candidate_features(CATALOGUE, given, found)[0]
    by_item = {
        int(item): dict(zip(FEATURE_NAMES, row.tolist(), strict=True))
        for item, row in zip(found.items[0], features, strict=True)
        if item >= 0
    }
    assert set(by_item) == set(range(6))
    first, third = by_item[0], by_item[3]
    assert (first["seen"], first["carted"], first["purchased"]) == (2, 1, 0)
    assert (third["seen"], third["carted"], third["purchased"]) == (1, 0, 1)
    assert (first["seen_age_h"], third["seen_age_h"]) == (2.0, 3.0)
    assert by_item[5]["seen_age_h"] == -1.0
    # Two distinct items: each of their two neighbours has similarity 0.5.
    assert by_item[1]["similar_history"] == 0.25
    assert by_item[1]["similar_last"] == 0.5
    assert by_item[4]["similar_last"] == 0.0
    assert by_item[2]["category_share"] == 0.5  # books: 0, 2, 4; the history has one
    share = [(6 - one) / 21 for one in range(6)]
    logs = [math.log(one + 0.1 / 6) for one in share]
    assert math.isclose(by_item[5]["popularity"], logs[5], rel_tol=1e-6)
    gap = logs[5] - (logs[0] + logs[3]) / 2
    assert math.isclose(by_item[5]["popularity_gap"], gap, rel_tol=1e-5)
    assert all(one["history_items"] == 2 for one in by_item.values())
    assert not features[6:].any()


def test_neighbours_and_followers_count_by_their_place_in_the_history() -> None:
    """Six distinct items with random lists; the newest five are recent."""
    rng = np.random.default_rng(3)
    near = rng.integers(-1, 6, (2, 6, 3)).astype(np.int32)
    strength = rng.random((2, 6, 3)).astype(np.float32)
    known = replace(
        CATALOGUE,
        neighbours=near[0],
        similarities=strength[0],
        followers=near[1],
        follow_shares=strength[1],
    )
    row = [(5, 0, 1.0), (2, 0, 2.0), (5, 1, 3.0), (0, 0, 4.0)]
    row += [(4, 2, 5.0), (3, 0, 6.0), (1, 0, 7.0)]
    distinct = [5, 2, 0, 4, 3, 1]
    given = Events(
        items=np.array([[one[0] for one in row]], np.int32),
        actions=np.array([[one[1] for one in row]], np.int8),
        age_s=np.array([[one[2] for one in row]]),
    )
    found = retrieve(known, session(), given, available=ALL, skip=[NOTHING])
    features = candidate_features(known, given, found)[0]

    def mean(kind: int, item: int, weights: list[float]) -> float:
        total = sum(
            weight * float(strength[kind, own, place])
            for own, weight in zip(distinct, weights, strict=False)
            for place in range(3)
            if near[kind, own, place] == item
        )
        return total / sum(weights)

    for item, values in zip(found.items[0, :6].tolist(), features, strict=False):
        by_name = dict(zip(FEATURE_NAMES, values.tolist(), strict=True))
        for name, wanted in (
            ("similar_history", mean(0, item, [1.0] * 6)),
            ("similar_recent", mean(0, item, [1.0] * 5)),
            ("similar_last", mean(0, item, [1.0])),
            ("follows_history", mean(1, item, [0.5 ** (n / 5) for n in range(6)])),
            ("follows_last", mean(1, item, [1.0])),
        ):
            assert math.isclose(by_name[name], wanted, rel_tol=1e-6), (item, name)


def test_a_row_has_the_same_bits_alone_in_a_batch_and_turned() -> None:
    rng = np.random.default_rng(6)
    rows = [
        [
            (int(rng.integers(0, 6)), int(rng.integers(-1, 3)), float(step))
            for step in range(size % 5)
        ]
        for size in range(12)
    ]
    both = events(*rows)
    whole = retrieve(CATALOGUE, session(), both, available=ALL, skip=[NOTHING] * 12)
    features = candidate_features(CATALOGUE, both, whole)
    for row, one in enumerate(rows):
        alone = events(one)
        found = retrieve(CATALOGUE, session(), alone, available=ALL, skip=[NOTHING])
        for name in ("items", "scores", "sources"):
            left, right = getattr(found, name)[0], getattr(whole, name)[row]
            assert left.tobytes() == right.tobytes()
        own = candidate_features(CATALOGUE, alone, found)
        assert own[0].tobytes() == features[row].tobytes()
