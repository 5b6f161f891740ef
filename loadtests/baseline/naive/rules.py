"""The policy of the fraud product, hard-coded in the service."""

from __future__ import annotations

from collections.abc import Mapping

LEVELS = ("approve", "review", "decline")


def decide(
    features: Mapping[str, float], *, score: float, stolen: bool, new: bool
) -> tuple[str, list[str]]:
    """
    Convert a score to a decision and its reasons.

    Args:
        score: P(fraud).
        stolen: The card was reported stolen.
        new: The card or the terminal was never seen before.
    """
    amount = features["amount"]
    review, decline = 0.35, 0.80
    if new:
        review, decline = 0.30, 0.80
    elif amount >= 500:
        review, decline = 0.25, 0.70
    level, reasons = 0, []
    if score >= decline:
        level, reasons = 2, ["SCORE_DECLINE"]
    elif score >= review:
        level, reasons = 1, ["SCORE_REVIEW"]
    if stolen:
        return LEVELS[2], [*reasons, "CARD_REPORTED_STOLEN"]
    if amount >= 1000:
        level, reasons = max(level, 1), [*reasons, "LARGE_AMOUNT"]
    if features["terminal_risk_1d"] >= 0.9 and features["terminal_risk_7d"] >= 0.5:
        level, reasons = max(level, 1), [*reasons, "TERMINAL_UNDER_ATTACK"]
    if new and amount >= 300:
        level, reasons = max(level, 1), [*reasons, "NEW_ENTITY_LARGE_AMOUNT"]
    if amount < 10 and level == 2:
        level, reasons = 1, [*reasons, "SMALL_AMOUNT"]
    return LEVELS[level], reasons
