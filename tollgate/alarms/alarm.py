"""Define the message of an alarm, and which decisions raise one."""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection
from typing import Literal

import msgspec

from tollgate.errors import InputError
from tollgate.suggestions import suggest

# An alarm's id is a UUID of version 5 (RFC 9562) in this namespace.
NAMESPACE = uuid.UUID("0e7a1f63-3a6b-5b0f-9a53-2f1f6f0f4c11")

Report = Literal["changes", "every"]


class Alarm(msgspec.Struct, frozen=True):
    """
    One alarm, as receivers get it.

    Attributes:
        alarm_id: The idempotency key: a reading that is delivered again gives the same.
        entities: Ids of the reading's entities, by the names of their inputs.
        reading_id: The reading's `transaction_id`.
        event_time: Time of the reading, µs since the epoch, UTC.
        decision: Outcome of the reading.
        previous: Outcome of the machine before, where changes are reported; None where
            every reading is, and for a reading that is older than the machine's newest.
        score: The score; None when the model gave none, or no finite one.
        degraded: Bits of `tollgate.schema.Degraded`; 0 is full quality.
        release: Release that decided.
    """

    alarm_id: str
    product: str
    entities: dict[str, str]
    reading_id: str
    event_time: int
    decision: str
    previous: str | None
    score: float | None
    reason_codes: tuple[str, ...]
    degraded: int
    release: str


def alarm_id(product: str, reading_id: str) -> str:
    """Return the id of the alarm that a reading raises, whenever it is decided."""
    return str(uuid.uuid5(NAMESPACE, f"{product}\0{reading_id}"))


def score_of(score: float) -> float | None:
    """Return a score as JSON has it: only finite numbers have a form there."""
    return score if math.isfinite(score) else None


class OutcomeRules:
    """
    Choose the outcomes that raise an alarm.

    Args:
        words: The product's outcomes, the mildest first.
        raising: Outcomes that raise an alarm; empty for all but the mildest.

    Raises:
        InputError: A word is no outcome of the product.
    """

    def __init__(self, words: tuple[str, ...], raising: Collection[str] = ()) -> None:
        for word in raising:
            if word not in words:
                problem = f"{word!r:.80} is no outcome; {suggest(word, words)}"
                raise InputError("outcomes", problem)
        self.mildest = words[0]
        self._severity = {word: place for place, word in enumerate(words)}
        self._raising = frozenset(raising)

    def raises(self, outcome: str) -> bool:
        """Return whether an outcome raises an alarm; an unknown one does by default."""
        if self._raising:
            return outcome in self._raising
        return outcome != self.mildest

    def is_milder(self, outcome: str, *, than: str) -> bool:
        """Return whether an outcome is milder than another; an unknown one never is."""
        severity = self._severity
        return severity.get(outcome, len(severity)) < severity.get(than, -1)

    def is_change(self, previous: str, outcome: str) -> bool:
        """Return whether a machine's new outcome begins, changes or ends an alarm."""
        if previous == outcome:
            return False
        return self.raises(previous) or self.raises(outcome)
