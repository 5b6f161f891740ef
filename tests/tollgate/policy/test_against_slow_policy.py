"""Whatever the policy and the rows: `decide` says what reading row by row says."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.policy.reference_policy import BITS, Row, slow_decide
from tollgate import compiled
from tollgate.errors import PolicyError
from tollgate.policy import Policy, PolicyDecisions, RowFacts, load_policy
from tollgate.policy import decide as decide_once
from tollgate.policy.decide import _decide_compiled, needs_model, without_model
from tollgate.schema import (
    MISSING,
    DeclaredField,
    Degraded,
    float_places,
    hash_words,
)

LABELS = ["fine", "stolen", "abuse"]
FEATURES = ("f_risk", "f_count")
WORDS = ["web", "app", "shop"]
FIELDS = (
    DeclaredField("distance", "number", 1),
    DeclaredField("channel", "category"),
    DeclaredField("weight", "number", None),
)
LISTS = ["denied", "trusted"]
TIMES = ["2026-01-01", "2026-02-01T00:00:00Z", "2026-03-01"]
TIMES_US = [
    int(np.datetime64(text.rstrip("Z"), "us").astype(int)) + shift
    for text in TIMES
    for shift in (-1, 0, 1)
]

SEEN: Counter[str] = Counter()

# What policies compare with, and what rows are made of: ends are hit all the time.
AMOUNTS = [0.0, 9.99, 10.0, 99.99, 100.0, 250.5]
PARTS = [0.0, 0.1, 0.3, 0.35, 0.5, 0.8, 1.0]
DISTANCES = [-1.5, 0.0, 0.1, 10.0]
USED_BITS = ["STORE_UNAVAILABLE", "COLD_START", "FEED_STALE", "MODEL_OUTPUT"]

TWO = st.sampled_from(["ge", "gt", "le", "lt", "eq", "ne"])


def bounds(values: list[float]) -> st.SearchStrategy[dict[str, float]]:
    """Compare with one or two of some values."""
    return st.dictionaries(TWO, st.sampled_from(values), min_size=1, max_size=2)


WORDS_WANTED = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True)
MISSING_WANTED = st.booleans().map(lambda one: {"missing": one})
WANTED = {
    "amount": bounds(AMOUNTS),
    "f_risk": bounds(PARTS),
    "f_count": bounds([0.0, 1.0, 2.0]),
    "distance": bounds(DISTANCES) | MISSING_WANTED,
    "weight": bounds(DISTANCES) | MISSING_WANTED,
    "channel": st.sampled_from(WORDS)
    | WORDS_WANTED
    | WORDS_WANTED.map(lambda words: {"not": words})
    | MISSING_WANTED,
    **{name: st.booleans() for name in (*USED_BITS, *LISTS)},
}
SCORES = {name: bounds(PARTS) for name in ("score", "stolen")}
LEVEL = st.sampled_from(["approve", "review", "decline"])
LIMITS = st.lists(st.sampled_from(PARTS), min_size=2, max_size=2).map(
    lambda two: {"review": min(two), "decline": max(two)}
) | st.sampled_from(PARTS).map(lambda one: {"review": one})


@st.composite
def conditions(draw: st.DrawFn, *, scores: bool) -> dict[str, Any]:
    """Draw a `when` of one to three conditions."""
    known = WANTED | (SCORES if scores else {})
    chosen = draw(
        st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=3, unique=True)
    )
    return {name: draw(known[name]) for name in chosen}


@st.composite
def rules(draw: st.DrawFn, *, segments: list[str]) -> list[dict[str, Any]]:
    """Draw up to six rules."""
    found = []
    first = draw(st.integers(0, 2))  # before the model, where nothing refuses it
    for at in range(draw(st.integers(0, 6))):
        rule = {"name": f"rule{at}", "owner": "me", "code": f"CODE{at % 4}"}
        rule["when"] = draw(conditions(scores=True))
        raises = draw(st.booleans())
        side = draw(st.sampled_from(["review", "decline" if raises else "approve"]))
        if at < first:
            rule["when"] = draw(conditions(scores=draw(st.integers(0, 9)) == 0))
            rule["before_model"] = draw(LEVEL)
        else:
            rule["at_least" if raises else "at_most"] = side
            rule["stop"] = draw(st.booleans())
        if draw(st.booleans()):
            rule["segments"] = draw(
                st.lists(st.sampled_from([*segments, "other"]), min_size=1, unique=True)
            )
        if draw(st.booleans()):
            rule["from"], rule["until"] = TIMES[0], draw(st.sampled_from(TIMES[1:]))
        found.append(rule)
    return found


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a policy; it may be one that cannot be meant."""
    names = [f"segment{at}" for at in range(draw(st.integers(0, 3)))]
    doc: dict[str, Any] = {
        "version": 1,
        "product": "toy",
        "labels": LABELS,
        "score": draw(
            st.sampled_from(
                [
                    "stolen",
                    {"of": "stolen", "decimals": 1},
                    {"weights": {"stolen": 1.0, "abuse": 0.5}},
                    {"weights": {"stolen": 0.7, "abuse": 0.7}, "decimals": 2},
                ]
            )
        ),
        "thresholds": draw(LIMITS),
        "fallback": {"model_output": draw(LEVEL)},
        "segments": [],
        "rules": draw(rules(segments=names)),
    }
    if draw(st.booleans()):
        doc["fallback"]["sum_within"] = 0.01
    for name in names:
        one = {"name": name, "when": draw(conditions(scores=False))}
        one["thresholds"] = draw(LIMITS)
        if draw(st.booleans()):
            one["fallback"] = {"model_output": draw(LEVEL)}
        doc["segments"].append(one)
    raised = st.sampled_from(["review", "decline"])
    meanings = st.sampled_from(["none", "at_least", "fallback"])
    doc["degraded"] = {}
    for bit in ("STORE_UNAVAILABLE", "FEED_STALE", "ESSENTIAL_MISSING"):
        what = draw(meanings)
        if bit == "ESSENTIAL_MISSING" and what != "at_least":
            continue
        meaning = {"code": f"{bit}_CODE"}
        if what != "none":
            meaning[what] = draw(raised if what == "at_least" else LEVEL)
        doc["degraded"][bit] = "none" if what == "none" else meaning
    return finished(doc)


def finished(doc: dict[str, Any]) -> dict[str, Any]:
    """Add the lists that are used, and a text for each code."""
    asked = [one["when"] for one in (*doc["rules"], *doc["segments"])]
    doc["lists"] = [
        {"name": name, "of": "customer_id", "meaning": meaning}
        for name, meaning in zip(LISTS, ("deny", "allow"), strict=True)
        if any(name in when for when in asked)
    ]
    codes = {"MODEL_UNAVAILABLE", "SCORE_REVIEW"}
    if any("decline" in one["thresholds"] for one in (doc, *doc["segments"])):
        codes.add("SCORE_DECLINE")
    codes |= {one["code"] for one in doc["rules"]}
    codes |= {one["code"] for one in doc["degraded"].values() if one != "none"}
    doc["reasons"] = dict.fromkeys(sorted(codes), "a text")
    return doc


CHANCES = [*map(float, np.array(PARTS, np.float32)), float("nan"), 1.5, 0.7, 0.2]


def draw_row(rng: random.Random) -> tuple[Row, list[float], int]:
    """Draw a row: what is known of it, its probabilities, its time."""
    row: Row = {
        "amount": rng.choice(AMOUNTS),
        "f_risk": float(np.float32(rng.choice([*PARTS, float("nan")]))),
        "f_count": rng.choice([0.0, 1.0, 2.0, float("inf")]),
        "distance": rng.choice([*DISTANCES, None]),
        "weight": rng.choice([*DISTANCES, -0.0, 1e300, None]),
        "channel": rng.choice([*WORDS, "other", None]),
    }
    row |= {name: rng.random() < 0.25 for name in (*BITS, *LISTS)}
    sums_to_one = [rng.choice([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 0.0, 1.0]])]
    chances = rng.choice([*sums_to_one, [rng.choice(CHANCES) for _ in range(3)]])
    exact = [float(np.float32(one)) for one in chances]
    return row, exact, rng.choice(TIMES_US)


Rows = list[tuple[Row, list[float], int]]


def facts(table: Rows, policy_lists: list[str]) -> RowFacts:
    """Put rows into columns."""
    listed = [
        sum(1 << at for at, name in enumerate(policy_lists) if row[name])
        for row, _, _ in table
    ]
    words = [(row["channel"] or "").encode() for row, _, _ in table]
    far = [row["distance"] for row, _, _ in table]
    weight = [row["weight"] for row, _, _ in table]
    places = float_places(np.array([one or 0.0 for one in weight]))
    return RowFacts(
        probabilities=np.array([one for _, one, _ in table], np.float32),
        features=np.array([[row[f] for f in FEATURES] for row, _, _ in table], "f4"),
        cents=np.array([round(row["amount"] * 100) for row, _, _ in table]),
        degraded=np.array(
            [sum(Degraded[b] for b in BITS if row[b]) for row, _, _ in table], np.uint32
        ),
        event_time_us=np.array([at for _, _, at in table]),
        list_hits=np.array(listed, np.uint32),
        fields={
            "channel": hash_words(words),
            "distance": np.array(
                [MISSING if one is None else round(one * 10) for one in far]
            ),
            "weight": np.where([one is None for one in weight], MISSING, places),
        },
    )


def decide(facts: RowFacts, *, policy: Policy) -> PolicyDecisions:
    """Decide in NumPy and in the compiled loop, which must give the same bits."""
    decided = decide_once(facts, policy=policy)
    if compiled.decisions is not None:
        SEEN["compiled"] += 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "decisions", None)
            by_numpy = decide_once(facts, policy=policy)
        require_same(decided, by_numpy)
    return decided


def require_needs(
    facts: RowFacts, early: Any, rng: random.Random, *, policy: Policy
) -> None:
    """Ask for the model with no row done, with all others done, and with some done."""
    some = np.array([rng.random() < 0.5 for _ in early])
    for done in (np.zeros_like(early), ~early, early.copy(), some):
        wanted = not (done | early).all()
        assert needs_model(facts, done, policy=policy) == wanted
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "decisions", None)
            assert needs_model(facts, done, policy=policy) == wanted


def require_same(one: PolicyDecisions, other: PolicyDecisions) -> None:
    """Compare types and bits of all columns."""
    for name in PolicyDecisions.__struct_fields__:
        mine, its = getattr(one, name), getattr(other, name)
        assert (mine.dtype, mine.shape) == (its.dtype, its.shape), name
        if name == "reason_codes":
            assert mine.tolist() == its.tolist()
        else:
            assert mine.tobytes() == its.tobytes(), name


def reported(decided: PolicyDecisions, at: int) -> dict[str, Any]:
    """Take one row of what was decided."""
    return {
        "decision": int(decided.decision[at]),
        "score": float(decided.score[at]),
        "codes": decided.reason_codes[at].decode(),
        "model_output": bool(decided.degraded[at] & Degraded.MODEL_OUTPUT),
        "rules": int(decided.rules[at]),
        "segment": int(decided.segment[at]),
    }


def load(doc: dict[str, Any], folder: Path) -> Policy:
    """Write a policy down and compile it."""
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump(doc, sort_keys=False))
    return load_policy(path, feature_names=FEATURES, fields=FIELDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where policies are written."""
    return tmp_path_factory.mktemp("policies")


@given(doc=policies(), seed=st.integers(0, 2**32))
@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_columns_decide_as_rows_read_one_by_one(
    folder: Path, doc: dict[str, Any], seed: int
) -> None:
    """
    Decision, score, codes, bit, rules and segment; together, alone and permuted.

    A policy that is refused because a rule is never reached has no row that reaches it,
    and one that is not has no row in two segments.
    """
    rng = random.Random(seed)
    table = [draw_row(rng) for _ in range(30)]
    policy = None
    while policy is None:
        try:
            policy = load(doc, folder)
        except PolicyError as exc:
            SEEN["refused"] += 1
            check_refusal(exc, doc, table)
            doc = without_what_is_refused(doc, exc)
    SEEN["compared"] += 1
    SEEN["with segments"] += bool(doc["segments"])
    SEEN["with rules"] += len(doc["rules"]) > 1
    names = [one["name"] for one in doc["lists"]]
    decided = decide(facts(table, names), policy=policy)
    wanted = [
        slow_decide(doc, row, chances=chances, event_time_us=at)
        for row, chances, at in table
    ]
    np.testing.assert_equal([reported(decided, at) for at in range(30)], wanted)
    early = without_model(facts(table, names), policy=policy)
    assert early.tolist() == [
        any("before_model" in doc["rules"][bit] for bit in held)
        for held in ([b for b in range(6) if one["rules"] >> b & 1] for one in wanted)
    ]
    require_needs(facts(table, names), early, rng, policy=policy)
    SEEN["before the model"] += int(early.sum())
    for at in (0, 17):
        alone = decide(facts([table[at]], names), policy=policy)
        np.testing.assert_equal(reported(alone, 0), wanted[at])
    back = decide(facts(table[::-1], names), policy=policy)
    np.testing.assert_equal([reported(back, at) for at in range(30)], wanted[::-1])


@given(doc=policies(), seed=st.integers(0, 2**32), rows=st.integers(1, 40))
@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_compiled_loop_decides_any_bits_as_numpy_does(
    folder: Path, doc: dict[str, Any], seed: int, rows: int
) -> None:
    """Any float, any bits of `degraded` and of lists, any integer in any field."""
    policy = None
    while policy is None:
        try:
            policy = load(doc, folder)
        except PolicyError as exc:
            doc = without_what_is_refused(doc, exc)
    facts = random_facts(np.random.default_rng(seed), rows)
    decide(facts, policy=policy)
    if compiled.decisions is not None:
        assert _decide_compiled(facts, policy) is not None


SPECIAL = np.array(
    [
        0.0,
        -0.0,
        0.1,
        0.35,
        1.0,
        2.0,
        np.nan,
        -np.nan,
        np.inf,
        -np.inf,
        1e-45,
        1.0000001,
    ],
    np.float32,
)
EDGES = np.array([MISSING, MISSING + 1, -1, 0, 1, 999, 1_000, 2**53 + 1, 2**63 - 1])


def random_facts(rng: np.random.Generator, rows: int) -> RowFacts:
    """Draw special values and random bits, as columns of packed records."""

    def floats(columns: int) -> Any:
        bits = rng.integers(0, 1 << 32, (rows, columns), np.uint32).view(np.float32)
        bits[np.isnan(bits)] = np.nan  # a signalling one warns in NumPy
        special = rng.choice(SPECIAL, (rows, columns))
        return np.where(rng.random((rows, columns)) < 0.8, special, bits)

    def integers() -> Any:
        packed = np.zeros(rows, [("before", "u1"), ("number", "<i8"), ("after", "u1")])
        near = rng.choice([*TIMES_US, *hash_words([b"web", b"app"]), *EDGES], rows)
        packed["number"] = near + rng.integers(-1, 2, rows)
        return packed["number"]

    probabilities = floats(3)
    valid = rng.random(rows) < 0.7
    probabilities[valid] = rng.dirichlet([0.5] * 3, rows)[valid]
    names = rng.permutation(["channel", "distance", "weight"])[: rng.integers(0, 4)]
    used = rng.choice([0, 0, 1, 1 << 6, 1 << 8, 0xFFFFFFFF], rows).astype(np.uint32)
    return RowFacts(
        probabilities=np.asfortranarray(probabilities),
        features=floats(4)[:, ::2],
        cents=integers(),
        degraded=used & rng.integers(0, 1 << 32, rows, np.uint32),
        event_time_us=integers(),
        list_hits=rng.integers(0, 4, rows).astype(np.uint32),
        fields={name: integers() for name in names},
    )


def test_other_types_are_decided_by_numpy(folder: Path) -> None:
    """float64 instead of float32 decides the same, without the compiled loop."""
    doc = {"version": 1, "product": "toy", "labels": LABELS, "score": "stolen",
           "thresholds": {"review": 0.3, "decline": 0.8}, "segments": [], "rules": [],
           "fallback": {"model_output": "review"}, "degraded": {}}  # fmt: skip
    policy = load(finished(doc), folder)
    usual = random_facts(np.random.default_rng(1), 20)
    wide = msgspec.structs.replace(
        usual, probabilities=usual.probabilities.astype(np.float64)
    )
    require_same(decide(usual, policy=policy), decide(wide, policy=policy))


def check_refusal(exc: PolicyError, doc: dict[str, Any], table: Rows) -> None:
    """A rule that is said never to hold holds for no row, though rows lie on ends."""
    assert str(exc).count("\n") == 0
    assert exc.where.startswith("line ")
    if "never" not in exc.problem or "rules." not in exc.where:
        return
    SEEN["unreachable"] += 1
    (at,) = (at for at, one in enumerate(doc["rules"]) if one["name"] in exc.where)
    for row, chances, event_time_us in table:
        found = slow_decide(doc, row, chances=chances, event_time_us=event_time_us)
        assert not found["rules"] >> at & 1


def without_what_is_refused(doc: dict[str, Any], exc: PolicyError) -> dict[str, Any]:
    """Take the rule or the segment away that an error names."""
    unchanged = {
        part: [one for one in doc[part] if f"{part}.{one['name']}" not in exc.where]
        for part in ("rules", "segments")
    }
    assert unchanged != {part: doc[part] for part in unchanged}, exc
    return finished(doc | unchanged)


def test_enough_of_each_kind_was_seen() -> None:
    """What was compared and refused above is enough to say something."""
    if SEEN:  # it may run alone
        assert min(SEEN.values()) > 10, SEEN
        assert len(SEEN) == 6 + (compiled.decisions is not None)
