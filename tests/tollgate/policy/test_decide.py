"""A policy turns scores into decisions; each rule does what its file says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tollgate.policy import Policy, PolicyDecisions, RowFacts, decide, load_policy
from tollgate.schema import Decision, Degraded

pytestmark = pytest.mark.usefixtures("both_deciders")

NAMES = ("amount", "risk")
POLICY = """
version: 1
product: toy
labels: [legitimate, fraud]
score: fraud
thresholds: {review: 0.3, decline: 0.8}
fallback: {model_output: review}
rules:
  - {name: big, owner: ops, when: {amount: {ge: 100}}, at_least: review, code: BIG}
  - {name: risky, owner: ops, when: {risk: {gt: 0.5}, score: {ge: 0.1}},
     at_least: decline, code: RISKY}
  - {name: blind, owner: ops, when: {STORE_UNAVAILABLE: true}, at_least: review,
     code: BLIND}
  - {name: small, owner: care, when: {amount: {lt: 10}}, at_most: review, code: SMALL}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, BIG: b, RISKY: k,
  BLIND: l, SMALL: s}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """The policy above, compiled."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return load_policy(path, feature_names=NAMES)


def facts(
    probabilities: np.ndarray,
    *,
    features: np.ndarray,
    cents: np.ndarray,
    degraded: np.ndarray,
) -> RowFacts:
    """Rows without lists and declared fields."""
    rows = len(cents)
    return RowFacts(
        probabilities=probabilities,
        features=features,
        cents=cents,
        degraded=degraded,
        event_time_us=np.zeros(rows, np.int64),
        list_hits=np.zeros(rows, np.uint32),
        fields={},
    )


def ask(
    policy: Policy, score: float, *, cents: int = 5000, risk: float = 0.0, bits: int = 0
) -> tuple[Decision, str, int]:
    """Decide one row."""
    row = facts(
        np.array([[1 - score, score]], np.float32),
        features=np.array([[cents / 100, risk]], np.float32),
        cents=np.array([cents]),
        degraded=np.array([bits], np.uint32),
    )
    decided = decide(row, policy=policy)
    codes = decided.reason_codes[0].decode()
    return Decision(decided.decision[0]), codes, int(decided.degraded[0])


@pytest.mark.parametrize(
    ("row", "decision", "codes"),
    [
        ({"score": 0.1}, Decision.APPROVE, ""),
        ({"score": 0.5}, Decision.REVIEW, "SCORE_REVIEW"),
        ({"score": 0.9}, Decision.DECLINE, "SCORE_DECLINE"),
        ({"score": 0.0, "cents": 10_000}, Decision.REVIEW, "BIG"),
        ({"score": 0.2, "risk": 0.6}, Decision.DECLINE, "RISKY"),
        ({"score": 0.05, "risk": 0.6}, Decision.APPROVE, ""),
        ({"score": 0.9, "cents": 999}, Decision.REVIEW, "SCORE_DECLINE|SMALL"),
        ({"score": 0.5, "cents": 999}, Decision.REVIEW, "SCORE_REVIEW"),
        ({"score": 0.1, "cents": 999}, Decision.APPROVE, ""),
        ({"score": 0.1, "bits": int(Degraded.STORE_UNAVAILABLE)},
         Decision.REVIEW, "BLIND"),
        ({"score": 0.1, "bits": int(Degraded.COLD_START)}, Decision.APPROVE, ""),
        ({"score": 0.1, "bits": int(Degraded.ESSENTIAL_MISSING)},
         Decision.REVIEW, "ESSENTIAL_MISSING"),
        ({"score": 0.9, "bits": int(Degraded.ESSENTIAL_MISSING)},
         Decision.DECLINE, "SCORE_DECLINE|ESSENTIAL_MISSING"),
    ],
)  # fmt: skip
def test_thresholds_and_rules(
    policy: Policy, row: dict[str, float], decision: Decision, codes: str
) -> None:
    """By hand: thresholds first, then the rules in their order."""
    assert ask(policy, **row)[:2] == (decision, codes)  # type: ignore[arg-type]


def test_no_rule_lets_a_row_pass_that_lacks_an_essential_feature(
    tmp_path: Path,
) -> None:
    """A rule that lowers to approve is undone; its own text may be given."""
    path = tmp_path / "policy.yaml"
    lenient = POLICY.replace("at_most: review", "at_most: approve")
    path.write_text(lenient.replace("SMALL: s", "SMALL: s, ESSENTIAL_MISSING: e"))
    policy = load_policy(path, feature_names=NAMES)
    bits = int(Degraded.ESSENTIAL_MISSING)
    assert ask(policy, 0.9, cents=999)[0] is Decision.APPROVE
    assert ask(policy, 0.9, cents=999, bits=bits)[:2] == (
        Decision.REVIEW,
        "SCORE_DECLINE|ESSENTIAL_MISSING|SMALL",
    )
    assert policy.reasons["ESSENTIAL_MISSING"] == "e"


def test_a_policy_need_not_know_of_essential_features(policy: Policy) -> None:
    """Its text is built in: an older file stays valid and gives the code."""
    assert "ESSENTIAL_MISSING" not in POLICY
    assert policy.reasons["ESSENTIAL_MISSING"]


def test_a_score_on_a_threshold_is_over_it(policy: Policy) -> None:
    """`at or above`: compared in float64, so 0.3 as float32 is above 0.3."""
    at = float(np.float32(0.3))
    assert at >= 0.3
    assert ask(policy, at)[0] is Decision.REVIEW
    below = float(np.nextafter(np.float32(0.3), np.float32(0)))
    assert ask(policy, below)[0] is Decision.APPROVE


@pytest.mark.parametrize("wrong", [np.nan, -0.1, 1.1, np.inf])
def test_what_is_no_probability_gives_the_fallback(
    policy: Policy, wrong: float
) -> None:
    """Never a decision from it: review, NaN, the bit, and the reason."""
    rows = facts(
        np.array([[0.1, 0.9], [0.5, wrong], [wrong, 0.99]], np.float32),
        features=np.zeros((3, 2), np.float32),
        cents=np.full(3, 5000),
        degraded=np.zeros(3, np.uint32),
    )
    decided = decide(rows, policy=policy)
    assert decided.decision.tolist() == [2, 1, 1]
    assert np.isnan(decided.score).tolist() == [False, True, True]
    assert decided.degraded.tolist() == [0, 64, 64]
    assert decided.reason_codes[1] == b"MODEL_UNAVAILABLE"


def test_a_batch_equals_its_rows_in_any_order(policy: Policy) -> None:
    """Alone = batched, and permuted rows permute the decisions."""
    rng = np.random.default_rng(0)
    score = rng.random(200).astype(np.float32)
    table = {
        "probabilities": np.stack([1 - score, score], axis=1),
        "features": rng.random((200, 2)).astype(np.float32),
        "cents": rng.integers(0, 20_000, 200),
        "degraded": rng.integers(0, 1024, 200).astype(np.uint32),
    }

    def run(rows: np.ndarray) -> PolicyDecisions:
        return decide(facts(**{k: v[rows] for k, v in table.items()}), policy=policy)

    whole, order = run(np.arange(200)), rng.permutation(200)
    shuffled = run(order)
    assert (shuffled.decision == whole.decision[order]).all()
    assert (shuffled.reason_codes == whole.reason_codes[order]).all()
    for row in range(200):
        alone = run(np.array([row]))
        assert alone.decision[0] == whole.decision[row]
        assert alone.reason_codes[0] == whole.reason_codes[row]
