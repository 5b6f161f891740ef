"""
Write an adverse action notice: the action, and its principal reasons.

The notice holds only facts of the decision itself. The lender adds its own name, a
contact, and the rights that the law gives an applicant.
"""

from __future__ import annotations

from tollgate.audit.review.explanation import ExplainedRecord
from tollgate.errors import JournalError

# Sentences for the default words; other products get their own word in the sentence.
_ACTION = {
    "decline": "Your application was declined.",
    "review": "Your application was not approved at once; a person looks at it.",
}
_OTHER_ACTION = "The decision on your application: {word}."


def notice_text(found: ExplainedRecord, *, application: str) -> str:
    """
    Return the notice as plain text.

    Raises:
        JournalError: The decision was the mildest one, or its principal reasons are not
            known exactly.
    """
    problem = ""
    if not found.level:
        problem = f"its decision is {found.decision}: no reasons are owed"
    elif found.unexplained:
        problem = f"its principal reasons are not known: {found.unexplained}"
    elif not found.has_notice:
        problem = f"the policy of {found.release} has no `notice` (docs/policy.md)"
    elif not found.reasons:
        problem = "no feature raised its score, and no rule matched"
    if problem:
        raise JournalError(application, problem)
    lines = [f"{number}. {one.text}" for number, one in enumerate(found.reasons, 1)]
    words = "principal reason was" if len(lines) == 1 else "principal reasons were"
    return "\n".join(
        [
            f"Application {application}, decided {found.decided}",
            "",
            _ACTION.get(found.decision, _OTHER_ACTION.format(word=found.decision)),
            f"The {words}:",
            "",
            *(f"  {one}" for one in lines),
        ]
    )
