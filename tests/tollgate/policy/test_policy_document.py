"""A policy.yaml that cannot be meant is refused by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import PolicyError
from tollgate.policy import load_policy

POLICY = Path(__file__).parents[3] / "model_repository/fraud_decision/1/policy.yaml"
NAMES = ("amount", "terminal_risk_1d", "terminal_risk_7d")

BREAKS = {
    "no_yaml": ("version: 1", "version: [", "policy.yaml: "),
    "unknown_key": ("labels:", "lables:", "unknown field `lables`"),
    "version": ("version: 1", "version: 2", "version: 2 is not 1"),
    "score": ("score: fraud", "score: frod", "score: 'frod' is none of"),
    "descending": ("decline: 0.80", "decline: 0.10", "thresholds: 0 <= review 0.35"),
    "level": ("model_output: review", "model_output: maybe", "Invalid enum value"),
    "field": ("amount: {ge: 1000}", "amont: {ge: 1000}", "'amont' is no field"),
    "operator": ("amount: {ge: 1000}", "amount: {over: 1000}", "rules[0].when"),
    "bit": ("COLD_START: true", "COLD_START: {ge: 1}", "COLD_START is a bit"),
    "number": ("amount: {ge: 1000}", "amount: true", "amount is a number"),
    "both": (
        "at_most: review",
        "at_most: review\n    at_least: review",
        "never_decline_small: needs exactly one of at_least, at_most",
    ),
    "twice": (
        "name: blind_and_large",
        "name: large_amount",
        "rules.large_amount: appears twice",
    ),
    "no_text": ("  SMALL_AMOUNT: Too", "  SMALL: Too", "no text for SMALL_AMOUNT"),
    "no_giver": (
        "reasons:",
        "reasons:\n  ODD: text",
        "nothing gives the code ODD",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_policy_names_file_and_key(name: str, tmp_path: Path) -> None:
    """One change to the committed policy; one sentence."""
    old, new, words = BREAKS[name]
    text = POLICY.read_text()
    assert old in text
    path = tmp_path / "policy.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PolicyError) as caught:
        load_policy(path, feature_names=NAMES)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_policy_is_one_line(tmp_path: Path) -> None:
    """The file's name and why."""
    with pytest.raises(PolicyError, match=r"policy\.yaml: cannot be read: No such"):
        load_policy(tmp_path / "policy.yaml", feature_names=NAMES)
