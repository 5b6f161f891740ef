"""What differs between two policies is said in words, by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.policy.policy_difference import compare
from tollgate.policy.policy_document import read_document

OLD = """
version: 1
product: toy
labels: [legitimate, fraud]
score: fraud
thresholds: {review: 0.3, decline: 0.8}
fallback: {model_output: review}
segments:
  - {name: new, when: {COLD_START: true}, thresholds: {review: 0.2, decline: 0.7}}
rules:
  - {name: big, owner: ops, when: {amount: {ge: 100}}, at_least: review, code: BIG}
  - {name: risky, owner: ops, when: {risk: {gt: 0.5}}, at_least: decline, code: RISKY}
  - {name: small, owner: care, when: {amount: {lt: 10}}, at_most: review, code: SMALL}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, BIG: b, RISKY: k,
  SMALL: s}
"""


def words(folder: Path, old: str, new: str) -> list[str]:
    """Compare two texts."""
    documents = []
    for name, text in (("old", old), ("new", new)):
        (folder / f"{name}.yaml").write_text(text)
        documents.append(read_document(folder / f"{name}.yaml").raw)
    return [f"{one.where}: {one.what}: {one.words}" for one in compare(*documents)]


def test_a_policy_is_itself(tmp_path: Path) -> None:
    """Comments, spacing and order of keys are no difference."""
    other = OLD.replace("owner: ops, when:", "owner:   ops,  when:  ") + "# said\n"
    assert words(tmp_path, OLD, other) == []


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (
            "review: 0.3",
            "review: 0.25",
            "thresholds.review: changed: 0.3 → 0.25: stricter",
        ),
        (
            "decline: 0.7",
            "decline: 0.75",
            "segments.new.thresholds.decline: changed: 0.7 → 0.75: milder",
        ),
        (
            "{ge: 100}",
            "{ge: 200}",
            "rules.big.when: changed: {amount: {ge: 100}} → {amount: {ge: 200}}",
        ),
        ("at_least: decline", "at_least: review", "rules.risky.at_least: changed: "),
        ("code: BIG}", "code: BIG, stop: true}", "rules.big.stop: changed: false → tr"),
        ("code: BIG}", "code: BIG, from: 2026-01-01}", "rules.big.from: added: 2026-0"),
        ("owner: care", "owner: ops", "rules.small.owner: changed: care → ops"),
        ("BIG: b", "BIG: large", "reasons.BIG: changed: b → large"),
        ("name: new", "name: fresh", "segments.new: removed: {when: {COLD_START: tru"),
        (
            "score: fraud",
            "score: {of: fraud, decimals: 2}",
            "score: changed: fraud → {of: fraud, decimals: 2}",
        ),
        (
            "COLD_START: true",
            "COLD_START: false",
            "segments.new.when: changed: {COLD_START: true} → {COLD_START: false}",
        ),
        (
            "rules:",
            "degraded: {FEED_STALE: none}\nrules:",
            "degraded.FEED_STALE: added: none",
        ),
    ],
)
def test_each_difference_is_named(
    tmp_path: Path, old: str, new: str, wanted: str
) -> None:
    """Key, what happened, and from what to what."""
    assert old in OLD
    found = words(tmp_path, OLD, OLD.replace(old, new, 1))
    assert found[0].startswith(wanted)


def test_a_rule_that_overtakes_another_has_moved(tmp_path: Path) -> None:
    """The last rule goes to the top: one move, and it says before what."""
    lines = OLD.splitlines()
    at = next(number for number, line in enumerate(lines) if "name: small" in line)
    lines.insert(at - 2, lines.pop(at))
    assert words(tmp_path, OLD, "\n".join(lines)) == [
        "rules.small: moved: is now before big, risky"
    ]
