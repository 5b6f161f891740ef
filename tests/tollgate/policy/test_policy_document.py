"""A policy.yaml that cannot be meant is refused by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import PolicyError
from tollgate.policy import Policy, load_policy
from tollgate.schema import DeclaredField

POLICY = Path(__file__).parents[3] / "model_repository/fraud_decision/1/policy.yaml"
NAMES = ("amount", "terminal_risk_1d", "terminal_risk_7d")

BREAKS = {
    "no_yaml": ("version: 1", "version: [", "policy.yaml: "),
    "unknown_key": ("labels:", "lables:", "unknown field `lables`"),
    "version": ("version: 1", "version: 2", "version: 2 is not 1"),
    "score": ("score: fraud", "score: frod", "score: 'frod' is none of"),
    "descending": ("decline: 0.80", "decline: 0.10", "thresholds: 0 <= review 0.35"),
    "level": (
        "model_output: review",
        "model_output: maybe",
        "'maybe' is none of approve",
    ),
    "field": ("amount: {ge: 1000}", "amont: {ge: 1000}", "'amont' is no field"),
    "operator": ("amount: {ge: 1000}", "amount: {over: 1000}", "when.amount.over: is"),
    "bit": ("COLD_START: true", "COLD_START: {ge: 1}", "COLD_START is a bit"),
    "number": ("amount: {ge: 1000}", "amount: true", "amount is a number"),
    "both": (
        "at_most: review",
        "at_most: review\n    at_least: review",
        "never_decline_small: needs exactly one of at_least, at_most, before_model",
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


# What a policy may say beyond the committed one; each break of it is one line.
FULL = """\
version: 1
product: toy
labels: [fine, stolen, abuse]
score: {weights: {stolen: 1, abuse: 0.5}, decimals: 3}
thresholds: {review: 0.3, decline: 0.8}
fallback: {model_output: review, sum_within: 0.01}
lists:
  - {name: denied, of: customer_id, meaning: deny}
  - {name: trusted, of: customer_id, meaning: allow}
segments:
  - name: new
    when: {COLD_START: true}
    thresholds: {review: 0.2, decline: 0.6}
  - name: large
    when: {COLD_START: false, amount: {ge: 1000}}
    thresholds: {review: 0.1, decline: 0.7}
    fallback: {model_output: decline}
degraded:
  STORE_UNAVAILABLE: {fallback: review, code: BLIND}
  FEED_STALE: {at_least: review, code: STALE}
  WINDOW_OVERFLOW: none
rules:
  - name: stolen_card
    owner: ops
    when: {denied: true}
    at_least: decline
    code: DENIED
    stop: true
  - name: far
    owner: ops
    when: {distance: {gt: 100}, channel: [web, app]}
    at_least: review
    code: FAR
    from: 2026-01-01
    until: 2026-06-01T00:00:00Z
    segments: [large, other]
  - name: known
    owner: care
    when: {trusted: true, score: {lt: 0.9}}
    at_most: review
    code: KNOWN
contributions: {risk: RISKY}
journal: {consent: channel}
idempotency: {window: 1h}
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, BLIND: b, STALE: s,
  DENIED: d, FAR: f, KNOWN: k, RISKY: i}
"""
FIELDS = (
    DeclaredField("distance", "number", 1),
    DeclaredField("channel", "category", vocabulary=("web", "app", "shop")),
)

LINES = {
    "key twice": (
        "thresholds: {rev",
        "version: 1\nthresholds: {rev",
        "5: version stands",
    ),
    "no mapping": (FULL, "- 1", "1: Expected `object`, got `array`"),
    "label twice": (
        "fine, stolen",
        "stolen, stolen",
        "3: labels.1: stolen stands there",
    ),
    "weight of no label": ("{stolen: 1,", "{stole: 1,", "4: score.weights: 'stole' is"),
    "weight": ("abuse: 0.5", "abuse: 1.5", "4: score.weights.abuse: 1.5 is not within"),
    "decimals": ("decimals: 3", "decimals: 0", "4: score.decimals: 0 is not within 1"),
    "of and weights": ("score: {", "score: {of: fine, ", "4: score: needs exactly one"),
    "sum": ("within: 0.01", "within: 0", "6: fallback.sum_within: 0.0 is not within"),
    "list of nothing": ("of: customer_id", "of: card", "8: lists.denied.of: 'card' is"),
    "list's name": (
        "name: denied",
        "name: amount",
        "8: lists.amount: is the name of so",
    ),
    "list's form": (
        "name: denied",
        "name: de-nied",
        "8: lists.de-nied.name: 'de-nied'",
    ),
    "list without rule": (
        "{denied: true}",
        "{risk: {ge: 1}}",
        "8: lists.denied: is look",
    ),
    "list turned around": (
        "at_least: decline",
        "at_most: approve",
        "25: rules.stolen_card.when.denied: denied is a list to deny: at_most turns",
    ),
    "segment of the score": (
        "amount: {ge: 1000}",
        "score: {ge: 0.5}",
        "15: segments.large.when.score: chooses the thresholds",
    ),
    "segments overlap": (
        "COLD_START: false, amount",
        "amount",
        "14: segments.large: overlaps new of line 11",
    ),
    "bands overlap": (
        "{COLD_START: true}",
        "{amount: {ge: 999.99, lt: 1000.01}}",
        "14: segments.large: overlaps new of line 11",
    ),
    "segment twice": ("name: large", "name: new", "14: segments.new: appears twice"),
    "segment other": (
        "name: large",
        "name: other",
        "14: segments.other: other are the",
    ),
    "segment's thresholds": (
        "review: 0.2",
        "review: 0.7",
        "13: segments.new.thresholds",
    ),
    "empty segment": (
        "amount: {ge: 1000}",
        "amount: {ge: 10000001}",
        "15: segments.large.when.amount: can never hold",
    ),
    "no bit": (
        "WINDOW_OVERFLOW",
        "WINDOW_OVERFLOWN",
        "21: degraded.WINDOW_OVERFLOWN: is",
    ),
    "bit of the model": (
        "WINDOW_OVERFLOW",
        "MODEL_OUTPUT",
        "21: degraded.MODEL_OUTPUT: is decided by fallback.model_output",
    ),
    "essential ignored": (
        "WINDOW_OVERFLOW",
        "ESSENTIAL_MISSING",
        "21: degraded.ESSENTIAL_MISSING: is at_least review or decline",
    ),
    "bit means nothing": (
        "{at_least: review, code: STALE}",
        "{at_least: approve, code: STALE}",
        "20: degraded.FEED_STALE: changes nothing: write none",
    ),
    "bit means two things": (
        "{at_least: review, code: STALE}",
        "{at_least: review, fallback: review, code: STALE}",
        "20: degraded.FEED_STALE: needs exactly one of at_least, fallback",
    ),
    "two bounds of nothing": (
        "distance: {gt: 100}",
        "distance: {gt: 100, lt: 100.1}",
        "31: rules.far.when.distance: can never hold",
    ),
    "no cents between": (
        "{denied: true}",
        "{denied: true, amount: {gt: 9.99, lt: 10}}",
        "25: rules.stolen_card.when.amount: can never hold",
    ),
    "score above one": (
        "score: {lt: 0.9}",
        "score: {gt: 1}",
        "39: rules.known.when.score: can never hold",
    ),
    "score where none is used": (
        "score: {lt: 0.9}",
        "score: {lt: 0.9}, STORE_UNAVAILABLE: true",
        "39: rules.known.when.score: can never hold: with STORE_UNAVAILABLE no score",
    ),
    "stopped by one before": (
        "when: {distance: {gt: 100}, channel",
        "when: {denied: true, channel",
        "29: rules.far: is never reached: stopped by stolen_card",
    ),
    "not in its segments": (
        "when: {distance: {gt: 100}, channel: [web, app]}",
        "when: {COLD_START: true}",
        "36: rules.far.segments: never holds in other, large",
    ),
    "no such segment": (
        "[large, other]",
        "[larg]",
        "36: rules.far.segments: 'larg' is",
    ),
    "no segment": ("[large, other]", "[]", "36: rules.far.segments: is empty"),
    "until before from": (
        "2026-06-01T00:00:00Z",
        "2025-06-01",
        "35: rules.far.until: 2025-06-01 is not after 2026-01-01",
    ),
    "no time": ("from: 2026-01-01", "from: tomorrow", "34: rules.far.from: 'tomorrow'"),
    "no day": (
        "from: 2026-01-01",
        "from: 2026-02-30",
        "34: rules.far.from: '2026-02-30",
    ),
    "no zone": (
        "2026-06-01T00:00:00Z",
        "2026-06-01 00:00:00",
        "35: rules.far.until: '2026-06-01 00:00:00' is no time",
    ),
    "raises to the least": (
        "at_least: decline",
        "at_least: approve",
        "23: rules.stolen",
    ),
    "empty when": ("{denied: true}", "{}", "25: rules.stolen_card.when: is empty"),
    "no such word": (
        "[web, app]",
        "[web, ap]",
        "31: rules.far.when.channel: 'ap' is no",
    ),
    "no word": ("[web, app]", "[]", "31: rules.far.when.channel: is a category: write"),
    "bounds of a word": (
        "[web, app]",
        "{ge: 1}",
        "31: rules.far.when.channel: is a cat",
    ),
    "list is no number": (
        "{denied: true}",
        "{denied: {ge: 1}}",
        "25: rules.stolen_card",
    ),
    "missing amount": (
        "distance: {gt: 100}",
        "amount: {missing: true}",
        "31: rules.far.when.amount: only a declared field can be missing",
    ),
    "not a number": (
        "gt: 100",
        "gt: far",
        "31: rules.far.when.distance.gt: 'far' is not",
    ),
    "infinite": (
        "gt: 100",
        "gt: .inf",
        "31: rules.far.when.distance.gt: inf is not fin",
    ),
    "no feature": (
        "{risk: RISKY}",
        "{rsk: RISKY}",
        "42: contributions.rsk: is no featur",
    ),
    "consent": (
        "consent: channel",
        "consent: mail",
        "43: journal.consent: 'mail' is no",
    ),
    "window": (
        "window: 1h",
        "window: soon",
        "44: idempotency.window: 'soon' is no time",
    ),
}


def load_full(folder: Path, text: str) -> Policy:
    """Compile a policy with everything in it."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return load_policy(
        path,
        feature_names=("amount", "risk"),
        fields=FIELDS,
        id_names=("transaction_id", "customer_id"),
    )


def test_a_policy_may_say_all_of_it(tmp_path: Path) -> None:
    """It compiles, and keeps what others ask it for."""
    policy = load_full(tmp_path, FULL)
    assert policy.segments == ("other", "new", "large")
    assert [one.fallback for one in policy.thresholds] == [1, 1, 2]
    assert [(one.name, one.of) for one in policy.lists] == [
        ("denied", "customer_id"),
        ("trusted", "customer_id"),
    ]
    assert policy.codes[4:] == ("BLIND", "STALE", "DENIED", "FAR", "KNOWN")
    assert policy.contributions == {"risk": "RISKY"}
    assert (policy.consent, policy.idempotency_s) == ("channel", 3600)
    assert policy.score_cuts == (0.1, 0.2, 0.3, 0.6, 0.7, 0.8, 0.9)


@pytest.mark.parametrize("name", LINES)
def test_a_broken_policy_names_the_line(name: str, tmp_path: Path) -> None:
    """One change; file, line, key, and what is wrong, in one line."""
    old, new, words = LINES[name]
    assert old in FULL
    with pytest.raises(PolicyError) as caught:
        load_full(tmp_path, FULL.replace(old, new, 1))
    assert str(caught.value).startswith(f"{tmp_path / 'policy.yaml'}: line {words}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "item", "most"),
    [
        ("rules", "{{name: r{0}, owner: o, when: {{risk: {{ge: {0}}}}}, code: C}}", 64),
        ("lists", "{{name: l{0}, of: customer_id, meaning: deny}}", 32),
    ],
)
def test_there_are_no_more_than_fit_a_record(
    part: str, item: str, most: int, tmp_path: Path
) -> None:
    """The bits of rules and lists are numbered; one more is named by its line."""
    rules = [
        f"{{name: l{at}r, owner: o, when: {{l{at}: true}}, code: C, at_least: review}}"
        for at in range(most + 1)
    ]
    if part == "rules":
        rules = [item.format(at)[:-1] + ", at_least: review}" for at in range(most + 1)]
    lists = [item.format(at) for at in range(most + 1)] if part == "lists" else []
    text = [
        "version: 1",
        "product: toy",
        "labels: [fine, stolen]",
        "score: stolen",
        "thresholds: {review: 0.3, decline: 0.8}",
        "fallback: {model_output: review}",
        "reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r, C: c}",
        f"{part}:",
        *(f"  - {one}" for one in (lists or rules)),
        *(["rules:", *(f"  - {one}" for one in rules)] if lists else []),
    ]
    with pytest.raises(
        PolicyError, match=rf"line {most + 9}.*{most} {part} are allowed"
    ):
        load_full(tmp_path, "\n".join(text))
