"""
Read the notice of an adverse action, and refuse sensitive inputs.

A notice states the specific principal reasons (12 CFR 1002.9(b)(2)): the factors that
were scored and counted most, at most four of them, with no principal one left out. A
missed score or a missed standard of the lender is not such a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tollgate.policy.lines import Place
from tollgate.policy.policy_definition import Notice
from tollgate.policy.policy_document import Document

MOST_REASONS = 4


def read_notice(document: Document, feature_names: Collection[str]) -> Notice | None:
    """
    Read the content of a notice.

    Raises:
        PolicyError: More than four reasons, an unknown code, a feature without a code.
    """
    raw = document.raw.notice
    if raw is None:
        return None
    if not 1 <= raw.most <= MOST_REASONS:
        problem = f"{raw.most} is not within 1 … {MOST_REASONS}"
        document.refuse(("notice", "most"), problem)
    mapped = document.raw.contributions
    for code in raw.never:
        if code not in document.raw.reasons:
            document.refuse(("notice", "never"), f"{code} is no code of this policy")
        if code in mapped.values():
            problem = (
                f"{code} is reported for a feature, which may be a principal reason"
            )
            document.refuse(("notice", "never"), problem)
    for name in sorted(feature_names):
        if name not in mapped:
            problem = f"{name} has no code: it could be a reason that is not reported"
            document.refuse(("contributions",), problem)
    return Notice(most=raw.most, never=frozenset(raw.never))


def refuse_sensitive(document: Document, inputs: Iterable[str]) -> tuple[str, ...]:
    """
    Return the attributes that must not influence decisions.

    Args:
        document: The policy.
        inputs: Names of features, fields and ids.

    Raises:
        PolicyError: One of these is an input.
    """
    known = {one.lower() for one in inputs}
    for at, name in enumerate(document.raw.sensitive):
        if name.lower() in known:
            place: Place = ("sensitive", at)
            document.refuse(place, f"{name} is an input of the product; none may be")
    return tuple(document.raw.sensitive)
