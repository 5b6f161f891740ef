"""A policy decides by a number in its own unit, as by a probability."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tollgate.errors import PolicyError
from tollgate.policy import Policy, RowFacts, decide, load_policy
from tollgate.policy.policy_difference import compare
from tollgate.policy.policy_document import read_document
from tollgate.schema import Degraded

pytestmark = pytest.mark.usefixtures("both_deciders")

PRICE = """
version: 1
product: toy
labels: [price]
score: {value: price}
thresholds: {review: 250000, decline: 1000000}
fallback: {model_output: review}
rules:
  - {name: odd, owner: ops, when: {score: {lt: -10.5}}, at_least: decline, code: ODD}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, ODD: o}
"""
DAYS = """
version: 1
product: toy
labels: [days]
score: {value: days, worse: lower}
thresholds: {review: 30.1, decline: 7}
fallback: {model_output: decline}
rules: []
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r}
"""


def load(folder: Path, text: str) -> Policy:
    """Compile a text."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return load_policy(path, feature_names=("pace",))


def facts(numbers: list[float]) -> RowFacts:
    """Build rows that differ in the model's answer only."""
    answers = np.array(numbers, np.float32)[:, None]
    rows = len(answers)
    return RowFacts(
        probabilities=answers,
        features=np.zeros((rows, 1), np.float32),
        cents=np.full(rows, 100),
        degraded=np.zeros(rows, np.uint32),
        event_time_us=np.zeros(rows, np.int64),
        list_hits=np.zeros(rows, np.uint32),
        fields={},
    )


def test_a_higher_number_is_worse_and_is_the_score(tmp_path):
    """At the thresholds, and one float32 below them."""
    below = float(np.nextafter(np.float32(250_000), np.float32(0)))
    numbers = [-3.0, below, 250_000.0, 999_999.94, 1_000_000.0, 3e38]
    found = decide(facts(numbers), policy=load(tmp_path, PRICE))
    assert found.decision.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.score.tolist() == np.array(numbers, np.float32).tolist()
    assert found.degraded.tolist() == [0] * 6
    assert found.reason_codes.tolist() == [
        *(b"", b"", b"SCORE_REVIEW", b"SCORE_REVIEW", b"SCORE_DECLINE"),
        b"SCORE_DECLINE",
    ]


def test_a_lower_number_is_worse_where_the_policy_says_so(tmp_path):
    """Days to failure: 30.1 is compared in float64, and no float32 equals it."""
    near = np.float32(30.1)
    numbers = [365.0, float(near), 30.0, 7.000001, 7.0, -1.0]
    found = decide(facts(numbers), policy=load(tmp_path, DAYS))
    first = int(float(near) <= 30.1)
    assert found.decision.tolist() == [0, first, 1, 1, 2, 2]


@pytest.mark.parametrize(("text", "fallback"), [(PRICE, 1), (DAYS, 2)])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_finite_number_gives_the_fallback(tmp_path, text, fallback, number):
    """With the bit and the code of an unusable answer, and no score."""
    found = decide(facts([number]), policy=load(tmp_path, text))
    assert found.decision.tolist() == [fallback]
    assert found.degraded.tolist() == [int(Degraded.MODEL_OUTPUT)]
    assert found.reason_codes.tolist() == [b"MODEL_UNAVAILABLE"]
    assert np.isnan(found.score).all()


def test_a_rule_compares_the_number(tmp_path):
    """Below -10.5, which no probability can be."""
    found = decide(facts([-10.5, -11.0]), policy=load(tmp_path, PRICE))
    assert found.decision.tolist() == [0, 2]


def test_the_proof_judges_where_a_decision_changes(tmp_path):
    """At `score >= cut`; where lower is worse, just above the threshold."""
    assert load(tmp_path, PRICE).score_cuts == (-10.5, 250_000.0, 1_000_000.0)
    policy = load(tmp_path, DAYS)
    for cut in policy.score_cuts:
        just_below = float(np.nextafter(np.float32(cut), np.float32(-np.inf)))
        first, second = decide(facts([just_below, cut]), policy=policy).decision
        assert first == second + 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (PRICE.replace("labels: [price]", "labels: [price, b]"), "2 labels; a number"),
        (PRICE.replace("decline: 1000000", "decline: 1"), "<= decline 1.0 is false"),
        (DAYS.replace("decline: 7", "decline: 90"), ">= decline 90.0 is false"),
        (DAYS.replace("decline: 7", "decline: .inf"), "inf is no finite number"),
        (DAYS.replace("review: 30.1", "review: .nan"), "nan is no finite number"),
        (DAYS.replace("value: days", "of: days"), "worse: belongs to value"),
        (DAYS.replace("{value: days", "{value: hours"), "'hours' is none of days"),
        (
            PRICE.replace("output: review}", "output: review, sum_within: 0.1}"),
            "a number has no sum",
        ),
        (PRICE.replace("value: price", "value: price, of: price"), "exactly one of of"),
    ],
)
def test_keys_that_a_number_cannot_have_are_refused(tmp_path, text, problem):
    """The message names the key."""
    with pytest.raises(PolicyError, match=problem):
        load(tmp_path, text)


def test_a_higher_threshold_is_stricter_where_lower_is_worse(tmp_path):
    """More days count as too few."""
    found = []
    for number, text in enumerate((DAYS, DAYS.replace("decline: 7", "decline: 9"))):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        found.append(read_document(path).raw)
    (change,) = compare(*found)
    assert change.words.endswith(": stricter")
