"""A policy without a decline threshold never declines by score, not even 1."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from converters.purpose import purpose_of
from tests.support.products.committed_product import copy_product
from tollgate.audit.review.explanation import ExplainedRecord, Threshold
from tollgate.cli.app import app
from tollgate.cli.decisions.decision_commands import _print
from tollgate.errors import PolicyError
from tollgate.policy import Policy, RowFacts, decide, load_policy
from tollgate.policy.policy_difference import compare
from tollgate.policy.policy_document import read_document

pytestmark = pytest.mark.usefixtures("both_deciders")

MODELS = Path(__file__).resolve().parents[3] / "model_repository"
SPEC = MODELS / "fraud_features" / "1" / "features.yaml"
OLD = """
version: 1
product: toy
labels: [legitimate, fraud]
score: fraud
thresholds: {review: 0.3, decline: 1}
fallback: {model_output: review}
segments:
  - {name: big, when: {amount: {ge: 100}}, thresholds: {review: 0.2, decline: 0.7}}
rules:
  - {name: risky, owner: ops, when: {terminal_risk_1d: {gt: 0.5}}, at_least: decline,
     code: RISKY}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, RISKY: k}
"""
# Nobody is declined but by the rule, and by the segment where it has a threshold.
HALF = OLD.replace(", decline: 1}", "}")
NEVER = HALF.replace(", decline: 0.7}", "}").replace("SCORE_DECLINE: d, ", "")


def load(folder: Path, text: str) -> Policy:
    """Compile a text."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return load_policy(path, feature_names=("terminal_risk_1d",))


def decisions(policy: Policy, score: list[float], **row: float) -> list[int]:
    """Decide rows that differ in their score only."""
    chance = np.array(score, np.float32)
    rows = len(chance)
    facts = RowFacts(
        probabilities=np.stack([1 - chance, chance], axis=1),
        features=np.full((rows, 1), row.get("risk", 0), np.float32),
        cents=np.full(rows, round(row.get("amount", 1) * 100)),
        degraded=np.zeros(rows, np.uint32),
        event_time_us=np.zeros(rows, np.int64),
        list_hits=np.zeros(rows, np.uint32),
        fields={},
    )
    return decide(facts, policy=policy).decision.tolist()


SCORES = [0.0, float(np.nextafter(np.float32(0.3), np.float32(0))), 0.5, 0.9999999, 1.0]


def test_a_score_of_one_is_not_declined(tmp_path: Path) -> None:
    """A threshold of 1 declines it, as before; without a threshold nothing does."""
    assert decisions(load(tmp_path, OLD), SCORES) == [0, 0, 1, 1, 2]
    for text in (HALF, NEVER):
        assert decisions(load(tmp_path, text), SCORES) == [0, 0, 1, 1, 1]


def test_rules_and_segments_decline_as_they_say(tmp_path: Path) -> None:
    """A rule declines whatever the score; a segment may have a threshold of its own."""
    half, never = load(tmp_path, HALF), load(tmp_path, NEVER)
    assert decisions(never, [0.1], risk=1) == [2]
    assert decisions(half, SCORES, amount=100) == [0, 1, 1, 2, 2]
    assert decisions(never, SCORES, amount=100) == [0, 1, 1, 1, 1]
    assert half.score_cuts == (0.2, 0.3, 0.7)
    assert never.score_cuts == (0.2, 0.3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NEVER.replace("review: 0.3", "review: 1.3"), "0 <= review 1.3 <= 1 is false"),
        (NEVER.replace("review: 0.3", "review: .nan"), "0 <= review nan <= 1 is false"),
        (
            NEVER.replace("reasons: {", "reasons: {SCORE_DECLINE: d, "),
            "nothing gives the code SCORE_DECLINE",
        ),
        (OLD.replace("SCORE_DECLINE: d, ", ""), "no text for SCORE_DECLINE"),
        (HALF.replace("SCORE_DECLINE: d, ", ""), "no text for SCORE_DECLINE"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """In one line; a text for a code that cannot be given is one such thing."""
    with pytest.raises(PolicyError, match=words):
        load(tmp_path, text)


def test_a_difference_says_what_it_does(tmp_path: Path) -> None:
    """Taking the threshold away is milder; adding it is stricter."""
    documents = []
    for text in (OLD, HALF):
        (tmp_path / "policy.yaml").write_text(text)
        documents.append(read_document(tmp_path / "policy.yaml").raw)
    old, half = documents
    (one,) = compare(old, half)
    assert (one.where, one.what) == ("thresholds.decline", "removed")
    assert one.words == "1.0: milder, no score gives decline"
    (one,) = compare(half, old)
    assert (one.what, one.words) == ("added", "1.0: stricter")


def test_simulate_decides_by_it(tmp_path: Path) -> None:
    """A row of score 1 moves from decline to review; by a plain count."""
    new, old, rows = (tmp_path / name for name in ("n.yaml", "o.yaml", "rows.parquet"))
    new.write_text(NEVER.replace("product: toy", "product: fraud"))
    old.write_text(OLD.replace("product: toy", "product: fraud"))
    score = [0.1, 0.5, 1.0]
    table = {"score": score, "amount": [1.0] * 3, "terminal_risk_1d": [0.0] * 3}
    pl.DataFrame(table).write_parquet(rows)
    words = ["policy", "simulate", new, "--on", rows, "--spec", SPEC, "--against", old]
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert json.loads(done.stdout)["matrix"] == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    done = CliRunner().invoke(app, ["policy", "check", str(new), "--spec", str(SPEC)])
    assert (done.exit_code, "sound" in done.stdout) == (0, True)


def test_a_model_is_judged_at_the_thresholds_there_are(tmp_path: Path) -> None:
    """Conversion counts flips at 0.35 alone, and names two decisions."""
    models = tmp_path / "models"
    copy_product(models)
    path = models / "fraud_decision" / "1" / "policy.yaml"
    text = path.read_text()
    for part in ("  decline: 0.80\n", ", decline: 0.80", ", decline: 0.70"):
        assert part in text
        text = text.replace(part, "")
    line = next(one for one in text.splitlines() if "SCORE_DECLINE" in one)
    path.write_text(text.replace(f"{line}\n", ""))
    purpose = purpose_of(models, "fraud")
    assert purpose.thresholds == (0.25, 0.3, 0.35)
    assert purpose.levels.names == ("approve", "review")
    assert purpose.levels.thresholds == (0.35,)


def test_explain_says_that_no_score_declines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the line of the thresholds."""
    found = ExplainedRecord(
        record="w:1",
        place="here",
        release="toy-1",
        decided="2026-01-01T00:00:00Z",
        decision="review",
        score=1.0,
        codes=[],
        degraded=[],
        rules=[],
        threshold=Threshold("other", 0.3, None),
    )
    _print(found)
    text = capsys.readouterr().out
    assert (
        "thresholds of segment other: review from 0.3, no score gives decline" in text
    )
