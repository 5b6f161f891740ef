"""
Choose the reasons to report for a decision: reason codes and influential features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.policy.policy_definition import MOST_REASONS, Policy

F64 = npt.NDArray[np.float64]


class Reason(msgspec.Struct, frozen=True):
    """
    One reason.

    Attributes:
        text: Text for a person; the code if it has no text.
        feature: Feature that raised the score; empty for a code of the decision.
        contribution: Its contribution on the model's margin; NaN for a code of the
            decision.
    """

    code: str
    text: str
    feature: str = ""
    contribution: float = math.nan


def select_reasons(
    policy: Policy,
    codes: Sequence[str],
    *,
    contributions: F64,
    feature_names: Sequence[str],
    feature_texts: Mapping[str, str] | None = None,
) -> tuple[Reason, ...]:
    """
    Choose the reasons to report for one decision.

    Args:
        policy: Maps features to codes, and codes to texts. A feature without a code is
            not reported, unless no feature has one.
        codes: Codes of the decision; they come first, in its order.
        contributions: Contribution of each feature to the score; float64 [F].
        feature_texts: Texts of features where the policy maps none.

    Returns:
        At most MOST_REASONS, no code and no text twice: those of the decision, then
        those of the features that raised the score, the one that raised it most first;
        equal ones in the order of the features. A policy with a `notice` may report
        fewer, leaves out the codes that are no reason to a person, and adds up the
        features of one code.
    """
    found: list[Reason] = []
    most = MOST_REASONS
    used: set[str] = set()
    of_features = _feature_reasons(
        policy, contributions, feature_names, feature_texts or {}
    )
    if policy.notice is not None:
        most, used = policy.notice.most, set(policy.notice.never)
        of_features = _grouped_reasons(policy, contributions, feature_names)
    for one in (
        *(Reason(code, policy.reasons.get(code, code)) for code in codes),
        *of_features,
    ):
        if not {one.code, one.text} & used:
            found.append(one)
            used |= {one.code, one.text}
    return tuple(found[:most])


def _feature_reasons(
    policy: Policy,
    contributions: F64,
    feature_names: Sequence[str],
    feature_texts: Mapping[str, str],
) -> Iterator[Reason]:
    """List the reasons of features that raised the score, the largest first."""
    for at in np.argsort(-contributions, kind="stable").tolist():
        name, amount = feature_names[at], float(contributions[at])
        if not amount > 0:
            continue
        if name in policy.contributions:
            code = policy.contributions[name]
            yield Reason(code, policy.reasons.get(code, code), name, amount)
        elif not policy.contributions and name in feature_texts:
            yield Reason(name, feature_texts[name], name, amount)


def _grouped_reasons(
    policy: Policy, contributions: F64, feature_names: Sequence[str]
) -> Iterator[Reason]:
    """
    List the codes that raised the score, the largest first.

    All features of one code are one reason: for example, income may raise the score by
    as much as debts lower it.
    """
    parts: dict[str, list[tuple[float, str]]] = {}
    for name, amount in zip(feature_names, contributions.tolist(), strict=True):
        parts.setdefault(policy.contributions[name], []).append((amount, name))
    sums = {code: math.fsum(amount for amount, _ in own) for code, own in parts.items()}
    for code in sorted(sums, key=lambda one: -sums[one]):
        if sums[code] > 0:
            (_, name) = max(parts[code], key=lambda one: one[0])
            yield Reason(code, policy.reasons.get(code, code), name, sums[code])
