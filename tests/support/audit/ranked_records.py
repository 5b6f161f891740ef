"""Records of lists that a small shop ranked, as its steps rank them, for tests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from tests.support.audit.random_records import DECIDED_US
from tests.support.products.small_shop import (
    release_shop,
    retrieval_onnx,
    small_catalogue,
    write_linear_model,
    write_shop,
)
from tollgate.audit.releases.past_release import OpenedRelease, open_release
from tollgate.engine.onnx_session import OnnxSession
from tollgate.journal.decision_record import Records
from tollgate.policy import RowFacts, decide
from tollgate.ranking.candidates import Events, candidate_features, retrieve
from tollgate.ranking.catalogue import EVERYONE, RETRIEVAL_FILE, Catalogue
from tollgate.ranking.draws import seed_of
from tollgate.ranking.rank import RankingInput, bind_rules, rank_row
from tollgate.ranking.ranking_record import RankingRecord, encode_ranking
from tollgate.schema import CANDIDATE_FEATURES, MISSING, RELEVANCE, hash_words

ITEMS = 60
HISTORY = 8
POLICY = """\
version: 1
product: shop
outcomes: [personal, weak, fallback]
labels: [relevance]
score: {value: relevance, worse: lower}
thresholds: {weak: 0.5}
fallback: {model_output: fallback}
rules: []
ranking:
  items: 5
  diversity: {weight: 0.2}
  exploration: {share: 0.3, pool: 6, first: 2}
  bought: 30d
  rules:
    - name: home
      owner: marketing
      boost: {factor: 1.5}
      categories: [garden]
      when: {slot: home}
    - {name: voucher, owner: marketing, pin: 2, items: [i9], when: {slot: cart}}
    - {name: mixed, owner: shop, cap: 4}
reasons:
  SCORE_WEAK: No item fits this user well.
  MODEL_UNAVAILABLE: No relevance could be computed.
"""
WEIGHTS = {
    "popularity": 0.3,
    "similar_history": 2.0,
    "retrieval_score": 0.7,
    "seen_age_h": 0.05,
    "category_share": 0.4,
}


def catalogue_of(items: int = ITEMS) -> Catalogue:
    """Make items in three categories, with random neighbours and factors."""
    chance = np.random.default_rng(11)
    share = np.sort(chance.random(items))[::-1].astype(np.float32)
    vectors = chance.normal(size=(items, 4))
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    near = np.stack([chance.permutation(items)[:6] for _ in range(items)])
    names = ["books", "garden", "toys"]
    return msgspec.structs.replace(
        small_catalogue(),
        item_ids=[f"i{one}".encode() for one in range(items)],
        categories=chance.integers(0, 3, items).astype(np.int32),
        category_names=names,
        popularity=share / share.sum(),
        recent_popularity=share[::-1].copy() / share.sum(),
        vectors=vectors.astype(np.float32),
        neighbours=near.astype(np.int32),
        similarities=np.sort(chance.random(near.shape))[:, ::-1].astype(np.float32),
        followers=near[:, ::-1].astype(np.int32),
        follow_shares=chance.random(near.shape).astype(np.float32),
        factors=chance.normal(size=(items, 4)).astype(np.float32),
        similar_count=10,
        statics=np.zeros((items, 0), np.float32),
        segments=[EVERYONE, "cart"],
        popular=np.stack([np.arange(items), chance.permutation(items)]).astype("i4"),
    )


def write_ranked_shop(repository: Path) -> OpenedRelease:
    """Write a small shop with rules, exploration and 60 items, and its release."""
    spec = write_shop(repository)
    catalogue = catalogue_of()
    first = repository / "shop_candidates" / "1"
    for folder in (first, repository / "shop_ranking" / "1"):
        catalogue.save(folder)
    (first / RETRIEVAL_FILE).write_bytes(retrieval_onnx(catalogue))
    (repository / "shop_ranking" / "1" / "policy.yaml").write_text(POLICY)
    write_linear_model(repository / "shop_model" / "1", spec, weights=WEIGHTS)
    name = release_shop(repository, spec).name
    return open_release(name, archived=None, repository=repository, product="shop")


def ranked(rows: int, *, by: OpenedRelease, first: int = 0) -> Records:
    """
    Make records of lists: some users have no history, some items are out of stock.

    Row 3 has a history that was not known; row 5 no relevance.
    """
    chance = np.random.default_rng([5, first])
    release, policy = by, by.policy
    catalogue = catalogue_of()
    retrieval = OnnxSession(release.files.path(RETRIEVAL_FILE), intra_op_threads=1)
    model = OnnxSession(release.files.path("model.onnx"), intra_op_threads=1)
    rules = policy.ranking
    assert rules is not None
    bound = bind_rules(rules, catalogue)
    slots = [b"home", b"product", b"cart", b""]
    fields = {"slot": hash_words([slots[one] for one in chance.integers(0, 4, rows)])}
    facts = RowFacts(
        probabilities=np.zeros((rows, 1), np.float32),
        features=chance.random((rows, 2), np.float32),
        cents=np.full(rows, MISSING),
        degraded=np.zeros(rows, np.uint32),
        event_time_us=DECIDED_US + np.arange(first, first + rows) * 1_000,
        list_hits=np.zeros(rows, np.uint32),
        fields=fields,
    )
    in_force = rules.in_force(facts).tolist()
    segments = catalogue.segments_of(fields, rows=rows).tolist()
    names = [f"r-{first + row}".encode() for row in range(rows)]
    details, best = [], []
    for row in range(rows):
        count = 0 if row % 7 == 0 else int(chance.integers(1, HISTORY + 1))
        items = np.full(HISTORY, -1, np.int32)
        actions = np.full(HISTORY, -1, np.int8)
        age_s = np.zeros(HISTORY)
        items[:count] = chance.integers(-1, ITEMS, count)
        actions[:count] = chance.integers(0, 3, count)
        age_s[:count] = np.sort(chance.uniform(10, 1e6, count))
        events = Events(items=items[None], actions=actions[None], age_s=age_s[None])
        available = chance.random(ITEMS) > 0.2
        excluded = chance.integers(0, ITEMS, int(chance.integers(0, 4))).astype("i4")
        found = retrieve(
            catalogue,
            retrieval,
            events,
            available=available,
            skip=[excluded],
            segments=np.array([segments[row]], np.int32),
        )
        features = candidate_features(catalogue, events, found)
        (relevance,) = model.run([RELEVANCE], {CANDIDATE_FEATURES: features})
        relevance = relevance[0]
        if row == 5:
            relevance = np.full_like(relevance, np.nan)
        given = RankingInput(
            count=rules.items,
            seed=seed_of(names[row]),
            in_force=in_force[row],
            candidates=found.items[0],
            sources=found.sources[0],
            relevance=relevance,
            history_items=items,
            history_actions=actions,
            history_age_s=age_s,
            excluded=excluded,
            available=available & (chance.random(ITEMS) > 0.1),  # sold out since
            fill=catalogue.popular[segments[row]],
        )
        shown = rank_row(given, bound)
        if row == 3:
            shown = msgspec.structs.replace(
                shown, sources=np.full_like(shown.sources, 3)
            )
        scored = shown.scores[~np.isnan(shown.scores)]
        best.append(scored[0] if len(scored) else np.nan)
        record = RankingRecord(catalogue.hash, given, shown)
        details.append(encode_ranking(record))
    scores = np.array(best, np.float32)
    decided = decide(
        msgspec.structs.replace(facts, probabilities=scores[:, None]), policy=policy
    )
    return Records(
        writer="0123456789abcdef",
        first_sequence=first,
        product="shop",
        release=release.name,
        spec_hash=release.spec.spec_hash,
        entities=("user",),
        decided_us=facts.event_time_us + 5_000,
        transaction_id=names,
        entity_id=[[f"user-{one}".encode() for one in chance.integers(0, 9, rows)]],
        event_time_us=facts.event_time_us,
        cents=facts.cents,
        fields=fields,
        fingerprint=chance.integers(0, 2**64, rows, np.uint64),
        features=facts.features,
        probabilities=decided.score[:, None],
        score=decided.score,
        degraded=decided.degraded,
        age_ms=np.zeros(rows, np.uint32),
        applied=np.zeros(rows, np.uint8),
        list_hits=facts.list_hits,
        decision=decided.decision,
        reason_codes=decided.reason_codes.tolist(),
        rules=decided.rules,
        features_us=np.full(rows, 900, np.uint32),
        model_us=np.full(rows, 4_000, np.uint32),
        decision_us=np.full(rows, 700, np.uint32),
        details=details,
    )
