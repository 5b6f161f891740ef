"""Give a policy other outcomes than approve, review and decline."""

from __future__ import annotations

import re

DEFAULT = ("approve", "review", "decline")
OWN = ("normal", "watch", "alarm")
NAMED = dict(zip(DEFAULT, OWN, strict=True))


def with_own_outcomes(policy: str) -> str:
    """Return the text of a policy.yaml with the words of OWN, and what follows them."""
    policy = re.sub(r"\b(approve|review|decline)\b", lambda one: NAMED[one[0]], policy)
    policy = policy.replace("SCORE_REVIEW", "SCORE_WATCH")
    policy = policy.replace("SCORE_DECLINE", "SCORE_ALARM")
    line = f"outcomes: [{', '.join(OWN)}]"
    return policy.replace("version: 1\n", f"version: 1\n{line}\n", 1)


def renamed_codes(codes: str) -> str:
    """Return joined reason codes as the policy with own outcomes gives them."""
    return codes.replace("SCORE_REVIEW", "SCORE_WATCH").replace(
        "SCORE_DECLINE", "SCORE_ALARM"
    )
