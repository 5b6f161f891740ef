"""A policy with outcomes of its own decides like one with the default words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.policy.own_outcomes import OWN, renamed_codes, with_own_outcomes
from tollgate.errors import PolicyError
from tollgate.policy import Policy, RowFacts, decide, load_policy
from tollgate.policy.policy_difference import compare
from tollgate.policy.policy_document import read_document
from tollgate.schema import DEFAULT_OUTCOMES, Degraded, Outcomes

pytestmark = pytest.mark.usefixtures("both_deciders")

USUAL = """\
version: 1
product: toy
labels: [fine, odd]
score: odd
thresholds: {review: 0.3, decline: 0.8}
fallback: {model_output: review}
segments:
  - name: hot
    when: {heat: {ge: 90}}
    thresholds: {review: 0.1}
    fallback: {model_output: decline}
degraded:
  COLD_START: {at_least: review, code: NEW}
  FEED_STALE: {fallback: review, code: STALE}
rules:
  - {name: cold, owner: ops, when: {heat: {lt: 0}}, before_model: approve, code: COLD}
  - {name: burns, owner: ops, when: {heat: {ge: 200}}, at_least: decline, code: BURNS}
  - {name: mild, owner: ops, when: {heat: {lt: 20}}, at_most: review, code: MILD}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, NEW: n, STALE: s,
  COLD: o, BURNS: b, MILD: i}
"""
TEXT = with_own_outcomes(USUAL)


def load(folder: Path, text: str) -> Policy:
    """Compile a text."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return load_policy(path, feature_names=("heat",))


def facts(rows: int) -> RowFacts:
    """Draw rows with every combination of heat, score and bits."""
    chance = np.random.default_rng(3)
    score = chance.random(rows).astype(np.float32)
    score[chance.random(rows) < 0.1] = np.nan
    bits = np.array([0, Degraded.COLD_START, Degraded.FEED_STALE], np.uint32)
    return RowFacts(
        probabilities=np.stack([1 - score, score], axis=1),
        features=chance.uniform(-20, 300, (rows, 1)).astype(np.float32),
        cents=np.zeros(rows, np.int64),
        degraded=chance.choice(bits, rows),
        event_time_us=np.zeros(rows, np.int64),
        list_hits=np.zeros(rows, np.uint32),
        fields={},
    )


def test_levels_are_those_of_the_default_words(tmp_path: Path) -> None:
    """The codes of the score follow the words; everything else has the same bits."""
    rows = facts(2_000)
    usual = decide(rows, policy=load(tmp_path, USUAL))
    policy = load(tmp_path, TEXT)
    own = decide(rows, policy=policy)
    assert policy.outcomes.words == OWN
    assert np.unique(own.decision).tolist() == [0, 1, 2]
    for name in ("decision", "score", "degraded", "rules", "segment"):
        assert getattr(own, name).tobytes() == getattr(usual, name).tobytes()
    codes = [one.decode() for one in own.reason_codes]
    assert codes == [renamed_codes(one.decode()) for one in usual.reason_codes]
    assert {"SCORE_WATCH", "SCORE_ALARM"} <= set(codes)


def test_a_file_without_outcomes_has_the_default_words(tmp_path: Path) -> None:
    """And one that lists them is the same policy."""
    assert load(tmp_path, USUAL).outcomes == DEFAULT_OUTCOMES
    listed = f"outcomes: [approve, review, decline]\n{USUAL}"
    assert load(tmp_path, listed).outcomes == DEFAULT_OUTCOMES


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{watch: 0.3,", "{review: 0.3,", "thresholds.review: 'review' is none of"),
        ("{watch: 0.3, ", "{", "6: thresholds: watch is missing"),
        ("watch: 0.3,", "normal: 0.3,", "normal: normal is every score below watch"),
        ("watch: 0.3,", "watch: 0.9,", "0 <= watch 0.9 <= alarm 0.8 <= 1 is false"),
        ("output: watch", "output: review", "fallback.model_output: 'review' is none"),
        ("output: alarm", "output: x", "segments.hot.fallback.model_output: 'x' is"),
        ("at_least: watch, c", "at_least: b, c", "COLD_START.at_least: 'b' is none"),
        ("fallback: watch, c", "fallback: b, c", "FEED_STALE.fallback: 'b' is none"),
        ("at_least: alarm", "at_least: decline", "rules.burns.at_least: 'decline' is"),
        ("at_most: watch", "at_most: review", "rules.mild.at_most: 'review' is none"),
        (
            "before_model: normal",
            "before_model: ok",
            "rules.cold.before_model: 'ok' is",
        ),
        ("at_least: alarm", "at_least: normal", "rules.burns: changes nothing"),
        ("SCORE_WATCH: r, ", "", "no text for SCORE_WATCH"),
        ("SCORE_WATCH: r", "SCORE_REVIEW: r", "no text for SCORE_WATCH"),
        ("[normal, watch, alarm]", "[normal, alarm]", "2: outcomes: 2 words, not 3"),
        ("[normal, watch,", "[alarm, watch,", "a word stands there twice"),
        ("[normal, watch,", "[Normal, watch,", "'Normal' is not 1 to 32 of a to z"),
        ("[normal, watch,", "['', watch,", "'' is not 1 to 32 of a to z, 0 to 9"),
        ("[normal, watch,", "[errors, watch,", "errors is reserved"),
        ("[normal, watch,", "[no, watch,", "Expected `str`, got `bool`"),
    ],
)
def test_a_word_that_is_no_outcome_is_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    """In one line, with file, line, key, word and the valid words."""
    assert old in TEXT
    with pytest.raises(PolicyError) as caught:
        load(tmp_path, TEXT.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path}/policy.yaml: line ")
    assert words in str(caught.value)
    if "is none of" in str(caught.value):
        assert str(caught.value).endswith("is none of normal, watch, alarm")


def test_a_difference_is_in_the_words_of_the_files(tmp_path: Path) -> None:
    """A threshold that is left out, and other words."""
    documents = []
    for text in (TEXT, TEXT.replace(", alarm: 0.8}", "}"), USUAL):
        (tmp_path / "policy.yaml").write_text(text)
        documents.append(read_document(tmp_path / "policy.yaml").raw)
    own, never, usual = documents
    (one,) = compare(own, never)
    assert (one.where, one.words) == (
        "thresholds.alarm",
        "0.8: milder, no score gives alarm",
    )
    changes = {one.where: one.words for one in compare(usual, own)}
    assert changes["outcomes"] == (
        "[approve, review, decline] → [normal, watch, alarm]"
    )


def test_recorded_words_are_read_by_the_own_words_first() -> None:
    """Default words are read too: of a release that was unknown when sealed."""
    own = Outcomes(("review", "watch", "alarm"))
    assert own.levels == {"review": 0, "watch": 1, "alarm": 2, "approve": 0} | {
        "decline": 2
    }
