"""Send rows to one server and wait for its decisions; server errors are raised."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from random import uniform
from time import perf_counter, sleep

import grpc

from tollgate_client.addresses import CHANNEL_OPTIONS, infer_method, open_channel
from tollgate_client.contract import FRAUD_INPUTS, MAX_BATCH_ROWS
from tollgate_client.decisions import Decisions, bad_rows
from tollgate_client.errors import (
    DeadlineExceeded,
    InputError,
    InvalidRequest,
    Overloaded,
    client_error,
    row_errors,
)
from tollgate_client.inputs import NO_FIELDS, Column, Rows, check_columns
from tollgate_client.options import (
    Tls,
    bearer,
    check_secrecy,
    limit_deadline,
    request_class,
)
from tollgate_client.wire import decisions_of, requests_of

# Keep several requests in flight and return their responses in order.

Metadata = Callable[[], tuple[tuple[str, str], ...]]

_PATIENCE_S = 30.0  # with a server that is overloaded
_FIRST_WAIT_S, _LAST_WAIT_S = 0.02, 1.0


class Call:
    """One request in flight."""

    def __init__(
        self,
        infer: grpc.UnaryUnaryMultiCallable,
        request: bytes,
        *,
        rows: int,
        deadline_s: float,
        metadata: Metadata,
    ) -> None:
        self._infer, self._request, self._metadata = infer, request, metadata
        self._rows = rows
        self._deadline_s = deadline_s
        self._send()

    def _send(self) -> None:
        self._answered: float | None = None
        self._sent = perf_counter()
        self._future = self._infer.future(
            self._request, timeout=self._deadline_s, metadata=self._metadata()
        )
        self._future.add_done_callback(self._stamp)

    def _stamp(self, _: object) -> None:
        self._answered = perf_counter()

    def cancel(self) -> None:
        """Cancel the request."""
        self._future.cancel()

    def answer(self, *, where: str) -> Decisions:
        """
        Wait for the response; a request of only bad rows gives rows with errors.

        A request that an overloaded server refuses is sent again, after a wait that
        doubles.

        Raises:
            InvalidRequest, DeadlineExceeded, Unavailable: See `client_error`.
        """
        until = perf_counter() + _PATIENCE_S
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return self._once(where=where)
            except Overloaded:
                if perf_counter() + wait_s > until:
                    raise
            sleep(wait_s * uniform(0.5, 1.0))  # callers must not all retry at once
            wait_s = min(2 * wait_s, _LAST_WAIT_S)
            self._send()

    def _once(self, *, where: str) -> Decisions:
        try:
            response = self._future.result()
        except grpc.RpcError as error:
            mapped = client_error(error, where=where, deadline_s=self._deadline_s)
            refused = (
                row_errors(str(mapped), rows=self._rows)
                if isinstance(mapped, InvalidRequest)
                else None
            )
            if refused is None:
                raise mapped from error
            return bad_rows(refused, latency_s=self._latency_s())
        return decisions_of(response, latency_s=self._latency_s())

    def _latency_s(self) -> float:
        # The result can be available a moment before its callback ran.
        return (self._answered or perf_counter()) - self._sent


def answers(
    calls: Iterator[Call], *, in_flight: int, where: str
) -> Iterator[Decisions]:
    """
    Send requests, at most `in_flight` at once, and yield responses in order.

    Args:
        calls: Calls; each is made only when there is room for it.
        in_flight: At least 1.
        where: Product and address, for messages.

    Raises:
        InvalidRequest, DeadlineExceeded, Unavailable: Raised when the failed request's
            turn comes; the later ones are cancelled.
    """
    waiting = deque(islice(calls, in_flight))
    try:
        while waiting:
            answer = waiting.popleft().answer(where=where)
            waiting.extend(islice(calls, 1))
            yield answer
    finally:
        for call in waiting:
            call.cancel()


TIMEOUT_S = 1.0  # a payment has less: pass the rest as deadline_s
IN_FLIGHT = 4
# Payments wait behind bulk requests: with 32 rows each, payments' p99 doubled; with 8,
# it grew by a tenth.
BULK_ROWS = 8


class Client:
    """
    Connect to one server for one product; threads may share it.

    Args:
        url: host:port of the server's gRPC.
        product: Name of the Triton ensemble.
        inputs: Inputs of the product: name -> BYTES, FP64 or INT64.
        fields: Optional inputs, which the product's features.yaml declares: BYTES or
            FP64.
        timeout_s: Deadline, in seconds, of a request that has no `deadline_s`.
        bulk: True if its requests can wait, and give way to payments.
        store_deadline_ms: Time that the store may take for its rows, ms; the server
            limits it. None for the same limit as for a payment.
        tls: TLS settings; None sends in plain text.
        token: API key, sent as `authorization: Bearer …`; a function is called for
            every request. Without TLS it is sent only to this same machine.

    Raises:
        InputError: A token would travel without TLS, or the store deadline is zero or
            negative.
    """

    def __init__(
        self,
        url: str,
        *,
        product: str = "fraud",
        inputs: Mapping[str, str] = FRAUD_INPUTS,
        fields: Mapping[str, str] = NO_FIELDS,
        timeout_s: float = TIMEOUT_S,
        bulk: bool = False,
        store_deadline_ms: int | None = None,
        tls: Tls | None = None,
        token: str | Callable[[], str] | None = None,
    ) -> None:
        check_secrecy(url, tls=tls, token=token)
        if store_deadline_ms is not None and not 0 < store_deadline_ms < 2**63:
            problem = f"{store_deadline_ms} is not whole milliseconds above 0"
            raise InputError("store_deadline_ms", problem)
        self._store_deadline_ms = store_deadline_ms
        self._where = f"{product} at {url}"
        self._product = product
        self._inputs = inputs
        self._fields = fields
        self._timeout_s = timeout_s
        self._token, self._bulk = token, bulk
        self._channel = open_channel(url, grpc, tls=tls, arguments=CHANNEL_OPTIONS)
        self._infer = infer_method(self._channel)

    def decide(
        self,
        columns: Mapping[str, Column],
        *,
        dry_run: bool = False,
        deadline_s: float | None = None,
    ) -> Decisions:
        """
        Decide 1 to 32 rows.

        Args:
            columns: For each input one column of N values; see `check_columns`.
            dry_run: Decide without writing anything.
            deadline_s: Seconds left for the response; the client's timeout if None.

        Raises:
            InvalidRequest: A column is missing or of a wrong type, or every row is
                bad: a line `row i: field: value: rule` for each.
            DeadlineExceeded: No response in time.
            Unavailable: No server responded, or the server refused to work.
            Overloaded: Subclass of `Unavailable`: the server has too much to do and did
                nothing.
        """
        left_s = self._left_s(deadline_s)
        rows = check_columns(columns, inputs=self._inputs, fields=self._fields)
        if rows.count > MAX_BATCH_ROWS:
            limit = f"a request holds 1 to {MAX_BATCH_ROWS}, decide_many any number"
            raise InvalidRequest(f"{rows.count} rows; {limit}")
        (request,) = self._cut(rows, MAX_BATCH_ROWS, dry_run=dry_run, left_s=left_s)
        sent = perf_counter()
        try:
            response = self._infer(request, timeout=left_s, metadata=self._metadata())
        except grpc.RpcError as error:
            raise client_error(error, where=self._where, deadline_s=left_s) from error
        return decisions_of(response, latency_s=perf_counter() - sent)

    def decide_many(
        self,
        columns: Mapping[str, Column],
        *,
        batch_rows: int | None = None,
        in_flight: int = IN_FLIGHT,
        dry_run: bool = False,
        deadline_s: float | None = None,
    ) -> Iterator[Decisions]:
        """
        Decide any number of rows, several requests at a time.

        A request that the server refuses because of overload is retried with growing
        waits, for half a minute.

        Args:
            columns: See `decide`.
            batch_rows: Rows per request, 1 to 32; None for 32, or 8 with `bulk`.
            in_flight: Requests in flight at once, at least 1.
            dry_run, deadline_s: See `decide`; they apply to each request.

        Returns:
            The response to each request, in the order of the rows. A request with only
            bad rows has a response too, with the error text of each row in `error`.

        Raises:
            ClientError: See `decide`: for wrong columns at once, for a request when its
                turn comes.
        """
        if batch_rows is None:
            batch_rows = BULK_ROWS if self._bulk else MAX_BATCH_ROWS
        if not (1 <= batch_rows <= MAX_BATCH_ROWS and in_flight >= 1):
            raise InvalidRequest(
                f"batch_rows {batch_rows} must be 1 to {MAX_BATCH_ROWS}, "
                f"in_flight {in_flight} at least 1"
            )
        left_s = self._left_s(deadline_s)
        rows = check_columns(columns, inputs=self._inputs, fields=self._fields)
        requests = self._cut(rows, batch_rows, dry_run=dry_run, left_s=left_s)
        calls = (
            Call(
                self._infer,
                request,
                rows=min(batch_rows, rows.count - start),
                deadline_s=left_s,
                metadata=self._metadata,
            )
            for start, request in zip(count(0, batch_rows), requests, strict=False)
        )
        return answers(calls, in_flight=in_flight, where=self._where)

    def close(self) -> None:
        """Cancel the requests in flight and close the connection."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (*bearer(self._token), *request_class(self._bulk))

    def _left_s(self, deadline_s: float | None) -> float:
        """Return the time left for a request, in seconds; raise if none is left."""
        left_s = self._timeout_s if deadline_s is None else deadline_s
        if not left_s > 0:
            raise DeadlineExceeded(f"{self._where}: no time left to ask")
        return limit_deadline(left_s)

    def _cut(
        self, rows: Rows, size: int, *, dry_run: bool, left_s: float
    ) -> Iterator[bytes]:
        product = self._product
        return requests_of(
            rows,
            product=product,
            size=size,
            dry_run=dry_run,
            deadline_s=left_s,
            store_deadline_ms=self._store_deadline_ms,
        )
