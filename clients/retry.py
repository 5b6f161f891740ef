"""
Asking once more: only within the deadline, and only because answers are idempotent.

The same transaction id gets the same answer and counts once, so a request whose fate
is unknown may be sent again. What an answer cannot change is not sent again.
"""

from __future__ import annotations

import threading

import grpc
import msgspec

_CODE = grpc.StatusCode
# What another server, or the same one a moment later, may answer.
WORTH_IT = frozenset(
    {
        _CODE.UNAVAILABLE,
        _CODE.DEADLINE_EXCEEDED,
        _CODE.RESOURCE_EXHAUSTED,
        _CODE.INTERNAL,
        _CODE.ABORTED,
        _CODE.CANCELLED,
        _CODE.UNKNOWN,
        _CODE.NOT_FOUND,
        _CODE.DATA_LOSS,
    }
)
# Of these, what the same server may answer: a connection broke, and opens again.
WORTH_IT_THERE = frozenset({_CODE.UNAVAILABLE})


class RetryRules(msgspec.Struct, frozen=True):
    """
    How often one call may ask.

    Attributes:
        attempts: At most, the first one included.
        first_part: Of the time left, that a server may take while there is another
            to ask. Half left too little for healthy servers on a busy machine: their
            p99 was 29 ms.
        share: Of all calls, that may be retried; more would load servers that are
            in trouble with work of no use.
        burst: Retries that are free, when there were none for a while.
    """

    attempts: int = 2
    first_part: float = 0.6
    share: float = 0.2
    burst: int = 100


class RetryBudget:
    """What is left of a client's retries; threads may share it."""

    def __init__(self, rules: RetryRules) -> None:
        self._rules = rules
        self._left = float(rules.burst)
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Note a call."""
        with self._lock:
            self._left = min(self._left + self._rules.share, float(self._rules.burst))

    def spend(self) -> bool:
        """Take one retry; False when none is left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True
