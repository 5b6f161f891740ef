"""Script the answers and faults of a test server, and record its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from tollgate.errors import InputError
from tollgate.schema import DEFAULT_OUTCOMES, PREPARED_PREFIX, SOURCES


class Answer(msgspec.Struct, frozen=True):
    """
    The answer to a row.

    Attributes:
        decision: One of the outcomes.
        score: P(fraud).
        reason_codes: Reason codes of a policy.
        degraded: Bits of `tollgate.schema.Degraded`.
        error: `field: value: rule`; the row is bad then, and the rest is ignored.
        release: Name of the release that decided.
        outcomes: Words of the product, the mildest first.

    Raises:
        InputError: The decision is not one of the outcomes.
    """

    decision: str = DEFAULT_OUTCOMES.words[0]
    score: float = 0.01
    reason_codes: tuple[str, ...] = ()
    degraded: int = 0
    error: str = ""
    release: str = "test-1"
    outcomes: tuple[str, str, str] = DEFAULT_OUTCOMES.words

    def __post_init__(self) -> None:
        if self.decision not in self.outcomes:
            problem = f"{self.decision!r} is none of {', '.join(self.outcomes)}"
            raise InputError("answer", problem, where="decision")


class RankedAnswer(msgspec.Struct, frozen=True):
    """
    The answer to a row of a product that ranks items.

    Attributes:
        items: Ids, the best first; a request for fewer items gets the first of them,
            and one for more gets empty ones after them.
        scores: Relevance of each item; none for 1, 1/2, 1/3 and so on.
        sources: Origin of each item; none for `personal`.
        degraded: Bits of `tollgate.schema.Degraded`.
        error: `field: value: rule`; the row is bad then, and the rest is ignored.
        release: Name of the release that ranked.

    Raises:
        InputError: There is not one score and one known source for each item.
    """

    items: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()
    degraded: int = 0
    error: str = ""
    release: str = "test-1"

    def __post_init__(self) -> None:
        for where, values in (("scores", self.scores), ("sources", self.sources)):
            if values and len(values) != len(self.items):
                problem = f"{len(values)} values for {len(self.items)} items"
                raise InputError("answer", problem, where=where)
        for source in self.sources:
            if source.removeprefix(PREPARED_PREFIX) not in SOURCES:
                problem = f"{source!r} is none of {', '.join(SOURCES)}"
                raise InputError("answer", problem, where="sources")

    def columns(self, size: int) -> tuple[list[str], list[float], list[str]]:
        """Return items, scores and sources of a list of `size`."""
        count = 0 if self.error else min(size, len(self.items))
        scores = self.scores or [1.0 / (place + 1) for place in range(count)]
        sources = self.sources or [SOURCES[0]] * count
        rest = size - count
        return (
            [*self.items[:count], *[""] * rest],
            [*scores[:count], *[float("nan")] * rest],
            [*sources[:count], *[""] * rest],
        )


AnyAnswer = Answer | RankedAnswer


class Asked(msgspec.Struct, frozen=True):
    """
    A row that was requested.

    Attributes:
        transaction_id: Id of the row; the request id of a product that ranks.
        values: Input -> value; ids as text, unless they are not UTF-8.
        dry_run: True if the request is a dry run.
        deadline_us: Time left according to the request; None without one.
        metadata: gRPC metadata of its request, such as `traceparent`.
        request: Number of its request, from 0; rows of one request share it.
        count: Number of items asked for; None without it.
    """

    transaction_id: str
    values: Mapping[str, object]
    dry_run: bool
    deadline_us: int | None
    metadata: Mapping[str, str]
    request: int
    count: int | None = None


Rule = Callable[[Asked], AnyAnswer | None]


class Script:
    """Choose answers by id, by rule, or else one for all; threads may share it."""

    def __init__(self, default: AnyAnswer) -> None:
        self._default = default
        self._by_id: dict[str, AnyAnswer] = {}
        self._rules: list[Rule] = []
        self._requested: list[Asked] = []
        self._lock = threading.Lock()

    def by_id(self, transaction_id: str, answer: AnyAnswer) -> None:
        """Set the answer to one transaction."""
        self._by_id[transaction_id] = answer

    def by_rule(self, rule: Rule) -> None:
        """Add a rule in front of earlier ones; if it returns None, those apply."""
        self._rules.insert(0, rule)

    def note(self, rows: list[Asked]) -> None:
        """Record requested rows."""
        with self._lock:
            self._requested.extend(rows)

    def requested(self) -> list[Asked]:
        """Return a copy of all rows requested so far."""
        with self._lock:
            return list(self._requested)

    def answer(self, row: Asked) -> AnyAnswer:
        """Find the answer to a row."""
        if row.transaction_id in self._by_id:
            return self._by_id[row.transaction_id]
        for rule in self._rules:
            answer = rule(row)
            if answer is not None:
                return answer
        return self._default


Kind = Literal["fail", "slow", "stall"]


class Fault(msgspec.Struct, frozen=True):
    """
    Describe a fault of a request.

    Attributes:
        kind: The request fails; its answer is late; it gets none.
        code: Name of the gRPC status, for `fail`.
        words: Message of the status, for `fail`.
        delay_s: Delay, for `slow`.
    """

    kind: Kind
    code: str = ""
    words: str = ""
    delay_s: float = 0.0


class Faults:
    """Hold the current fault; threads may share it."""

    def __init__(self) -> None:
        self._fault: Fault | None = None
        self._left: int | None = None  # requests that it still affects; None: all
        self._lock = threading.Lock()
        self.healed = threading.Event()  # set to end stalled and slow requests

    def begin(self, fault: Fault, *, requests: int | None) -> None:
        """Start a fault, which replaces any other; it affects `requests` requests."""
        with self._lock:
            self._fault, self._left = fault, requests
            self.healed = threading.Event()

    def end(self) -> None:
        """End the fault, and release stalled requests."""
        with self._lock:
            self._fault = None
            self.healed.set()

    def take(self) -> tuple[Fault | None, threading.Event]:
        """Return the fault of a request, and the event that ends it early."""
        with self._lock:
            fault = self._fault
            if fault is not None and self._left is not None:
                self._left -= 1
                if self._left <= 0:
                    self._fault = None
            return fault, self.healed
