"""
Hold the state that all calls of one client share: addresses, memory, counters, rule.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tollgate.errors import InputError, InvalidRequest
from tollgate.schema import AMOUNT, MAX_BATCH_ROWS
from tollgate_client.addresses import Ring
from tollgate_client.counters import Counters
from tollgate_client.decision import Decision, Outcome
from tollgate_client.fallback import Fallback
from tollgate_client.options import Options, bearer, bounded, waits
from tollgate_client.purchase import Purchase, encode
from tollgate_client.retry import RetryBudget
from tollgate_client.tracing import CallSpan, Tracer

# Cache server responses on the client, for repeated requests of the same purchase.


class Memory:
    """
    Cache the latest decisions of servers by transaction id; threads may share it.

    Args:
        size: Maximum number of entries; the oldest is evicted first.
        age_s: Maximum age of an entry, seconds. It must not exceed the server's window
            for stored decisions, after which the server would decide again.
        clock: Function that returns monotonic seconds.
    """

    def __init__(self, size: int, *, age_s: float, clock: Callable[[], float]) -> None:
        self._size = size
        self._age_s = age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, tuple[bytes, ...], Decision]] = (
            OrderedDict()
        )

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, purchase: Purchase, decision: Decision) -> None:
        """Store a server's decision; the first decision for a purchase stays."""
        if not self._size or not purchase.transaction_id:
            return
        with self._lock:
            if self._found(purchase) is not None:
                return
            self._known.pop(purchase.transaction_id, None)
            while len(self._known) >= self._size:
                self._known.popitem(last=False)
            entry = (self._clock(), purchase.parts, decision)
            self._known[purchase.transaction_id] = entry

    def recall(self, purchase: Purchase) -> Decision | None:
        """
        Return the stored decision for the same id and content, unless it is too old.
        """
        with self._lock:
            return self._found(purchase)

    def _found(self, purchase: Purchase) -> Decision | None:
        since_s, parts, decision = self._known.get(
            purchase.transaction_id, (0.0, (), None)
        )
        if decision is None or parts != purchase.parts:
            return None
        return decision if self._clock() - since_s <= self._age_s else None


# https://www.w3.org/TR/trace-context/#traceparent-header
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Call(msgspec.Struct, frozen=True):
    """
    Describe one call of the caller.

    Attributes:
        begun_s: Start of the call on the client's clock, seconds.
        deadline_at_s: Time on the same clock when the caller stops waiting.
        dry_run: True to decide without side effects.
        traceparent: W3C trace context of the caller; empty without one.
        span: Span of the call, where calls are traced.
    """

    begun_s: float
    deadline_at_s: float
    dry_run: bool
    traceparent: str
    span: CallSpan | None = None


class Asker:
    """
    Hold a client's addresses, memory, counters and rule; threads may share it.

    Args:
        addresses: One address, or several that are called in turn.
        opened: Function that opens the connection to an address and returns its channel
            and its method.
        fallback: Rule that decides when no server responds.
        options: All other options of the client.
        clock: Function that returns monotonic seconds.

    Raises:
        InputError: The arguments do not fit together.
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
        """Start a call: record its start time and its deadline, and begin its span."""
        begun_s = self.clock()
        wanted_s = self.options.deadline_s if deadline_s is None else deadline_s
        left_s = bounded(wanted_s)
        if self.tracer is None:
            return Call(begun_s, begun_s + left_s, dry_run, traceparent)
        span = self.tracer.call(traceparent)
        return Call(begun_s, begun_s + left_s, dry_run, span.traceparent, span)

    def check(self, purchase: Mapping[str, object]) -> Purchase | InvalidRequest:
        """Check a purchase and encode it; return an invalid one as an error value."""
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
            InvalidRequest: There are no rows, or more than 32.
        """
        if not 1 <= len(purchases) <= MAX_BATCH_ROWS:
            raise InvalidRequest(
                f"{len(purchases)} rows; a request holds 1 to {MAX_BATCH_ROWS}"
            )
        return [self.check(purchase) for purchase in purchases]

    def without_server(
        self, purchase: Purchase, *, why: str, dry_run: bool
    ) -> Decision:
        """
        Decide a row that no server decided: from the client's memory, or by the rule.
        """
        known = None if dry_run else self.memory.recall(purchase)
        if known is not None:
            return msgspec.structs.replace(known, source="cached", why=why)
        decision = self._fallback.decide(purchase.amount)
        return Decision(decision=decision, source="fallback", why=why)

    def record(self, outcome: Outcome, call: Call) -> Outcome:
        """Count an outcome and set its latency, before the caller gets it."""
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
        """
        Return the outcome of each row in order, with each invalid row in its position.
        """
        following = (self.record(answer, call) for answer in answers)
        return [
            next(following) if isinstance(row, Purchase) else row for row in checked
        ]

    def metadata(self, traceparent: str) -> tuple[tuple[str, str], ...]:
        """Build the gRPC metadata of a request; drop a malformed trace context."""
        found = []
        if traceparent and _TRACEPARENT.fullmatch(traceparent):
            found.append(("traceparent", traceparent))
        return (*found, *bearer(self.options.token), *waits(self.options.bulk))


def good_ones(checked: Iterable[Purchase | InvalidRequest]) -> list[Purchase]:
    """Return the rows that are valid and can be sent."""
    return [row for row in checked if isinstance(row, Purchase)]
