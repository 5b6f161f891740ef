"""A person gets at most four reasons, none twice, always in the same order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tollgate.policy import Policy, load_policy
from tollgate.policy.reason_sentences import select_reasons

NAMES = ("amount", "mean", "pace", "risk", "calm")
POLICY = """
version: 1
product: toy
labels: [legitimate, fraud]
score: fraud
thresholds: {review: 0.3, decline: 0.8}
fallback: {model_output: review}
rules: []
contributions: {amount: AMOUNT, mean: AMOUNT, pace: PACE, risk: RISK}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, AMOUNT: a, PACE: p,
  RISK: k}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """The policy above, compiled."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    return load_policy(tmp_path / "policy.yaml", feature_names=NAMES)


@pytest.mark.parametrize(
    ("codes", "contributions", "wanted"),
    [
        (["SCORE_REVIEW"], [0, 0, 0, 0, 0], "SCORE_REVIEW"),
        ([], [0.1, 0.3, 0.2, 0.05, 0.9], "AMOUNT PACE RISK"),
        ([], [0.1, -0.3, 0.2, -0.05, 0.9], "PACE AMOUNT"),
        (["A", "B"], [0.1, 0.1, 0.1, 0.1, 0.1], "A B AMOUNT PACE"),
        (["RISK"], [0.0, 0.1, 0.2, 0.3, 0.0], "RISK PACE AMOUNT"),
        (["A", "B", "C", "D", "E"], [1, 1, 1, 1, 1], "A B C D"),
        ([], [np.nan, 0.1, 0, 0, 0], "AMOUNT"),
    ],
)
def test_codes_are_in_the_order_of_their_weight(
    policy: Policy, codes: list[str], contributions: list[float], wanted: str
) -> None:
    """The answer's first, then features by how much they raised the score."""
    reported = select_reasons(
        policy, codes, contributions=np.array(contributions), feature_names=NAMES
    )
    assert [one.code for one in reported] == wanted.split()


def test_a_text_is_reported_once(tmp_path: Path) -> None:
    """Two codes that say the same are one reason to a person."""
    (tmp_path / "policy.yaml").write_text(POLICY.replace("PACE: p", "PACE: a"))
    policy = load_policy(tmp_path / "policy.yaml", feature_names=NAMES)
    reported = select_reasons(
        policy,
        ["SCORE_REVIEW"],
        contributions=np.array([0.3, 0.1, 0.2, 0.05, 0.9]),
        feature_names=NAMES,
    )
    assert [(one.code, one.text, one.feature) for one in reported] == [
        ("SCORE_REVIEW", "r", ""),
        ("AMOUNT", "a", "amount"),
        ("RISK", "k", "risk"),
    ]
    assert [one.contribution for one in reported[1:]] == [0.3, 0.05]


def test_a_policy_without_a_mapping_reports_features(tmp_path: Path) -> None:
    """By the texts that are handed in; a policy that maps some tells only those."""
    lines = [one for one in POLICY.splitlines() if "contributions" not in one]
    text = "\n".join(lines).replace("AMOUNT: a, PACE: p,\n  RISK: k", "X: x")
    contributions = np.array([0.3, -1.0, 0.2, 0.0, 0.9])
    texts = {name: f"the {name}" for name in NAMES}
    (tmp_path / "policy.yaml").write_text(text.replace(", X: x", ""))
    plain = load_policy(tmp_path / "policy.yaml", feature_names=NAMES)
    reported = select_reasons(
        plain,
        [],
        contributions=contributions,
        feature_names=NAMES,
        feature_texts=texts,
    )
    assert [one.text for one in reported] == ["the calm", "the amount", "the pace"]
    assert [one.code for one in reported] == ["calm", "amount", "pace"]
