"""List the reason codes that a decision may have, in order, with their texts."""

from __future__ import annotations

from tollgate.policy.definition import ESSENTIAL_MISSING, OWN_CODES, SCORE_DECLINE
from tollgate.policy.document import Document, RawMeaning
from tollgate.schema import REASON_SEPARATOR

# The decision step gives this code with any policy, so a policy need not declare it:
# features.yaml declares the essential features, and an older policy stays valid when it
# does.
_BUILT_IN = {ESSENTIAL_MISSING: "Data this decision needs is missing or too old."}
_MAX_CODES = 63  # codes are bits of one integer


def name_codes(document: Document) -> tuple[str, ...]:
    """
    List the codes of a decision: our own, those of degraded bits, those of rules.

    Raises:
        PolicyError: A code has no text, a text no code, or there are too many.
    """
    raw = document.raw
    places = {
        one.code: ("degraded", bit, "code")
        for bit, one in raw.degraded.items()
        if isinstance(one, RawMeaning)
    }
    declared = list(dict.fromkeys([*OWN_CODES, *places]))
    declared += [one.code for one in raw.rules if one.code not in declared]
    codes = list(dict.fromkeys(declared))
    if len(codes) > _MAX_CODES:
        document.refuse(("rules",), f"{len(codes)} codes, {_MAX_CODES} are allowed")
    reported = dict.fromkeys([*codes, *raw.contributions.values()])
    limits = [raw.thresholds, *(one.thresholds for one in raw.segments)]
    if all(one.decline is None for one in limits):
        del reported[SCORE_DECLINE]  # stays among the codes, but is never given
    for code in reported:
        if code not in raw.reasons | _BUILT_IN:
            document.refuse(("reasons",), f"no text for {code}")
        if REASON_SEPARATOR in code:
            document.refuse(("reasons", code), f"{code} holds a {REASON_SEPARATOR}")
    for code in raw.reasons:
        if code not in reported:
            document.refuse(("reasons", code), f"nothing gives the code {code}")
    return tuple(codes)


def name_reasons(document: Document) -> dict[str, str]:
    """Map each code to its text."""
    return _BUILT_IN | document.raw.reasons
