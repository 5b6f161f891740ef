"""What the calls of one client share, whatever becomes of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from clients.addresses import Ring
from clients.counters import Counters
from clients.decision import Decision, Outcome
from clients.fallback import Fallback
from clients.memory import Memory
from clients.options import Options, bearer, bounded, waits
from clients.purchase import Purchase, encode
from clients.retry import RetryBudget
from clients.tracing import CallSpan, Tracer
from tollgate.errors import InputError, InvalidRequest
from tollgate.schema import AMOUNT, MAX_BATCH_ROWS

# https://www.w3.org/TR/trace-context/#traceparent-header
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Call(msgspec.Struct, frozen=True):
    """
    How a caller asked.

    Attributes:
        begun_s: When, on the client's clock.
        deadline_at_s: Until when he waits.
        dry_run: For an answer without effect.
        traceparent: His W3C trace context; empty without.
        span: Of the call, where calls are traced.
    """

    begun_s: float
    deadline_at_s: float
    dry_run: bool
    traceparent: str
    span: CallSpan | None = None


class Asker:
    """
    Addresses, memory, counts and the rule of a client; threads may share it.

    Args:
        addresses: One, or several that are asked in turn.
        opened: Opens the connection to one: its channel and its method.
        fallback: What is decided when no server answers.
        options: The rest.
        clock: Monotonic, seconds.

    Raises:
        InputError: They do not fit together.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        opened: Callable[[str], tuple[Any, Any]],
        *,
        fallback: Fallback,
        options: Options,
        clock: Callable[[], float],
    ) -> None:
        if fallback.bands and options.inputs.get(AMOUNT) != "FP64":
            raise InputError("fallback", f"bands need an input {AMOUNT} of type FP64")
        self.options = options
        self.clock = clock
        self.kinds = {**options.inputs, **options.fields}
        self.counters = Counters()
        self.budget = RetryBudget(options.retry)
        names = [addresses] if isinstance(addresses, str) else list(addresses)
        self.ring = Ring(names, opened, rules=options.breaker, clock=clock)
        self.memory = Memory(options.remembered, age_s=options.remember_s, clock=clock)
        self._fallback = fallback
        self.tracer = Tracer(options.product) if options.traces else None

    def begin(
        self, deadline_s: float | None, *, dry_run: bool, traceparent: str
    ) -> Call:
        """Note when a call begins, and how long it may last."""
        begun_s = self.clock()
        wanted_s = self.options.deadline_s if deadline_s is None else deadline_s
        left_s = bounded(wanted_s)
        if self.tracer is None:
            return Call(begun_s, begun_s + left_s, dry_run, traceparent)
        span = self.tracer.call(traceparent)
        return Call(begun_s, begun_s + left_s, dry_run, span.traceparent, span)

    def check(self, purchase: Mapping[str, object]) -> Purchase | InvalidRequest:
        """Check a purchase and write it; what is wrong with it comes as a value."""
        try:
            return encode(
                purchase, inputs=self.options.inputs, fields=self.options.fields
            )
        except InvalidRequest as error:
            self.counters.add("refused", "client")
            return error

    def check_all(
        self, purchases: Sequence[Mapping[str, object]]
    ) -> list[Purchase | InvalidRequest]:
        """
        Check the rows of one request.

        Raises:
            InvalidRequest: There are none, or more than 32.
        """
        if not 1 <= len(purchases) <= MAX_BATCH_ROWS:
            raise InvalidRequest(
                f"{len(purchases)} rows; a request holds 1 to {MAX_BATCH_ROWS}"
            )
        return [self.check(purchase) for purchase in purchases]

    def without_server(
        self, purchase: Purchase, *, why: str, dry_run: bool
    ) -> Decision:
        """Decide for a row that no server answered: as before, or by the rule."""
        known = None if dry_run else self.memory.recall(purchase)
        if known is not None:
            return msgspec.structs.replace(known, source="cached", why=why)
        decision = self._fallback.decide(purchase.amount)
        return Decision(decision=decision, source="fallback", why=why)

    def told(self, outcome: Outcome, call: Call) -> Outcome:
        """Count what a caller is told, and say how long that took."""
        if isinstance(outcome, InvalidRequest):
            self.counters.add("refused", "server")
            return outcome
        self.counters.add("decisions", outcome.source)
        latency_s = self.clock() - call.begun_s
        return msgspec.structs.replace(outcome, latency_s=latency_s)

    def put_back(
        self,
        checked: Iterable[Purchase | InvalidRequest],
        answers: Iterable[Outcome],
        call: Call,
    ) -> list[Outcome]:
        """Tell what became of each row; the wrong ones stand in their places."""
        following = (self.told(answer, call) for answer in answers)
        return [
            next(following) if isinstance(row, Purchase) else row for row in checked
        ]

    def metadata(self, traceparent: str) -> tuple[tuple[str, str], ...]:
        """Write what goes with a request; a trace context that is none stays here."""
        found = []
        if traceparent and _TRACEPARENT.fullmatch(traceparent):
            found.append(("traceparent", traceparent))
        return (*found, *bearer(self.options.token), *waits(self.options.bulk))


def good_ones(checked: Iterable[Purchase | InvalidRequest]) -> list[Purchase]:
    """Pick the rows that can be asked for."""
    return [row for row in checked if isinstance(row, Purchase)]
