"""
Plan the attempts of one request: which address, how long, and what its end means.

Shared by the blocking and the asyncio client; nothing in this module waits. A client
takes one attempt after another from `RequestAttempts`, makes the call in its own way,
and reports how the call ended. Finally `RequestAttempts` gives an outcome for every
row, whatever happened.

Retries stay within the deadline, and are possible only because decisions are
idempotent: the same transaction id gets the same decision and counts once. So a client
may resend a request whose fate is unknown. It does not resend a request whose result
cannot change.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc

from tollgate_client.addresses import Address, Ring
from tollgate_client.contract import AMOUNT, MAX_BATCH_ROWS
from tollgate_client.decisions import Decision, Outcome, outcomes_of, refusal
from tollgate_client.errors import (
    ClientError,
    DeadlineExceeded,
    InputError,
    InvalidRequest,
    Overloaded,
    client_error,
    row_errors,
)
from tollgate_client.fallback import DecisionCache, Fallback
from tollgate_client.inputs import Purchase, encode_purchase
from tollgate_client.options import (
    Options,
    RetryRules,
    bearer,
    limit_deadline,
    request_class,
)
from tollgate_client.telemetry import CallSpan, Counters, Tracer
from tollgate_client.wire import Request, decisions_of, request_of

# gRPC reports a passed deadline 1 to 3 ms after it passed (grpcio 1.85).
_WAY_BACK_S = 0.002
# https://www.w3.org/TR/trace-context/#traceparent-header
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_CODE = grpc.StatusCode
# Codes after which another server, or the same one a moment later, may respond.
RETRY = frozenset(
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
# Codes after which the same server may respond: a connection broke, and reopens.
RETRY_SAME_SERVER = frozenset({_CODE.UNAVAILABLE})


class RetryBudget:
    """Count a client's remaining retries; threads may share it."""

    def __init__(self, rules: RetryRules) -> None:
        self._rules = rules
        self._left = float(rules.burst)
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Add the share of one call to the budget."""
        with self._lock:
            self._left = min(self._left + self._rules.share, float(self._rules.burst))

    def spend(self) -> bool:
        """Take one retry; return False when none is left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


@dataclass(frozen=True, slots=True)
class Call:
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


class ClientState:
    """
    Hold a client's addresses, cache, counters and rule; threads may share it.

    Args:
        addresses: One address, or several that are called in turn.
        connect: Function that opens a connection to an address; returns its channel
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
        connect: Callable[[str], tuple[Any, Any]],
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
        self.ring = Ring(names, connect, rules=options.breaker, clock=clock)
        self.cache = DecisionCache(
            options.remembered, age_s=options.remember_s, clock=clock
        )
        self.fallback = fallback
        self.tracer = Tracer(options.product) if options.traces else None

    def begin(
        self, deadline_s: float | None, *, dry_run: bool, traceparent: str
    ) -> Call:
        """Start a call: record its start time and its deadline, and begin its span."""
        begun_s = self.clock()
        wanted_s = self.options.deadline_s if deadline_s is None else deadline_s
        left_s = limit_deadline(wanted_s)
        if self.tracer is None:
            return Call(begun_s, begun_s + left_s, dry_run, traceparent)
        span = self.tracer.call(traceparent)
        return Call(begun_s, begun_s + left_s, dry_run, span.traceparent, span)

    def check(self, purchase: Mapping[str, object]) -> Purchase | InvalidRequest:
        """Check a purchase and encode it; return an invalid one as an error value."""
        try:
            return encode_purchase(
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
        """Decide a row that no server decided: from the cache, or by the rule."""
        known = None if dry_run else self.cache.recall(purchase)
        if known is not None:
            return replace(known, source="cached", why=why)
        decision = self.fallback.decide(purchase.amount)
        return Decision(decision=decision, source="fallback", why=why)

    def record(self, outcome: Outcome, call: Call) -> Outcome:
        """Count an outcome and set its latency, before the caller gets it."""
        if isinstance(outcome, InvalidRequest):
            self.counters.add("refused", "server")
            return outcome
        self.counters.add("decisions", outcome.source)
        self.counters.add("outcomes", outcome.decision)
        return outcome.with_latency(self.clock() - call.begun_s)

    def in_order(
        self,
        checked: Iterable[Purchase | InvalidRequest],
        answers: Iterable[Outcome],
        call: Call,
    ) -> list[Outcome]:
        """Return the outcome of each row in order; invalid rows keep their position."""
        following = (self.record(answer, call) for answer in answers)
        return [
            next(following) if isinstance(row, Purchase) else row for row in checked
        ]

    def metadata(self, traceparent: str) -> tuple[tuple[str, str], ...]:
        """Build the gRPC metadata of a request; drop a malformed trace context."""
        found = []
        if traceparent and _TRACEPARENT.fullmatch(traceparent):
            found.append(("traceparent", traceparent))
        return (*found, *bearer(self.options.token), *request_class(self.options.bulk))


def valid_rows(checked: Iterable[Purchase | InvalidRequest]) -> list[Purchase]:
    """Return the rows that are valid and can be sent."""
    return [row for row in checked if isinstance(row, Purchase)]


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """
    Describe one gRPC call to make.

    Attributes:
        timeout_s: Time that this attempt may take, seconds.
        metadata: Trace context and token.
        compression: Compression that gRPC applies; None for none.
    """

    address: Address
    request: bytes
    timeout_s: float
    metadata: tuple[tuple[str, str], ...]
    compression: grpc.Compression | None

    def call(self) -> Any:
        """Make the call; return the response, or with asyncio the awaitable for it."""
        return self.address.infer(
            self.request,
            timeout=self.timeout_s,
            metadata=self.metadata,
            compression=self.compression,
        )


class RequestAttempts:
    """
    Plan the attempts of one request and collect its outcomes.

    Args:
        state: State that all calls of the client share.
        purchases: 1 to 32 purchases.
        call: Deadline, trace context and mode of the call.
    """

    def __init__(
        self, state: ClientState, purchases: Sequence[Purchase], *, call: Call
    ) -> None:
        self._state = state
        self._purchases = purchases
        self._dry_run = call.dry_run
        self._deadline_at_s = call.deadline_at_s
        self._metadata = state.metadata(call.traceparent)
        self._request: Request | None = None
        self._tried: list[Address] = []
        self._code: grpc.StatusCode | None = None  # how the last attempt ended
        self._why, self._after = "", ""
        self._rows: list[Outcome | ClientError] = []
        state.budget.earn()

    def next(self) -> Attempt | None:
        """Return the next attempt; None when there is nothing more to try."""
        state = self._state
        if self._rows or len(self._tried) >= state.options.retry.attempts:
            return None
        left_s = self._deadline_at_s - state.clock()
        if not left_s > 0:
            self._gave_up("no time left to ask", after="late")
            return None
        address = self._pick()
        if address is None:
            return None
        self._tried.append(address)
        # Leave time to call another server, in case this one does not respond.
        if len(self._tried) < state.options.retry.attempts and state.ring.others(
            self._tried
        ):
            left_s *= state.options.retry.first_part
        left_s -= min(_WAY_BACK_S, left_s / 10)
        if self._request is None:
            self._request = request_of(
                self._purchases,
                product=state.options.product,
                kinds=state.kinds,
                dry_run=self._dry_run,
            )
        message = self._request.encode(left_s=left_s)
        return Attempt(
            address=address,
            request=message,
            timeout_s=left_s,
            metadata=self._metadata,
            compression=self._compression(message),
        )

    def _pick(self) -> Address | None:
        state = self._state
        if not self._tried:
            address = state.ring.pick(())
            if address is None:
                self._gave_up("no server is asked: none answered of late", after="open")
            return address
        if self._code not in RETRY:
            return None
        address = state.ring.pick(self._tried)
        if address is None and self._code in RETRY_SAME_SERVER:
            address = state.ring.pick(())
        if address is None or not state.budget.spend():
            return None
        state.counters.add("retries", self._after)
        return address

    def answered(self, attempt: Attempt, response: bytes) -> None:
        """Process the response to an attempt."""
        try:
            answer = decisions_of(response, latency_s=0.0)
            self._rows = outcomes_of(
                answer, rows=len(self._purchases), words=self._state.fallback.outcomes
            )
        except ClientError as error:
            self._code = grpc.StatusCode.UNKNOWN
            self._note_failure(attempt, str(error), after="failed")
            return
        attempt.address.breaker.succeeded()
        self._state.counters.add("calls", "answered")

    def failed(self, attempt: Attempt, error: grpc.RpcError) -> None:
        """Process the failure of an attempt."""
        self._code = error.code()
        where = f"{self._state.options.product} at {attempt.address.name}"
        mapped = client_error(
            error, where=where, deadline_s=round(attempt.timeout_s, 3)
        )
        if isinstance(mapped, InvalidRequest):
            attempt.address.breaker.succeeded()
            self._state.counters.add("calls", "refused")
            rows = len(self._purchases)
            words = row_errors(str(mapped), rows=rows) or [str(mapped)] * rows
            self._rows = [refusal(one) for one in words]
            return
        if isinstance(mapped, Overloaded):
            # The server is alive. Another one may have capacity; this one has none a
            # moment later.
            self._code = grpc.StatusCode.RESOURCE_EXHAUSTED
            attempt.address.breaker.succeeded()
            self._state.counters.add("calls", "overloaded")
            self._why, self._after = str(mapped), "overloaded"
            return
        late = isinstance(mapped, DeadlineExceeded)
        self._note_failure(attempt, str(mapped), after="late" if late else "failed")

    def outcomes(self) -> list[Outcome]:
        """Return an outcome for every row; call it when `next` returns None."""
        state = self._state
        if not self._rows:
            state.counters.add("fallbacks", self._after)
        found: list[Outcome] = []
        for place, purchase in enumerate(self._purchases):
            row = self._rows[place] if self._rows else ClientError(self._why)
            if isinstance(row, Decision):
                if not self._dry_run:
                    state.cache.remember(purchase, row)
            elif not isinstance(row, InvalidRequest):
                row = state.without_server(
                    purchase, why=str(row), dry_run=self._dry_run
                )
            found.append(row)
        return found

    def _note_failure(self, attempt: Attempt, why: str, *, after: str) -> None:
        state = self._state
        fair = attempt.timeout_s >= state.options.breaker.fair_s
        if fair or after != "late":
            attempt.address.breaker.failed()
        state.counters.add("calls", after)
        self._why, self._after = why, after

    def _gave_up(self, why: str, *, after: str) -> None:
        # The error of an earlier attempt explains more than the lack of a later one.
        if not self._why:
            self._why, self._after = why, after

    def _compression(self, message: bytes) -> grpc.Compression | None:
        above = self._state.options.compress_above_bytes
        if above is None or len(message) <= above:
            return None
        return grpc.Compression.Gzip
