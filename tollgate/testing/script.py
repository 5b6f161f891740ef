"""What a test server is told to answer, and what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import msgspec

from tollgate.errors import InputError
from tollgate.schema import Decision

_WORDS = tuple(level.name.lower() for level in Decision)


class Answer(msgspec.Struct, frozen=True):
    """
    The answer to a row.

    Attributes:
        decision: `approve`, `review` or `decline`.
        score: P(fraud).
        reason_codes: Of a policy.
        degraded: Bits of `tollgate.schema.Degraded`.
        error: `field: value: rule`; the row is bad then, and the rest does not count.
        release: Which release decided.

    Raises:
        InputError: The decision is no such word.
    """

    decision: str = "approve"
    score: float = 0.01
    reason_codes: tuple[str, ...] = ()
    degraded: int = 0
    error: str = ""
    release: str = "test-1"

    def __post_init__(self) -> None:
        if self.decision not in _WORDS:
            problem = f"{self.decision!r} is none of {', '.join(_WORDS)}"
            raise InputError("answer", problem, where="decision")


class Asked(msgspec.Struct, frozen=True):
    """
    A row that was asked for.

    Attributes:
        transaction_id: As text.
        values: Input -> value; ids as text, unless they are no UTF-8.
        dry_run: Whether it is to have no effect.
        deadline_us: What the request said is left; None when it said nothing.
        metadata: gRPC metadata of its request, such as `traceparent`.
        request: Number of its request, from 0; rows that came together share it.
    """

    transaction_id: str
    values: Mapping[str, object]
    dry_run: bool
    deadline_us: int | None
    metadata: Mapping[str, str]
    request: int


Rule = Callable[[Asked], Answer | None]


class Script:
    """Answers by id, by rule, or else one for all; threads may share it."""

    def __init__(self, default: Answer) -> None:
        self._default = default
        self._by_id: dict[str, Answer] = {}
        self._rules: list[Rule] = []
        self._asked: list[Asked] = []
        self._lock = threading.Lock()

    def by_id(self, transaction_id: str, answer: Answer) -> None:
        """Answer one transaction so."""
        self._by_id[transaction_id] = answer

    def by_rule(self, rule: Rule) -> None:
        """Ask this rule first; where it gives None, the earlier ones."""
        self._rules.insert(0, rule)

    def note(self, rows: list[Asked]) -> None:
        """Remember what was asked."""
        with self._lock:
            self._asked.extend(rows)

    def asked(self) -> list[Asked]:
        """Copy what was asked so far."""
        with self._lock:
            return list(self._asked)

    def answer(self, row: Asked) -> Answer:
        """Find the answer to a row."""
        if row.transaction_id in self._by_id:
            return self._by_id[row.transaction_id]
        for rule in self._rules:
            answer = rule(row)
            if answer is not None:
                return answer
        return self._default
