"""Purchases to ask about, and how the tests' clients ask."""

from __future__ import annotations

from tollgate_client import Band, Fallback, Options, RetryRules

RULE = Fallback(bands=(Band(below=50, decision="approve"),), otherwise="review")
PATIENT = Options(deadline_s=30.0)
SHORT_S = 0.1  # for calls that are not to be answered by a server
ONCE = RetryRules(attempts=1)


def purchase(number=1, amount=12.34, **more):
    """A purchase by number."""
    return {
        "transaction_id": f"t{number}",
        "customer_id": "c",
        "terminal_id": "m",
        "amount": amount,
        "event_time": 1_600_000_000_000_000,
        **more,
    }
