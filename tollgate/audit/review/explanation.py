"""Explain one decision: its rules, thresholds and feature contributions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import link_paths
from tollgate.audit.releases.archive import (
    ReleaseArchive,
    read_release_files,
    served_specs,
)
from tollgate.audit.releases.archived_release import (
    ArchivedRelease,
    newest_archived_release,
    outcomes_of,
)
from tollgate.audit.releases.journal_replay import facts_of
from tollgate.audit.releases.past_release import OpenedRelease, open_release
from tollgate.audit.releases.record_rows import SEQUENCE, WRITER, read_table
from tollgate.audit.review.list_text import ExplainedList, explain_list
from tollgate.audit.review.lookup import find_record
from tollgate.audit.review.pending import find_pending, pending_table
from tollgate.audit.review.reason_text import ReleaseExplainer
from tollgate.audit.review.record_text import (
    Description,
    describe_degraded,
    describe_reasons,
    describe_rules,
    moment,
)
from tollgate.audit.worker.pseudonyms import FILE, Subjects
from tollgate.engine.batches import decide_in_batches
from tollgate.errors import TollgateError
from tollgate.policy.reason_sentences import Reason
from tollgate.repository.releases.release_file import spec_hash_text
from tollgate.schema import DEFAULT_OUTCOMES, REASON_SEPARATOR, Decision, Outcomes

NO_CONSENT = "there was no consent to store its inputs"
RANKED = "its model scores items, not the request"


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
        ranked: List of a product that ranks items; None for another product.
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
    ranked: ExplainedList | None = None

    @property
    def level(self) -> int | None:
        """Return the level of the decision; None if it is none of the words."""
        return Outcomes(self.outcomes).levels.get(self.decision)

    @property
    def margin(self) -> float:
        """Return the margin of the score: expectation plus contributions."""
        return self.expected + math.fsum(one.amount for one in self.contributions)


def explain_sealed(
    decision: str,
    folder: Path,
    *,
    keys: Path,
    repository: Path | None,
    customer: str | None = None,
) -> ExplainedRecord:
    """
    Explain a decision of the sealed journal.

    Args:
        decision: Transaction id, or WRITER:NUMBER.
        keys: Folder of the subjects' keys; without them only records are found.
        repository: Model repository with the rest of the release; None for none.
        customer: Id of the customer of the purchase; without it every key is tried.

    Raises:
        InputError: The decision is not there, or its person was erased or gave no
            consent.
        JournalError: The journal cannot be read.
    """
    subjects = Subjects(keys) if (keys / FILE).exists() else None
    found = find_record(folder, decision, subjects=subjects, customer=customer)
    return explain_record(
        read_table(folder, found.link)[found.row : found.row + 1],
        place=f"link {found.link.number}, row {found.row}",
        product=found.link.product,
        archived=newest_archived_release(folder, found.values["release"]),
        repository=repository,
    )


def explain_pending(
    decision: str, url: str, *, folder: Path, product: str, repository: Path | None
) -> ExplainedRecord | None:
    """
    Explain a decision that is in the stream and not sealed yet; None if it is not.

    Args:
        decision: Transaction id, or WRITER:NUMBER.
        url: The Redis with the journal's stream.
        folder: Folder of the sealed journal, which may not exist yet.
        repository: Model repository with the release; None for none.

    Raises:
        InputError: The address is invalid, or a TLS file cannot be used.
        StoreError: Redis did not respond.
    """
    records = find_pending(url, product=product, wanted=decision)
    if records is None:
        return None
    specs = served_specs(repository, product) if repository else {}
    releases = archived = outcomes = None
    if repository:
        files = read_release_files(repository, records.release, product=product)
        outcomes = outcomes_of(files)
    if link_paths(folder):
        releases = ReleaseArchive(Chain(folder, product=product), repository=repository)
        archived = newest_archived_release(folder, records.release)
    return explain_record(
        pending_table(
            records,
            spec=specs.get(records.spec_hash),
            releases=releases,
            outcomes=outcomes or DEFAULT_OUTCOMES,
        ),
        place="the stream, not sealed yet",
        product=product,
        archived=archived,
        repository=repository,
    )


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
    ranked = explain_list(
        values, product=product, archived=archived, repository=repository
    )
    found = msgspec.structs.replace(found, ranked=ranked)
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
    if release.policy.ranking is not None:
        return msgspec.structs.replace(found, unexplained=RANKED)
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
