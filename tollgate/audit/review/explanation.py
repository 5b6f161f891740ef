"""Explain one decision: its rules, thresholds and feature contributions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tollgate.audit.releases.archived_release import ArchivedRelease
from tollgate.audit.releases.journal_replay import facts_of
from tollgate.audit.releases.past_release import OpenedRelease, open_release
from tollgate.audit.releases.record_rows import SEQUENCE, WRITER
from tollgate.audit.review.reason_text import ReleaseExplainer
from tollgate.audit.review.record_text import (
    Description,
    describe_degraded,
    describe_reasons,
    describe_rules,
    moment,
)
from tollgate.engine.batches import decide_in_batches
from tollgate.errors import TollgateError
from tollgate.policy.reason_sentences import Reason
from tollgate.repository.releases.release_file import spec_hash_text
from tollgate.schema import DEFAULT_OUTCOMES, REASON_SEPARATOR, Decision, Outcomes

NO_CONSENT = "there was no consent to store its inputs"


class Contribution(msgspec.Struct, frozen=True):
    """Amount that one feature adds to the score's margin."""

    feature: str
    value: float
    amount: float


class Threshold(msgspec.Struct, frozen=True):
    """
    Thresholds of the row's segment, for the two severer levels.

    `decline` is None if no score reaches the severest one. `lower` is True if a lower
    score is worse.
    """

    segment: str
    review: float
    decline: float | None
    lower: bool = False


class ExplainedRecord(msgspec.Struct, frozen=True):
    """
    One decision with its explanation.

    Attributes:
        record: WRITER:NUMBER.
        place: Location where the record was found.
        release: Release that decided.
        decided: Time of the decision, UTC.
        decision: Decision as a word.
        score: Score; None without a usable one, or if a rule decided before the model.
        codes: Reason codes of the answer, with their texts.
        degraded: Degraded bits of the answer, described.
        rules: Rules that matched, with code and owner.
        threshold: Thresholds that applied; None if unknown, or if none did.
        unexplained: Reason for missing contributions; empty if there are some.
        expected: Margin of the score before any feature is known.
        contributions: Contributions by absolute size, largest first; empty, though
            explained, if a rule decided before the model.
        reasons: Reasons to report to a person; empty for the mildest decision.
        has_notice: True if the policy defines a notice.
        outcomes: Words of the release's decisions, the mildest first.
    """

    record: str
    place: str
    release: str
    decided: str
    decision: str
    score: float | None
    codes: list[Description]
    degraded: list[Description]
    rules: list[Description]
    threshold: Threshold | None = None
    unexplained: str = ""
    expected: float = 0.0
    contributions: list[Contribution] = []
    reasons: list[Reason] = []
    has_notice: bool = False
    outcomes: tuple[str, str, str] = DEFAULT_OUTCOMES.words

    @property
    def level(self) -> int | None:
        """Return the level of the decision; None if it is none of the words."""
        return Outcomes(self.outcomes).levels.get(self.decision)

    @property
    def margin(self) -> float:
        """Return the margin of the score: expectation plus contributions."""
        return self.expected + math.fsum(one.amount for one in self.contributions)


def explain_record(
    row: pl.DataFrame,
    *,
    place: str,
    product: str,
    archived: ArchivedRelease | None,
    repository: Path | None,
) -> ExplainedRecord:
    """
    Explain a decision.

    Args:
        archived: Release as archived in the journal; None if it was not archived.
        repository: Model repository with the rest of the release; None for none.
    """
    values = row.row(0, named=True)
    found = _plain(values, place, archived)
    if not values["consent"]:
        return msgspec.structs.replace(found, unexplained=NO_CONSENT)
    try:
        release = open_release(
            found.release, archived=archived, repository=repository, product=product
        )
    except TollgateError as exc:
        return msgspec.structs.replace(found, unexplained=str(exc))
    if values["spec"] != spec_hash_text(release.spec.spec_hash):
        problem = f"its features are not those of release {release.name}"
        return msgspec.structs.replace(found, unexplained=problem)
    found = _with_policy(found, values, row, release)
    try:
        return _with_contributions(found, values, row, ReleaseExplainer(release))
    except TollgateError as exc:
        return msgspec.structs.replace(found, unexplained=str(exc))


def _plain(
    values: dict[str, Any], place: str, archived: ArchivedRelease | None
) -> ExplainedRecord:
    score = values["score"]
    outcomes = (archived and archived.outcomes) or DEFAULT_OUTCOMES
    return ExplainedRecord(
        record=f"{values[WRITER]}:{values[SEQUENCE]}",
        place=place,
        release=values["release"],
        decided=moment(values["decided_at"]),
        decision=values["decision"],
        score=None if score is None or math.isnan(score) else score,
        codes=describe_reasons(values, archived),
        degraded=describe_degraded(values),
        rules=describe_rules(values, archived),
        outcomes=outcomes.words,
    )


def _with_policy(
    found: ExplainedRecord,
    values: dict[str, Any],
    row: pl.DataFrame,
    release: OpenedRelease,
) -> ExplainedRecord:
    """Add the rules and the thresholds that applied, as the policy evaluates them."""
    policy = release.policy
    decided = decide_in_batches(facts_of(row, release.spec), policy=policy).decisions
    at = int(decided.segment[0])
    levels = policy.thresholds[at]
    threshold = Threshold(
        policy.segments[at],
        levels.review,
        levels.decline,
        lower=policy.score.sign < 0,
    )
    return msgspec.structs.replace(
        found,
        codes=[
            Description(code, policy.reasons.get(code, ""))
            for code in _codes(values)
            if code
        ],
        rules=[
            Description(rule.name, policy.codes[rule.code], f"owner: {rule.owner}")
            for bit, rule in enumerate(policy.rules)
            if values["rules"] >> bit & 1
        ],
        threshold=None if policy.unscored(decided.rules)[0] else threshold,
        has_notice=policy.notice is not None,
        outcomes=policy.outcomes.words,
    )


def _with_contributions(
    found: ExplainedRecord,
    values: dict[str, Any],
    row: pl.DataFrame,
    explainer: ReleaseExplainer,
) -> ExplainedRecord:
    facts = facts_of(row, explainer.spec)
    exact, (amounts,) = explainer.explain(facts)
    if not exact[0]:
        problem = "the record's probabilities are not those of the release's model"
        return msgspec.structs.replace(found, unexplained=problem)
    scored = not np.isnan(facts.probabilities).all()
    order = np.argsort(-np.abs(amounts), kind="stable").tolist()
    names = explainer.spec.feature_names
    return msgspec.structs.replace(
        found,
        expected=explainer.expected if scored else 0.0,
        contributions=[
            Contribution(names[at], float(facts.features[0, at]), float(amounts[at]))
            for at in (order if scored else ())
        ],
        reasons=[]
        if found.level == Decision.APPROVE
        else list(explainer.reasons(_codes(values), amounts)),
    )


def _codes(values: dict[str, Any]) -> list[str]:
    return [one for one in values["reason_codes"].split(REASON_SEPARATOR) if one]
