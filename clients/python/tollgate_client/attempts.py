"""
Plan the attempts of one request: which address, how long, and what its end means.

Shared by all clients, blocking and asyncio, that decide and that rank; nothing in this
module waits. A client takes one attempt after another from `RequestAttempts`, makes the
call in its own way, and reports how the call ended. Finally `RequestAttempts` gives an
outcome for every row, whatever happened.

Retries stay within the deadline, and are possible only because requests are idempotent:
the same transaction id gets the same decision and counts once, and a request for a list
writes no event. So a client may resend a request whose fate is unknown. It does not
resend a request whose result cannot change.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc

from tollgate_client.addresses import Address, Ring
from tollgate_client.contract import MAX_BATCH_ROWS
from tollgate_client.errors import (
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    client_error,
    refusal,
    row_errors,
)
from tollgate_client.options import (
    Options,
    RetryRules,
    bearer,
    limit_deadline,
    request_class,
)
from tollgate_client.telemetry import CallSpan, Counters, Tracer
from tollgate_client.wire import Request

Given = TypeVar("Given")  # a row as the caller gives it
Row = TypeVar("Row")  # a row that is checked and encoded
Answer = TypeVar("Answer")  # the answer to a row; never a ClientError

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


class ClientState(ABC, Generic[Given, Row, Answer]):
    """
    Hold a client's addresses and counters; threads may share it.

    A subclass adds all that a product's rows and answers are: how to encode and decode
    them, and the answer without a server.

    Args:
        addresses: One address, or several that are called in turn.
        connect: Function that opens a connection to an address; returns its channel
            and its method.
        options: Options of the client.
        clock: Function that returns monotonic seconds.
        verb: First word of the name of a call's span, such as `decide`.

    Raises:
        InputError: The arguments do not fit together.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        connect: Callable[[str], tuple[Any, Any]],
        *,
        options: Options,
        clock: Callable[[], float],
        verb: str,
    ) -> None:
        self.options = options
        self.clock = clock
        self.kinds = {**options.inputs, **options.fields}
        self.counters = Counters()
        self.budget = RetryBudget(options.retry)
        names = [addresses] if isinstance(addresses, str) else list(addresses)
        self.ring = Ring(names, connect, rules=options.breaker, clock=clock)
        self.tracer = Tracer(options.product, verb=verb) if options.traces else None

    @abstractmethod
    def encode(self, given: Given) -> Row:
        """
        Check a row and encode it.

        Raises:
            InvalidRequest: It has a mistake, which the error names.
        """

    @abstractmethod
    def request(self, rows: Sequence[Row], *, dry_run: bool) -> Request:
        """Encode 1 to 32 rows with equal `request_key` as one request."""

    @abstractmethod
    def answers(
        self, response: bytes, rows: Sequence[Row]
    ) -> list[Answer | ClientError]:
        """
        Decode a response.

        Returns:
            For each row its answer; an InvalidRequest if the row itself is invalid;
            another ClientError if the server had no time for it.

        Raises:
            ClientError: The response cannot be used.
        """

    @abstractmethod
    def without_server(self, row: Row, *, why: str, dry_run: bool) -> Answer:
        """Answer a row that no server answered."""

    @abstractmethod
    def finish(self, answer: Answer, *, latency_s: float) -> Answer:
        """Count an answer, and copy it with its latency."""

    @abstractmethod
    def describe(
        self, given: Given, outcome: Answer | InvalidRequest
    ) -> dict[str, str | int]:
        """Describe a row's outcome for a span: nothing personal."""

    def remember(self, row: Row, answer: Answer) -> None:
        """Store a server's answer for later; by default nothing is stored."""

    def request_key(self, row: Row) -> Hashable:
        """Return a key; only rows with equal keys may share a request."""
        return None

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

    def check(self, given: Given) -> Row | InvalidRequest:
        """Check a row and encode it; return an invalid one as an error value."""
        try:
            return self.encode(given)
        except InvalidRequest as error:
            self.counters.add("refused", "client")
            return error

    def check_all(self, rows: Sequence[Given]) -> list[Row | InvalidRequest]:
        """
        Check the rows of one request.

        Raises:
            InvalidRequest: There are no rows, or more than 32, or they cannot share a
                request.
        """
        if not 1 <= len(rows) <= MAX_BATCH_ROWS:
            raise InvalidRequest(
                f"{len(rows)} rows; a request holds 1 to {MAX_BATCH_ROWS}"
            )
        return [self.check(row) for row in rows]

    def record(
        self, outcome: Answer | InvalidRequest, call: Call
    ) -> Answer | InvalidRequest:
        """Count an outcome and set its latency, before the caller gets it."""
        if isinstance(outcome, InvalidRequest):
            self.counters.add("refused", "server")
            return outcome
        return self.finish(outcome, latency_s=self.clock() - call.begun_s)

    def in_order(
        self,
        checked: Iterable[Row | InvalidRequest],
        answers: Iterable[Answer | InvalidRequest],
        call: Call,
    ) -> list[Answer | InvalidRequest]:
        """Return the outcome of each row in order; invalid rows keep their position."""
        following = (self.record(answer, call) for answer in answers)
        return [
            row if isinstance(row, InvalidRequest) else next(following)
            for row in checked
        ]

    def report(
        self,
        given: Sequence[Given],
        outcomes: Sequence[Answer | InvalidRequest],
        call: Call,
    ) -> None:
        """Describe the outcomes in the call's span, where calls are traced."""
        if call.span is not None and call.span.traceparent:
            call.span.report(
                [
                    self.describe(row, outcome)
                    for row, outcome in zip(given, outcomes, strict=True)
                ]
            )

    def metadata(self, traceparent: str) -> tuple[tuple[str, str], ...]:
        """Build the gRPC metadata of a request; drop a malformed trace context."""
        found = []
        if traceparent and _TRACEPARENT.fullmatch(traceparent):
            found.append(("traceparent", traceparent))
        return (*found, *bearer(self.options.token), *request_class(self.options.bulk))


def valid_rows(checked: Iterable[Row | InvalidRequest]) -> list[Row]:
    """Return the rows that are valid and can be sent."""
    return [row for row in checked if not isinstance(row, InvalidRequest)]


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


class RequestAttempts(Generic[Given, Row, Answer]):
    """
    Plan the attempts of one request and collect its outcomes.

    Args:
        state: State that all calls of the client share.
        rows: 1 to 32 rows that may share a request.
        call: Deadline, trace context and mode of the call.
    """

    def __init__(
        self,
        state: ClientState[Given, Row, Answer],
        rows: Sequence[Row],
        *,
        call: Call,
    ) -> None:
        self._state = state
        self._rows = rows
        self._dry_run = call.dry_run
        self._deadline_at_s = call.deadline_at_s
        self._metadata = state.metadata(call.traceparent)
        self._request: Request | None = None
        self._tried: list[Address] = []
        self._code: grpc.StatusCode | None = None  # how the last attempt ended
        self._why, self._after = "", ""
        self._answers: list[Answer | ClientError] = []
        state.budget.earn()

    def next(self) -> Attempt | None:
        """Return the next attempt; None when there is nothing more to try."""
        state = self._state
        if self._answers or len(self._tried) >= state.options.retry.attempts:
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
            self._request = state.request(self._rows, dry_run=self._dry_run)
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
            self._answers = self._state.answers(response, self._rows)
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
            rows = len(self._rows)
            words = row_errors(str(mapped), rows=rows) or [str(mapped)] * rows
            self._answers = [refusal(one) for one in words]
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

    def outcomes(self) -> list[Answer | InvalidRequest]:
        """Return an outcome for every row; call it when `next` returns None."""
        state = self._state
        if not self._answers:
            state.counters.add("fallbacks", self._after)
        found: list[Answer | InvalidRequest] = []
        for place, row in enumerate(self._rows):
            answer = self._answers[place] if self._answers else ClientError(self._why)
            if isinstance(answer, InvalidRequest):
                found.append(answer)
            elif isinstance(answer, ClientError):
                found.append(
                    state.without_server(row, why=str(answer), dry_run=self._dry_run)
                )
            else:
                if not self._dry_run:
                    state.remember(row, answer)
                found.append(answer)
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
