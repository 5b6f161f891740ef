"""Describe a record for a human reviewer, as texts and as an HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.audit.releases.archived_release import ArchivedRelease
from tollgate.audit.releases.record_rows import (
    FEATURE,
    FIELD,
    PROBABILITY,
    SEQUENCE,
    SUBJECT,
    WRITER,
)
from tollgate.audit.review.list_text import ExplainedList
from tollgate.audit.review.lookup import SealedRecord
from tollgate.engine.hysteresis_stage import EVIDENCE_FIELDS
from tollgate.features.fields import hash_words
from tollgate.features.spec.description import feature_text, window_text
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.policy.hysteresis import Kind, unpack_evidence
from tollgate.repository.models.artifact_file import Distribution, Training
from tollgate.schema import (
    DEFAULT_OUTCOMES,
    REASON_SEPARATOR,
    Applied,
    Degraded,
    floats_at,
)
from tollgate.templating import render

DEGRADED_TEXTS = {
    Degraded.STORE_UNAVAILABLE: "The store gave no answer in time: some features are "
    "their declared defaults.",
    Degraded.LAST_KNOWN_VECTOR: "The store gave no answer in time: some features come "
    "from the last known values.",
    Degraded.COLD_START: "One of the row's ids was never seen before.",
    Degraded.EVENT_TOO_LATE: "The row was older than the stored events: it was "
    "scored and not applied, or the store no longer has its windows as of its time.",
    Degraded.WINDOW_OVERFLOW: "More events happened than the store holds: windows "
    "are too small.",
    Degraded.STATE_CORRUPT: "A stored value was damaged: its features are their "
    "defaults.",
    Degraded.MODEL_OUTPUT: "The model's output was no probability: the policy's "
    "fallback decided.",
    Degraded.ESSENTIAL_MISSING: "An essential feature was missing or too old: at least "
    "a review.",
    Degraded.FEED_STALE: "A feed was older than it may be.",
    Degraded.FIELD_MISSING: "A declared field was left out, or has a value that "
    "training did not know.",
    Degraded.LOOKUPS_UNREAD: "Lists and stored decisions could not be read.",
    Degraded.TABLE_MISSING: "A table had no number that holds for this row.",
    Degraded.HOOK_FAILED: "The product's own code failed for this row: its features "
    "are their defaults.",
    Degraded.HYSTERESIS_UNREAD: "The state of hysteresis could not be read: the answer "
    "is the level of this row alone.",
}
APPLIED_TEXTS = {
    Applied.NO: "no",
    Applied.YES: "yes",
    Applied.UNKNOWN: "unknown: the connection to the store was lost",
    Applied.DUPLICATE: "it had been applied before",
}
OWN_REASONS = {"ESSENTIAL_MISSING": "Data this decision needs is missing or too old."}
NO_TEXT = "The archived policy has no text for this code."


class Description(msgspec.Struct, frozen=True):
    """
    A feature, input or code, described for display.

    Attributes:
        meaning: Description; empty if unknown.
        place: Position among the training values, from 0 to 1; None if unknown.
        outside: True if the value lies outside of the training range.
    """

    name: str
    value: str
    meaning: str = ""
    place: float | None = None
    outside: bool = False


def describe_features(
    values: dict[str, Any], archived: ArchivedRelease | None
) -> list[Description]:
    """Describe the feature vector that was scored."""
    spec = archived.spec if archived else None
    known = {one.name: one for one in spec.features} if spec else {}
    training = archived.training if archived and archived.training else Training()
    descriptions = []
    for column, value in values.items():
        if not column.startswith(FEATURE) or value is None:
            continue
        name = column[len(FEATURE) :]
        meaning = ""
        if spec is not None and name in known:
            parts = (feature_text(known[name], spec), window_text(known[name], spec))
            meaning = ", ".join(part for part in parts if part)
        known_range = training.features.get(name, Distribution())
        place = place_among(value, known_range, training.quantiles)
        descriptions.append(
            Description(
                name=name,
                value=f"{value:,.6g}",
                meaning=meaning,
                place=None if math.isnan(place) else min(1.0, max(0.0, place)),
                outside=place in (-1.0, 2.0),
            )
        )
    return descriptions


def place_among(value: float, known: Distribution, levels: Sequence[float]) -> float:
    """
    Return the share of training values below a value, by their quantiles.

    Args:
        levels: Levels of the quantiles, ascending from 0 to 1.

    Returns:
        0 to 1; -1 below and 2 above all of them; NaN if nothing is known.
    """
    pairs = [
        (level, one)
        for level, one in zip(levels, known.quantiles, strict=False)
        if one is not None
    ]
    if len(pairs) < 2 or value != value:
        return math.nan
    values = [np.float32(one) for _, one in pairs]
    if value < values[0]:
        return -1.0
    if value > values[-1]:
        return 2.0
    below = [level for level, one in pairs if np.float32(one) < value]
    above = [level for level, one in pairs if np.float32(one) > value]
    # The middle between its neighbours' levels, or between the levels around values
    # equal to it.
    return (max(below, default=0.0) + min(above, default=1.0)) / 2


def describe_inputs(
    values: dict[str, Any], archived: ArchivedRelease | None
) -> list[Description]:
    """Describe the inputs of the request."""
    descriptions = []
    if has_money(values, archived):
        descriptions.append(
            Description("amount", f"{values['amount_cents'] / 100:,.2f}")
        )
    if values["event_time"] is not None:
        descriptions.append(Description("event time", moment(values["event_time"])))
        descriptions.append(
            Description("transaction", values["transaction"], "a pseudonym")
        )
    evidence = [values.get(f"{FIELD}{name}") for name in EVIDENCE_FIELDS]
    if None not in evidence:
        outcomes = (archived and archived.outcomes) or DEFAULT_OUTCOMES
        text = evidence_text(np.array([evidence], np.int64), words=outcomes.words)
        descriptions.append(Description("hysteresis", text, "before this row"))
    for column, value in values.items():
        if column.removeprefix(FIELD) in EVIDENCE_FIELDS:
            continue
        if column.startswith(SUBJECT) and value is not None:
            descriptions.append(
                Description(column[len(SUBJECT) :], value, "a pseudonym")
            )
        elif column.startswith(FIELD) and value is not None:
            name = column[len(FIELD) :]
            spec = archived.spec if archived else None
            descriptions.append(
                Description(name, field_text(name, value, spec), "a declared field")
            )
    hits = values["list_hits"]
    if hits:
        names = (
            [one.name for one in archived.policy.lists]
            if archived and archived.policy
            else []
        )
        descriptions.append(
            Description("on lists", ", ".join(bits_named(hits, names, "list")))
        )
    return descriptions


def evidence_text(columns: npt.NDArray[np.int64], *, words: Sequence[str]) -> str:
    """
    Describe the evidence of one row that hysteresis decided on.

    Args:
        columns: int64 [1, 3].
        words: Words of the product's decisions, the mildest first.
    """
    ((level, one),) = unpack_evidence(columns)
    text = f"level of this row: {words[level]}"
    if one.kind is Kind.SKIPPED:
        return f"{text}; not counted"
    if one.kind is Kind.REPEATED:
        return f"{text}; repeated, with its answer {words[one.answered]}"
    text += f"; level before: {words[one.before]}"
    if one.kind is Kind.LATE:
        return f"{text}; older than the newest rows"
    if one.before:
        text += f", for {one.since_onset_us / 1e6:,.6g} s"
    elif one.since_end_us >= 0:
        text += f", the last one ended {one.since_end_us / 1e6:,.6g} s before"
    return (
        f"{text}; other newest rows from {words[1]} on: {one.ones}, "
        f"from {words[2]} on: {one.twos}"
    )


def has_money(values: dict[str, Any], archived: ArchivedRelease | None) -> bool:
    """Return whether a record has an amount, by its consent and its features.yaml."""
    spec = archived.spec if archived else None
    return values["amount_cents"] is not None and (spec is None or spec.amount)


def field_text(name: str, value: int, spec: FeatureSpec | None) -> str:
    """Format a declared field as it was sent, as far as possible."""
    if value == MISSING:
        return "not sent"
    found = [one for one in spec.fields if one.name == name] if spec else []
    if not found:
        return f"{value} (its declaration was not archived)"
    decimals = found[0].decimals
    if found[0].type != "category" and decimals is None:
        return repr(float(floats_at(np.array([value]))[0]))
    if found[0].type != "category":
        return f"{value / 10 ** (decimals or 0):.{decimals}f}"
    words = found[0].vocabulary
    for word, known in zip(
        words, hash_words([one.encode() for one in words]).tolist(), strict=True
    ):
        if known == value:
            return word
    return "a word that is not in the vocabulary"


def describe_reasons(
    values: dict[str, Any], archived: ArchivedRelease | None
) -> list[Description]:
    """Describe the reason codes of the answer."""
    policy = archived.policy if archived else None
    texts = OWN_REASONS | (policy.reasons if policy else {})
    codes = [one for one in values["reason_codes"].split(REASON_SEPARATOR) if one]
    return [Description(code, texts.get(code, NO_TEXT)) for code in codes]


def describe_rules(
    values: dict[str, Any], archived: ArchivedRelease | None
) -> list[Description]:
    """Describe the rules that matched."""
    rules = archived.policy.rules if archived and archived.policy else ()
    descriptions = []
    for at in range(64):
        if values["rules"] >> at & 1:
            if at < len(rules):
                one = rules[at]
                descriptions.append(
                    Description(one.name, one.code, f"owner: {one.owner}")
                )
            else:
                descriptions.append(
                    Description(f"rule {at + 1}", "", "not in the archived policy")
                )
    return descriptions


def describe_degraded(values: dict[str, Any]) -> list[Description]:
    """Describe the degraded bits of the answer."""
    bits = values["degraded"]
    descriptions = [
        Description(bit.name or "", words)
        for bit, words in DEGRADED_TEXTS.items()
        if bits & bit
    ]
    rest = bits & ~sum(DEGRADED_TEXTS)
    return descriptions + (
        [Description(f"bits {rest:#x}", "Unknown to this Tollgate.")] if rest else []
    )


def bits_named(bits: int, names: list[str], what: str) -> list[str]:
    """Return the names of the bits that are set."""
    return [
        names[at] if at < len(names) else f"{what} {at + 1}"
        for at in range(64)
        if bits >> at & 1
    ]


def moment(value: Any) -> str:
    """Format a time to the millisecond, UTC."""
    return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d} UTC"


def decision_page(
    found: SealedRecord,
    archived: ArchivedRelease | None,
    *,
    ranked: ExplainedList | None = None,
) -> str:
    """
    Return a decision as a static HTML document without scripts or other files.

    Args:
        ranked: List of a product that ranks items; None for another product.
    """
    values = found.values
    return render(
        "tollgate/audit/templates/decision.html.j2",
        {
            "product": found.link.product,
            "record": f"{values[WRITER]}:{values[SEQUENCE]}",
            "decision": values["decision"],
            "tone": _tone(values, archived),
            "decided_at": moment(values["decided_at"]),
            "figures": _figures(values, archived),
            "values": values,
            "reasons": describe_reasons(values, archived),
            "rules": describe_rules(values, archived),
            "contributions": [
                one for one in found.reasons if one.contribution is not None
            ],
            "unexplained": _unexplained(found),
            "ranked": ranked,
            "inputs": describe_inputs(values, archived),
            "features": describe_features(values, archived),
            "labels": archived.policy.labels if archived and archived.policy else (),
            "probabilities": [
                value
                for name, value in values.items()
                if name.startswith(PROBABILITY) and value is not None
            ],
            "degraded": describe_degraded(values),
            "flags": [Description(check, detail) for check, detail in found.flags],
            "link": found.link,
            "row": found.row,
            "proof": found.evidence,
        },
    )


def _tone(values: dict[str, Any], archived: ArchivedRelease | None) -> str:
    """Return the CSS class for the level of the decision; empty if it is unknown."""
    outcomes = (archived and archived.outcomes) or DEFAULT_OUTCOMES
    level = outcomes.levels.get(values["decision"])
    return "" if level is None else ("mild", "middle", "severe")[level]


def _figures(
    values: dict[str, Any], archived: ArchivedRelease | None
) -> list[tuple[str, str]]:
    """Return the key figures at the top of the page."""
    score = values["score"]
    figures = [
        ("Score", "none" if score is None or score != score else f"{score:.4f}"),
        ("Release", values["release"]),
        ("Event applied", APPLIED_TEXTS[Applied(values["applied"])]),
        ("Stored for training", "yes" if values["consent"] else "no consent"),
    ]
    if has_money(values, archived):
        figures.insert(1, ("Amount", f"{values['amount_cents'] / 100:,.2f}"))
    return figures


def _unexplained(found: SealedRecord) -> str:
    """Return why no feature is listed that raised the score."""
    if found.reasons:
        return "No feature did: the codes above are the only reasons."
    return found.unexplained or "Not computed yet."
